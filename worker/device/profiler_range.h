// Ranges that NVIDIA's profilers show (NVTX), of the calling thread. Without a profiler they cost
// a call or two; they do nothing if the toolkit that this was built with has no NVTX.
#pragma once

#include <cstdint>

namespace tercio::device {

void PushProfilerRange(const char* name, int64_t number);
void PopProfilerRange();

}  // namespace tercio::device
