// How the emulated cuBLASLt chooses and refuses, for tests of code that has to live with any
// choice. Not part of CUDA.
//
// Threads: SetProductSettings while no other thread uses the library.
#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace tercio::emulation {

struct ProductSettings {
  uint64_t split_workspace = 64 << 10;  // bytes that the algorithm with a split depth wants
  bool split_is_faster = false;         // on the device's clock; else slower by half
  // Values of cublasLtEpilogue_t. The library says at once that it has no algorithm for the first,
  // and offers algorithms for the second that it refuses when they run.
  std::set<int> lacking_epilogues;
  std::set<int> refused_epilogues;
  // Likewise; on the device's clock, in addition to the product itself.
  std::map<int, int64_t> epilogue_microseconds;
  bool refuses_split = false;    // likewise the algorithm with a split depth
  bool knows_algorithms = true;  // false: none passes cublasLtMatmulAlgoCheck
};
// Holds from the next call of the library.
void SetProductSettings(const ProductSettings& settings);

}  // namespace tercio::emulation
