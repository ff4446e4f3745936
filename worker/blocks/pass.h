// One pass over a micro-batch as a rank's blocks see it, and where they keep their values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"
#include "kernels/values.h"
#include "plan/lanes.h"
#include "plan/stage_units.h"
#include "worker/blocks/micro_batch.h"

namespace tercio::blocks {

// How much of each buffer a stream takes in a pass: rows are stored densely.
struct PassRows {
  int64_t tokens = 0;           // of each sequence
  int64_t rows = 0;             // of the micro-batch
  int64_t local_rows = 0;       // of the residual stream that are here
  int64_t first_local_row = 0;  // of the micro-batch, that the local ones begin with
};

// The model's first stream, as another one attends to it; local rows x hidden.
struct Memory : PassRows {
  kernels::ConstValues values;
  kernels::Values gradient;  // is added to
  bool known = false;        // its keys and values are in the slot
};

// One stream of the model.
struct Pass : PassRows {
  const MicroBatch& batch;
  int stream = 0;
  Memory memory = {};
};

// The overlap of a lane's segment with the local rows.
struct LocalRows {
  int64_t begin = 0;  // from the first local row
  int64_t count = 0;
};
inline LocalRows LocalPart(const PassRows& pass, const plan::LaneSegment& segment) {
  const int64_t first = segment.first_sequence * pass.tokens;
  const int64_t begin = std::max(first, pass.first_local_row);
  const int64_t end =
      std::min(first + segment.sequences * pass.tokens, pass.first_local_row + pass.local_rows);
  return {begin - pass.first_local_row, std::max<int64_t>(0, end - begin)};
}

// What a job drops, without its place.
struct DropoutSource {
  float probability = 0;
  uint64_t seed = 0;

  // `first_row`: of the micro-batch, that the call begins with.
  kernels::Dropout At(const Pass& pass, int layer, uint32_t site, int64_t first_row) const {
    kernels::Dropout dropout;
    dropout.probability = pass.batch.training ? probability : 0.0f;
    dropout.seed = seed;
    dropout.step = static_cast<uint64_t>(pass.batch.step);
    dropout.layer = static_cast<uint32_t>(layer);
    dropout.site = site;
    dropout.first_sequence = pass.batch.first_sequence;
    dropout.tokens = pass.tokens;
    dropout.first_row = first_row;
    return dropout;
  }
};

// The fields of a layer, or of a block from its first field on, in an activation slot.
class Frame {
 public:
  Frame(std::byte* own, std::byte* shared, const plan::FieldPlace* places,
        const plan::Precision& precision)
      : own_(own), shared_(shared), places_(places), precision_(&precision) {}

  Frame From(int first) const { return {own_, shared_, places_ + first, *precision_}; }
  kernels::Values Values(int field) const {
    return {At(field), precision_->format, precision_->stored};
  }
  float* Floats(int field) const { return reinterpret_cast<float*>(At(field)); }

 private:
  std::byte* At(int field) const {
    const plan::FieldPlace& place = places_[field];
    return (place.shared ? shared_ : own_) + place.offset;
  }

  std::byte* own_;
  std::byte* shared_;
  const plan::FieldPlace* places_;
  const plan::Precision* precision_;
};

}  // namespace tercio::blocks
