#include "emulation/block.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

constinit thread_local uint3 threadIdx = {0, 0, 0};
constinit thread_local uint3 blockIdx = {0, 0, 0};
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace tercio::emulation {
namespace {

// Kernels that write past the end mostly do so by little, so the guard need not be large.
constexpr size_t kGuardBytes = 256;
constexpr char kGuard = '\xa5';
constexpr char kPoison = '\xff';  // NaN in every format, -1 as an integer
// Kernels read shared memory as vectors and tiles, for which a GPU's is aligned at least like this.
constexpr size_t kSharedAlignment = 128;

bool SamePlace(const Place& a, const Place& b) {
  // Files of one name may come from several translation units, each with its own copy of the text.
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string Describe(const Place& where) {
  return std::string(where.file) + ":" + std::to_string(where.line);
}

std::string Triple(uint3 value) {
  return "(" + std::to_string(value.x) + ", " + std::to_string(value.y) + ", " +
         std::to_string(value.z) + ")";
}

// CUDA numbers threads with x first.
uint3 ThreadIndex(uint32_t thread, dim3 size) {
  return {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
}

}  // namespace

Block& Block::Current() {
  // The pointer need not be checked for initialisation at each use.
  static constinit thread_local Block* current = nullptr;
  if (current == nullptr) {
    static thread_local Block block;
    current = &block;
  }
  return *current;
}

void Block::Run(const Grid& grid, uint3 index, const Orders& orders, uint64_t seed) {
  grid_ = &grid;
  index_ = index;
  count_ = grid.threads.x * grid.threads.y * grid.threads.z;
  threads_.resize(count_);
  // Indices are computed once, since every switch of threads sets one. What a thread waits with is
  // written when it waits.
  for (uint32_t i = 0; i < count_; ++i) {
    threads_[i].state = State::kNotStarted;
    threads_[i].index = ThreadIndex(i, grid.threads);
  }
  warps_.assign((count_ + kWarpLanes - 1) / kWarpLanes, Warp());
  // The counters of the previous block mean nothing here, even if it ended in the middle.
  returned_ = at_barrier_ = predicates_ = 0;
  blockIdx = index;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  PrepareSharedMemory();
  // The seed advances with each shuffle, so that one block sees several orders.
  FillOrder(orders.threads, NextRandom(seed), count_, order_);
  while (returned_ < count_) {
    bool progress = false;
    cursor_ = 0;
    while (Fiber* const next = NextOfPass()) {
      progress = true;
      next->Resume();
    }
    if (!progress) ExplainStandstill();
    // A fixed order stays the same in every round; a shuffled one exposes more races if it changes.
    if (orders.threads == Order::kShuffled) {
      FillOrder(orders.threads, NextRandom(seed), count_, order_);
    }
  }
  CheckSharedMemory();
}

// The fiber of the next thread of the pass that can run, or null.
Fiber* Block::NextOfPass() {
  while (cursor_ < count_) {
    const uint32_t thread = order_[cursor_++];
    const State state = threads_[thread].state;
    if (state == State::kNotStarted || state == State::kReady) return &Prepare(thread);
  }
  return nullptr;
}

// Runs the other threads of the pass, until a pass comes back to this one.
void Block::Yield() {
  if (Fiber* const next = NextOfPass()) return Fiber::SwitchTo(*next);
  Fiber::Suspend();
}

// Makes the thread the running one, whose fiber is to be resumed.
Fiber& Block::Prepare(uint32_t thread) {
  Thread& resumed = threads_[thread];
  current_ = thread;
  SetPosition(thread);
  // A fiber is taken only when the thread first runs, as most threads of a simple kernel share one.
  if (resumed.state == State::kNotStarted) {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(&Block::FiberBody, this));
      idle_.push_back(fibers_.back().get());
    }
    resumed.fiber = idle_.back();
    idle_.pop_back();
  }
  resumed.state = State::kReady;
  return *resumed.fiber;
}

void Block::FiberBody(void* block) { static_cast<Block*>(block)->RunThreads(); }

// A fiber runs one thread after the other until one waits, so that a kernel without barriers costs
// a call for each thread and not a switch.
void Block::RunThreads() {
  for (;;) {
    do {
      (*grid_->thread)();
      threads_[current_].state = State::kReturned;
      ++returned_;
    } while (NextToStart());
    // The fiber is free only now: until here it could still start a thread itself.
    idle_.push_back(threads_[current_].fiber);
    Fiber::Suspend();
  }
}

bool Block::NextToStart() {
  // Another fiber may already hold the next thread, which then cannot be started here.
  if (cursor_ >= count_ || threads_[order_[cursor_]].state != State::kNotStarted) return false;
  Fiber* fiber = threads_[current_].fiber;
  current_ = order_[cursor_++];
  threads_[current_].state = State::kReady;
  threads_[current_].fiber = fiber;
  SetPosition(current_);
  return true;
}

void Block::SetPosition(uint32_t thread) { threadIdx = threads_[thread].index; }

void Block::Wait(State state, Place where) {
  // State and place are what messages tell of a thread that waits.
  threads_[current_].state = state;
  threads_[current_].where = where;
}

int Block::Barrier(BarrierKind kind, bool predicate, Place where) {
  Thread& self = threads_[current_];
  Wait(State::kAtBarrier, where);
  self.barrier = kind;
  ++at_barrier_;
  predicates_ += predicate ? 1 : 0;
  // The last thread to arrive releases all, so that no order of the threads can hang.
  if (at_barrier_ == count_) ReleaseBarrier();
  Yield();
  return barrier_result_;
}

void Block::ReleaseBarrier() {
  const Thread& self = threads_[current_];
  // A barrier is one place in the source for all threads; on a GPU different ones may hang.
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    if (thread.barrier != self.barrier || !SamePlace(thread.where, self.where)) {
      FailDiverged(i, current_);
    }
  }
  for (Thread& thread : threads_) thread.state = State::kReady;
  switch (self.barrier) {
    case BarrierKind::kPlain:
      barrier_result_ = 0;
      break;
    case BarrierKind::kOr:
      barrier_result_ = predicates_ != 0 ? 1 : 0;
      break;
    case BarrierKind::kAnd:
      barrier_result_ = predicates_ == count_ ? 1 : 0;
      break;
    case BarrierKind::kCount:
      barrier_result_ = static_cast<int>(predicates_);
      break;
  }
  at_barrier_ = predicates_ = 0;
}

