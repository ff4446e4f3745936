// The checkpoints of one job, on a volume of their own, and what becomes of both: volumes that are
// not mounted, hang, or store something else than they were given; directories that are lost, come
// back, or cannot be read; bytes that have changed, which only those who read them notice.
//
// What the coordinator asks for is answered as coordinator/service/checkpoint_search.cc does it on
// a disk. Times are the world's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/core/core.h"

namespace tercio::simulation {

inline constexpr double kForEver = 1e12;

struct StoredCheckpoint {
  int64_t step = 0;
  int attempt = 0;
  uint64_t weights = 0;
  bool damaged = false;         // who reads its bytes finds it
  bool verified = false;        // somebody has read all of them, and they were right
  bool recorded = false;        // the coordinator knows of it, durably
  double unreadable_until = 0;  // permission denied, or I/O errors
  double gone_until = 0;        // its directory is elsewhere

  bool IsThere(double now) const { return now >= gone_until; }
  bool IsReadable(double now) const { return IsThere(now) && now >= unreadable_until; }
};

struct Volume {
  std::map<int64_t, StoredCheckpoint> checkpoints;  // by step, as their directories
  double away_until = 0;
  double hangs_until = 0;
  double lies_until = 0;

  bool IsMounted(double now) const { return now >= away_until; }
  bool Answers(double now) const { return now >= hangs_until; }
  bool Lies(double now) const { return now < lies_until; }
  // Null: nothing is there as this step, or it is another attempt's.
  const StoredCheckpoint* Find(int64_t step, double now) const;

  // `hasty`: what may pass is taken for damage.
  coordinator::CheckpointFound Search(const coordinator::FindCheckpoint& wanted, double now,
                                      bool hasty);
  coordinator::CheckpointVerified Verify(const std::string& job, int64_t step, double now);

 private:
  std::map<int64_t, v1::CheckpointRecord> Candidates(const coordinator::FindCheckpoint& wanted,
                                                     double now) const;
  coordinator::CheckpointFinding Read(int64_t step, double now);
  coordinator::CheckpointFinding Examine(const v1::CheckpointRecord& record, int64_t suspect_step,
                                         double now);
};

}  // namespace tercio::simulation
