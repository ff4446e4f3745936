// The threads of one block: which of them run or wait, and the values that they exchange. Internal
// to grid.cc.
//
// Threads: confined to the one that runs the grid. Keeps its fibers from block to block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulation/fiber.h"
#include "emulation/grid.h"

namespace tercio::emulation {

class Block {
 public:
  // Runs all threads of the block `index` of the grid to their end.
  void Run(const Grid& grid, uint3 index, const Orders& orders, uint64_t seed);

  void* shared_memory() { return shared_; }
  int Barrier(BarrierKind kind, bool predicate, Place where);
  uint64_t WarpExchange(WarpOperation operation, uint32_t mask, uint64_t value, int operand,
                        int width, Place where);

  // The block whose thread runs now, on this thread of the host.
  static Block& Current();

 private:
  enum class State : uint8_t { kNotStarted, kReady, kAtBarrier, kAtWarp, kReturned };
  struct Thread {
    State state = State::kNotStarted;
    uint3 index = {0, 0, 0};
    Fiber* fiber = nullptr;  // from its start to its end
    Place where;
    // Argument of a barrier.
    BarrierKind barrier = BarrierKind::kPlain;
    // Arguments of a warp operation.
    WarpOperation operation = WarpOperation::kSync;
    uint32_t mask = 0;
    int operand = 0;
    int width = 0;
    uint64_t value = 0;
    uint64_t result = 0;
  };
  struct Warp {
    uint32_t waiting = 0;  // lanes that wait at a warp operation
  };

  static void FiberBody(void* block);
  void RunThreads();
  bool NextToStart();
  Fiber& Prepare(uint32_t thread);
  Fiber* NextOfPass();
  void Yield();
  void Wait(State state, Place where);
  void ReleaseBarrier();
  void ReleaseWarp(uint32_t warp, uint32_t mask);
  uint64_t Exchanged(uint32_t first, uint32_t lane) const;
  void Reduce(uint32_t first, WarpOperation operation);

  void PrepareSharedMemory();
  void CheckSharedMemory() const;
  void SetPosition(uint32_t thread);

  [[noreturn]] void Fail(const std::string& what) const;
  [[noreturn]] void FailDiverged(uint32_t waiting, uint32_t other) const;
  [[noreturn]] void ExplainStandstill() const;
  std::string NameOf(uint32_t thread) const;
  std::string Doing(uint32_t thread) const;

  const Grid* grid_ = nullptr;
  uint3 index_ = {0, 0, 0};
  uint32_t count_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  uint32_t current_ = 0;
  uint32_t returned_ = 0;

  // One pass resumes every thread that can continue, in this order.
  std::vector<uint32_t> order_;
  uint32_t cursor_ = 0;

  uint32_t at_barrier_ = 0;
  uint32_t predicates_ = 0;
  int barrier_result_ = 0;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  std::vector<char> shared_memory_;
  char* shared_ = nullptr;
};

}  // namespace tercio::emulation
