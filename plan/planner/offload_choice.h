// Layouts of a cluster that do not fit, with as little of the optimizer's state on the host as lets
// them fit. Pure.
//
// A job leaves that open where it leaves its layout to the planner and has no offload.optimizer, or
// where its offload.share is `auto`. What it moves costs time, so that a layout that fits without
// is never offered with it.
#pragma once

#include <cstdint>
#include <functional>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

class OffloadChoice {
 public:
  explicit OffloadChoice(const v1::JobSpec& job);

  // Whether a part of the state that the layout has in the device's memory may go to the host.
  bool IsOpen(const v1::Layout& layout) const;
  // The layout with so many parts of kOffloadParts there.
  static v1::Layout With(v1::Layout layout, int parts);
  // The fewest parts for which `fits` holds, which is asked of a few of them; 0: it holds for none.
  // REQUIRES: with more parts it holds as well.
  static int Fewest(const std::function<bool(int parts)>& fits);

  // The job that offloads: what memory tables of such layouts are made of.
  const v1::JobSpec& job() const { return job_; }

 private:
  v1::JobSpec job_;
  bool chooses_tier_ = false;
  bool chooses_share_ = false;
};

}  // namespace tercio::plan
