// What tests see of the emulated NVTX. Not part of NVTX.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace tercio::emulation {

// Ranges are recorded from now on, by all threads, or no longer.
void RecordRanges(bool on);
// The ranges so far, by their beginnings, one a line: two spaces for each range around it, the name
// and the payload. A range that has not ended, or an end without a range, is a line of its own that
// says so. Of one thread, unless several have made some; forgets them.
std::vector<std::string> TakeRanges();

}  // namespace tercio::emulation