uint64_t Block::WarpExchange(WarpOperation operation, uint32_t mask, uint64_t value, int operand,
                             int width, Place where) {
  const uint32_t warp = current_ / kWarpLanes;
  const uint32_t lane = current_ % kWarpLanes;
  const uint32_t lanes = std::min<uint32_t>(kWarpLanes, count_ - warp * kWarpLanes);
  Thread& self = threads_[current_];
  // The state is set before the checks, which describe what the thread is doing.
  Wait(State::kAtWarp, where);
  self.operation = operation;
  self.mask = mask;
  self.operand = operand;
  self.width = width;
  self.value = value;
  if ((mask >> lane & 1) == 0)
    Fail(NameOf(current_) + Doing(current_) + " without being in its mask");
  if (lanes < kWarpLanes && mask >> lanes != 0) {
    Fail(NameOf(current_) + Doing(current_) +
         " with lanes in its mask that the block does not have");
  }
  if (width <= 0 || width > kWarpLanes || (width & (width - 1)) != 0) {
    Fail(NameOf(current_) + Doing(current_) + " with width " + std::to_string(width));
  }
  warps_[warp].waiting |= 1u << lane;
  // A warp operation waits for the lanes of its mask only, not for the whole warp.
  if ((warps_[warp].waiting & mask) == mask) ReleaseWarp(warp, mask);
  Yield();
  return self.result;
}

void Block::ReleaseWarp(uint32_t warp, uint32_t mask) {
  const uint32_t first = warp * kWarpLanes;
  const Thread& self = threads_[current_];
  // Each step clears the lowest bit that is set, so only the lanes of the mask are visited.
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const uint32_t other = first + static_cast<uint32_t>(std::countr_zero(rest));
    const Thread& thread = threads_[other];
    if (thread.operation != self.operation || thread.mask != mask ||
        !SamePlace(thread.where, self.where)) {
      FailDiverged(other, current_);
    }
  }
  // Results are computed before any lane runs again and changes the values that others read.
  if (self.operation == WarpOperation::kSum || self.operation == WarpOperation::kLargest) {
    Reduce(first, self.operation);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      threads_[first + lane].result = Exchanged(first, lane);
    }
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    threads_[first + static_cast<uint32_t>(std::countr_zero(rest))].state = State::kReady;
  }
  warps_[warp].waiting &= ~mask;
}

// What shuffles by XOR from the farthest lane to the nearest would give to each lane.
void Block::Reduce(uint32_t first, WarpOperation operation) {
  float values[kWarpLanes];
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    values[lane] = std::bit_cast<float>(static_cast<uint32_t>(threads_[first + lane].value));
  }
  for (uint32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    float next[kWarpLanes];
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      const float other = values[lane ^ distance];
      next[lane] =
          operation == WarpOperation::kSum ? values[lane] + other : LargerOf(values[lane], other);
    }
    std::memcpy(values, next, sizeof(values));
  }
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    threads_[first + lane].result = std::bit_cast<uint32_t>(values[lane]);
  }
}

