// A long output that is made in parts: several threads make parts, in any order, and every taker
// receives all parts in order, each taker on a thread of its own. Thus reading and converting,
// digests, and writing run at the same time, and only a window of parts is in memory.
//
// Threads: `make` is called concurrently from several threads, each taker from one; StreamParts
// returns when all of them have ended.
// Errors: that of the first part that could not be made or taken; later parts may have been made,
// and a taker that is behind may or may not receive the parts before it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tercio {

// A part and the memory it may be made in, which keeps its size from one part to the next.
struct OutputPart {
  std::string_view bytes;  // a view of the members below, or of memory that outlives the stream
  std::vector<float> values;
  std::vector<float> other_values;
  std::string text;
};

using MakePart = std::function<absl::Status(int64_t index, OutputPart* part)>;
using TakePart = std::function<absl::Status(std::string_view bytes)>;

// What stands around and between the parts of a file, as the records of an archive do.
class PartFrame {
 public:
  virtual ~PartFrame() = default;
  // Writes the next part, with what comes before it. Called by one thread, in order.
  virtual absl::Status Add(std::string_view part, const TakePart& write) = 0;
  // Writes what follows the last part. Called once, last.
  virtual absl::Status Finish(const TakePart& write) = 0;
};

// Parts [0, count). REQUIRES: makers >= 1, takers are not empty.
absl::Status StreamParts(int64_t count, int makers, const MakePart& make,
                         absl::Span<const TakePart> takers);

// body(index) for every index in [0, count), in any order, on up to `threads` threads.
void ForEachOnThreads(int64_t count, int threads, const std::function<void(int64_t index)>& body);

}  // namespace tercio
