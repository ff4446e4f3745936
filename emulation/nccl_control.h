// Controls of the emulated NCCL for tests. Not part of NCCL.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tercio::emulation {

// Memory of its device that a communicator takes at its first call, as NCCL's buffers do; 0 unless
// it is set.
void SetNcclBufferBytes(size_t bytes);
size_t NcclBufferBytes();

// The communicators that this process has, by name; `channels` 0: NCCL's choice.
struct NcclFacts {
  std::string name;
  int ranks = 0;
  int channels = 0;
};
std::vector<NcclFacts> NcclCommunicators();

}  // namespace tercio::emulation