// The value that the lane receives.
uint64_t Block::Exchanged(uint32_t first, uint32_t lane) const {
  const Thread& thread = threads_[first + lane];
  const int own = static_cast<int>(lane);
  // The width is a power of two, so this is the first lane of the part.
  const int begin = own & ~(thread.width - 1);
  const int end = begin + thread.width;
  int source = own;
  switch (thread.operation) {
    case WarpOperation::kSync:
      return 0;
    case WarpOperation::kBallot: {
      uint32_t ballot = 0;
      for (uint32_t rest = thread.mask; rest != 0; rest &= rest - 1) {
        const auto other = static_cast<uint32_t>(std::countr_zero(rest));
        if (threads_[first + other].value != 0) ballot |= 1u << other;
      }
      return ballot;
    }
    case WarpOperation::kShuffle:
      // A plain shuffle wraps around within its part, unlike the other three.
      source = begin + (thread.operand & (thread.width - 1));
      break;
    case WarpOperation::kShuffleUp:
      source = own - thread.operand;
      break;
    case WarpOperation::kShuffleDown:
      source = own + thread.operand;
      break;
    case WarpOperation::kShuffleXor:
      source = own ^ thread.operand;
      break;
    case WarpOperation::kSum:
    case WarpOperation::kLargest:
      break;  // not lane by lane: Reduce
  }
  // Beyond its part of the warp a lane keeps its own value; XOR may reach back to earlier parts.
  const bool too_low = thread.operation != WarpOperation::kShuffleXor && source < begin;
  if (too_low || source < 0 || source >= end) source = own;
  // A GPU gives such a lane an undefined value, which tests would not notice.
  if ((thread.mask >> source & 1) == 0) {
    Fail(NameOf(first + lane) + Doing(first + lane) + " and reads from lane " +
         std::to_string(source) + ", which is not in the mask");
  }
  return threads_[first + static_cast<uint32_t>(source)].value;
}

void Block::PrepareSharedMemory() {
  const size_t bytes = grid_->shared_bytes;
  const size_t needed = kSharedAlignment + bytes + kGuardBytes;
  if (shared_memory_.size() < needed) shared_memory_.resize(needed);
  const auto address = reinterpret_cast<uintptr_t>(shared_memory_.data());
  shared_ =
      shared_memory_.data() + (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
  // Shared memory begins with NaN, so that reading it before writing shows in results.
  std::memset(shared_, kPoison, bytes);
  std::memset(shared_ + bytes, kGuard, kGuardBytes);
#if defined(__SANITIZE_ADDRESS__)
  // With AddressSanitizer the first wrong access ends the program where it happens.
  ASAN_POISON_MEMORY_REGION(shared_ + bytes, kGuardBytes);
#endif
}

void Block::CheckSharedMemory() const {
  const size_t bytes = grid_->shared_bytes;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(shared_ + bytes, kGuardBytes);
#endif
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (shared_[bytes + i] == kGuard) continue;
    Fail("byte " + std::to_string(bytes + i) +
         " of the dynamic shared memory was written; its size is " + std::to_string(bytes));
  }
}

std::string Block::NameOf(uint32_t thread) const {
  return "thread " + Triple(ThreadIndex(thread, grid_->threads));
}

std::string Block::Doing(uint32_t thread) const {
  const Thread& t = threads_[thread];
  static constexpr const char* kBarriers[] = {"__syncthreads", "__syncthreads_or",
                                              "__syncthreads_and", "__syncthreads_count"};
  static constexpr const char* kOperations[] = {
      "__syncwarp",       "__ballot_sync",   "__shfl_sync",     "__shfl_up_sync",
      "__shfl_down_sync", "__shfl_xor_sync", "a warp's sum of", "a warp's maximum of"};
  switch (t.state) {
    case State::kReturned:
      return " has returned";
    case State::kAtBarrier:
      return std::string(" waits at ") + kBarriers[static_cast<int>(t.barrier)] + " (" +
             Describe(t.where) + ")";
    // The mask is what a lane most often gets wrong, so it is part of the message.
    case State::kAtWarp: {
      char mask[16];
      std::snprintf(mask, sizeof(mask), "0x%08x", t.mask);
      return std::string(" waits at ") + kOperations[static_cast<int>(t.operation)] +
             " with mask " + mask + " (" + Describe(t.where) + ")";
    }
    case State::kNotStarted:
    case State::kReady:
      break;
  }
  return " runs";
}

void Block::Fail(const std::string& what) const {
  std::fprintf(stderr, "emulated CUDA: kernel %s, block %s: %s\n", KernelName(grid_->kernel),
               Triple(index_).c_str(), what.c_str());
  // abort leaves a core and a stack, which an exception through fibers could not.
  std::abort();
}

void Block::FailDiverged(uint32_t waiting, uint32_t other) const {
  Fail("threads diverged: " + NameOf(waiting) + Doing(waiting) + ", but " + NameOf(other) +
       Doing(other));
}

// No thread can continue: some thread waits for another that never comes.
void Block::ExplainStandstill() const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Thread& waiting = threads_[i];
    if (waiting.state == State::kReturned) continue;
    const uint32_t first = i / kWarpLanes * kWarpLanes;
    for (uint32_t j = 0; j < count_; ++j) {
      const Thread& other = threads_[j];
      // At a barrier every other thread counts, at a warp operation only those of the mask.
      const bool meant =
          waiting.state == State::kAtBarrier ||
          (j >= first && j < first + kWarpLanes && (waiting.mask >> (j - first) & 1) != 0);
      const bool elsewhere = other.state != waiting.state ||
                             !SamePlace(other.where, waiting.where) ||
                             (waiting.state == State::kAtWarp &&
                              (other.operation != waiting.operation || other.mask != waiting.mask));
      if (j != i && meant && elsewhere) FailDiverged(i, j);
    }
  }
  Fail("no thread can continue");
}

}  // namespace tercio::emulation
