// A fiber: a function on a stack of its own, that runs when it is resumed and stops where it
// suspends itself. Thousands of them emulate the threads of a CUDA block; a switch takes some
// nanoseconds and no system call.
//
// Threads: a fiber belongs to the thread that made it; only that one resumes it.
// Ownership: owns its stack, with an unreadable page below it, so that an overflow ends in SIGSEGV.
// Errors: no memory for a stack is a failed check. The function must not throw.
#pragma once

#include <cstddef>

namespace tercio::emulation {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  // body(argument) starts at the first Resume. It must never return: it suspends itself for ever.
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it suspends itself. Not from inside a fiber.
  void Resume();
  // Called from inside a fiber: returns to the caller of Resume.
  static void Suspend();
  // Called from inside a fiber: runs another one in its place, which returns to the caller of this
  // one's Resume when it suspends itself. One switch, where Suspend and Resume are two.
  static void SwitchTo(Fiber& next);

 private:
  static void Entry();

  void (*body_)(void*);
  void* argument_;
  char* mapping_;
  char* stack_;            // above the unreadable page
  void* inner_ = nullptr;  // stack pointer where the fiber continues
  void* outer_ = nullptr;  // and of the caller of Resume

  // State for the sanitizers.
  void* inner_fake_stack_ = nullptr;
  const void* outer_bottom_ = nullptr;
  size_t outer_bytes_ = 0;
  void* inner_tsan_ = nullptr;
  void* outer_tsan_ = nullptr;
};

}  // namespace tercio::emulation
