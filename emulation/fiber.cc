#include "emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "common/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include <tuple>
#include <utility>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// void tercio_fiber_switch(void** save, void* load): pushes the registers that a function must
// preserve onto this stack, stores its pointer, and continues where `load` was stored.
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type tercio_fiber_switch, @function
tercio_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  # Not `ret`, whose target the processor would predict to be the caller's.
  popq %rcx
  jmp *%rcx
.size tercio_fiber_switch, .-tercio_fiber_switch
)");
#else
#error "The switch between fibers is written for x86-64 only."
#endif

extern "C" void tercio_fiber_switch(void** save, void* load);

namespace tercio::emulation {
namespace {

constexpr int kSavedRegisters = 6;
// 61 is a prime, so that the offsets of stacks do not fall into step with the sets of a cache.
constexpr size_t kOffsets = 61;
constexpr size_t kOffsetBytes = 192;

constinit thread_local Fiber* current_fiber = nullptr;

#if defined(__SANITIZE_ADDRESS__)
// The lowest address and the size of the stack of this thread, outside of fibers.
std::pair<const void*, size_t> StackOfThread() {
  static thread_local const auto stack = [] {
    pthread_attr_t attributes;
    void* bottom = nullptr;
    size_t bytes = 0;
    TERCIO_CHECK_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
    TERCIO_CHECK_EQ(pthread_attr_getstack(&attributes, &bottom, &bytes), 0);
    pthread_attr_destroy(&attributes);
    return std::pair<const void*, size_t>(bottom, bytes);
  }();
  return stack;
}
#endif

// The size is asked for once, since fibers are made by the thousand.
size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Fiber::Fiber(void (*body)(void*), void* argument) : body_(body), argument_(argument) {
  // MAP_NORESERVE costs no memory before a page is touched, and most stacks stay shallow.
  void* mapping = mmap(nullptr, kStackBytes + PageBytes(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  TERCIO_CHECK(mapping != MAP_FAILED);
  mapping_ = static_cast<char*>(mapping);
  // A kernel that overflows its stack ends at this page, instead of in the stack of another fiber.
  TERCIO_CHECK_EQ(mprotect(mapping_, PageBytes(), PROT_NONE), 0);
  stack_ = mapping_ + PageBytes();
  // The stack as tercio_fiber_switch leaves it: registers, then the address to continue at. Entry
  // must find its stack as after a call: 8 beyond a multiple of 16. Stacks begin at different
  // offsets, since their first lines would otherwise share a few sets of the cache.
  static thread_local size_t made = 0;
  const size_t offset = made++ % kOffsets * kOffsetBytes;
  auto* top = reinterpret_cast<void**>(stack_ + kStackBytes - offset) - 2;
  *top = reinterpret_cast<void*>(&Fiber::Entry);
  inner_ = top - kSavedRegisters;
#if defined(__SANITIZE_THREAD__)
  inner_tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  // What kernels left poisoned would be reported for whoever gets these addresses next.
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(inner_tsan_);
#endif
  munmap(mapping_, kStackBytes + PageBytes());
}

void Fiber::Resume() {
  // A fiber within a fiber would return to the wrong stack.
  TERCIO_CHECK(current_fiber == nullptr);
  current_fiber = this;
#if defined(__SANITIZE_ADDRESS__)
  void* outer_fake_stack = nullptr;
  std::tie(outer_bottom_, outer_bytes_) = StackOfThread();
  __sanitizer_start_switch_fiber(&outer_fake_stack, stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  outer_tsan_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(inner_tsan_, 0);
#endif
  tercio_fiber_switch(&outer_, inner_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outer_fake_stack, nullptr, nullptr);
#endif
  current_fiber = nullptr;
}

void Fiber::Suspend() {
  // The pointer is read before the switch, as Resume clears it on the other side.
  Fiber* self = current_fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&self->inner_fake_stack_, self->outer_bottom_, self->outer_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(self->outer_tsan_, 0);
#endif
  tercio_fiber_switch(&self->inner_, self->outer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->inner_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::SwitchTo(Fiber& next) {
  Fiber* self = current_fiber;
  next.outer_ = self->outer_;
  current_fiber = &next;
#if defined(__SANITIZE_ADDRESS__)
  // The stack of Resume's caller stays the outer one, whichever fiber was switched from.
  next.outer_bottom_ = self->outer_bottom_;
  next.outer_bytes_ = self->outer_bytes_;
  __sanitizer_start_switch_fiber(&self->inner_fake_stack_, next.stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  next.outer_tsan_ = self->outer_tsan_;
  __tsan_switch_to_fiber(next.inner_tsan_, 0);
#endif
  tercio_fiber_switch(&self->inner_, next.inner_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->inner_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Entry() {
  Fiber* self = current_fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  self->body_(self->argument_);
  TERCIO_CHECK(false && "the body of a fiber returned");
}

}  // namespace tercio::emulation
