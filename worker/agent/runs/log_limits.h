// What keeps the logs of ranks from taking too much: of the way to the coordinator (lines a
// second), and of the disk (bytes of a job).
//
// Not thread-safe. No clock: callers say what time it is.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace tercio {

// Lets so many lines of a rank pass in a second on average, a line of more than 256 bytes counting
// once for each; twice as many at once. Where there are more, none pass for the next second or so:
// few gaps instead of many.
class LineLimit {
 public:
  explicit LineLimit(double lines_per_second)
      : rate_(lines_per_second), tokens_(2 * lines_per_second) {}

  struct Passed {
    int64_t left_out_before = 0;  // since the last that have passed
    std::vector<std::string> lines;
  };
  // `now` in seconds of a clock that never goes back.
  Passed Pass(double now, std::vector<std::string> lines);
  // Lines that were left out and not yet told; they are now.
  int64_t TakeLeftOut();

 private:
  const double rate_;
  double tokens_;
  double last_ = 0;
  bool closed_ = false;
  int64_t left_out_ = 0;
};

// Removes the oldest files in these folders of `root` until they hold at most `quota` bytes; those
// of `kept` (FOLDER/FILE) stay in any case. How many it has removed; a folder that is not there
// holds nothing.
int TrimLogs(const std::string& root, const std::vector<std::string>& folders, int64_t quota,
             const std::set<std::string>& kept);

}  // namespace tercio
