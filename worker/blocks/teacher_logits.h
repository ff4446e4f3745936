// What a teacher makes of the rows that a student's head works on (plan/distillation.h).
//
// Threads: that of the engine.
#pragma once

#include <cstdint>

#include "kernels/values.h"
#include "worker/blocks/pass.h"

namespace tercio::blocks {

// Rows of a micro-batch that a head takes together: of one sequence, or of several whole ones.
struct HeadChunk {
  int64_t row;  // in `targets`, and, of chosen ones, `predicted`
  int64_t rows;
  int64_t rows_per_leaf;
  int64_t sequence = 0;  // of chosen targets: in the micro-batch
};

class TeacherLogits {
 public:
  virtual ~TeacherLogits() = default;

  // (chunk rows, local vocabulary), padding included, in the format of the student's; valid until
  // the next call. Work goes to the stream of the student's head.
  virtual kernels::ConstValues Of(const Pass& pass, const HeadChunk& chunk) = 0;
};

}  // namespace tercio::blocks
