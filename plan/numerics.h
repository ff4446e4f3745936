// The version of the definitions in docs/numerics.md: runs that differ in it may differ in last
// bits. Plans and checkpoints record it.
//   1  until it was recorded
//   2  the gradient norm is an exact sum of blocks, where it was a sum over tensors
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace tercio::plan {

// By which this program computes.
inline constexpr int kNumerics = 2;

// What was recorded before there was a record of it.
inline int RecordedNumerics(int recorded) { return recorded > 0 ? recorded : 1; }

// What a user is told where a run by `mine` resumes a state of `recorded`; empty: nothing, or the
// state's is not known (0).
inline std::string DescribeOtherNumerics(int recorded, int mine) {
  if (recorded <= 0 || recorded == mine) return "";
  return absl::StrCat("the state that is resumed was computed by numerics ", recorded,
                      ", this version computes by numerics ", mine,
                      ": losses and weights continue, but their last bits differ from those that "
                      "the version before would have computed (docs/numerics.md)");
}

}  // namespace tercio::plan
