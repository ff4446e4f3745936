#include "emulation/grid.h"

#include <cstdio>

#include "absl/debugging/symbolize.h"
#include "emulation/block.h"

namespace tercio::emulation {

void RunGrid(const Grid& grid, const Orders& orders) {
  // The block of this thread keeps its fibers and its memory, which are expensive to make.
  Block& block = Block::Current();
  const uint64_t layer = uint64_t{grid.blocks.x} * grid.blocks.y;
  const uint64_t count = layer * grid.blocks.z;
  const auto run = [&](uint64_t i) {
    const uint3 index = {static_cast<uint32_t>(i % grid.blocks.x),
                         static_cast<uint32_t>(i / grid.blocks.x % grid.blocks.y),
                         static_cast<uint32_t>(i / layer)};
    // Each block has a seed of its own, so that their threads do not all shuffle in the same way.
    block.Run(grid, index, orders, orders.seed + i);
  };
  // The order is kept between grids for its memory.
  static thread_local std::vector<uint32_t> order;
  FillOrder(orders.blocks, orders.seed, static_cast<uint32_t>(count), order);
  for (const uint32_t i : order) run(i);
}

const char* KernelName(const void* kernel) {
  static thread_local char name[1024];
  // A kernel has no name at run time but its symbol, and messages need one.
  if (!absl::Symbolize(kernel, name, sizeof(name))) {
    std::snprintf(name, sizeof(name), "at %p", kernel);
  }
  return name;
}

void* DynamicSharedMemory() { return Block::Current().shared_memory(); }

int Barrier(BarrierKind kind, bool predicate, Place where) {
  return Block::Current().Barrier(kind, predicate, where);
}

uint64_t WarpExchange(WarpOperation operation, uint32_t mask, uint64_t value, int operand,
                      int width, Place where) {
  return Block::Current().WarpExchange(operation, mask, value, operand, width, where);
}

}  // namespace tercio::emulation
