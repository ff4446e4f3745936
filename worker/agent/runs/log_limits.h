// Limits on the logs of ranks: on what is sent to the coordinator (lines per second), and on the
// disk (bytes of a job).
//
// Not thread-safe. No clock: callers pass the time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace tercio::agent {

// Limits the lines of a rank to an average rate per second, a line of more than 256 bytes counting
// once for each 256; bursts may be twice as large. After too many, none pass for the next second or
// so: few gaps instead of many.
class LineLimit {
 public:
  explicit LineLimit(double lines_per_second)
      : rate_(lines_per_second), tokens_(2 * lines_per_second) {}

  struct Passed {
    int64_t left_out_before = 0;  // since the last lines that passed
    std::vector<std::string> lines;
  };
  // `now` in seconds of a clock that never goes back.
  Passed Pass(double now, std::vector<std::string> lines);
  // Lines that were dropped and not yet reported; they count as reported now.
  int64_t TakeLeftOut();

 private:
  const double rate_;
  double tokens_;
  double last_ = 0;
  bool closed_ = false;
  int64_t left_out_ = 0;
};

// Removes the oldest files in these folders of `root` until they hold at most `quota` bytes; those
// of `kept` (FOLDER/FILE) stay in any case. Returns how many were removed; a folder that does not
// exist holds nothing.
int TrimLogs(const std::string& root, const std::vector<std::string>& folders, int64_t quota,
             const std::set<std::string>& kept);

}  // namespace tercio::agent
