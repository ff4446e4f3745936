// Reads one pickle (Python's protocols 0 to 5) into an arena. Names of classes and functions are
// compared with a list (checkpoint/torch/pickle_classes.h), and what they would give is built here:
// nothing is executed. Storages are left without bytes, since they lie outside of the pickle.
//
// The pickle is not trusted: no instruction reads outside of it, recurses, or copies more than
// the pickle holds, so that time and memory are bounded by a small multiple of its size.
//
// Threads: none of its own. Errors: DATA_LOSS for a damaged pickle, INVALID_ARGUMENT for what is
// refused; both name the byte.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_node.h"

namespace tercio::checkpoint {

// Far above the pickles of real files, whose numbers lie outside of them.
inline constexpr size_t kLargestPickle = size_t{64} << 20;

struct PickleResult {
  PickleValue root;
  size_t bytes = 0;  // what the pickle takes of the given bytes
};

// `bytes` begin with a pickle, which ends itself. The values live in `arena`.
absl::StatusOr<PickleResult> ReadPickle(std::string_view bytes, PickleArena* arena);

}  // namespace tercio::checkpoint
