// The operations of kernels/ops.h on the CPU.
//
// Threads: one thread calls an Ops at a time; inside, up to `threads` threads work.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace tercio::kernels {

// threads >= 1, the calling thread included. Owns the threads and the scratch of the products.
std::unique_ptr<Ops> CreateCpuOps(int threads);

}  // namespace tercio::kernels
