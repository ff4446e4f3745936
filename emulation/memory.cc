#include "emulation/memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tercio::emulation {
namespace {

// Kernels and libraries rely on at least this alignment.
constexpr size_t kAlignment = 256;  // as cudaMalloc
// Most writes past an end miss it by little.
constexpr size_t kGuardBytes = 256;
constexpr char kGuard = '\xa5';
// All bits set are NaN in every format, and -1 as an integer.
constexpr int kPoison = 0xff;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// A mistake of the program ends it at once, where the stack still shows the caller.
void Misuse(const std::string& what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what.c_str());
  std::abort();
}

void MemoryTable::Clear() {
  for (const auto& [begin, bytes] : allocations_) {
    Release(reinterpret_cast<char*>(begin), bytes);
  }
  allocations_.clear();
  used_bytes_ = 0;
}

void* MemoryTable::Allocate(size_t bytes) {
  // The guard behind the memory is rounded up as well, as aligned_alloc demands whole multiples.
  const size_t whole = kGuardBytes + RoundUp(bytes + kGuardBytes);
  auto* block = static_cast<char*>(std::aligned_alloc(kAlignment, whole));
  TERCIO_CHECK(block != nullptr);
  char* pointer = block + kGuardBytes;
  std::memset(block, kGuard, kGuardBytes);
  std::memset(pointer, kPoison, bytes);
  std::memset(pointer + bytes, kGuard, kGuardBytes);
#if defined(__SANITIZE_ADDRESS__)
  // With AddressSanitizer the first access to a guard ends the program where it happens.
  ASAN_POISON_MEMORY_REGION(block, kGuardBytes);
  ASAN_POISON_MEMORY_REGION(pointer + bytes, whole - kGuardBytes - bytes);
#endif
  allocations_[reinterpret_cast<uintptr_t>(pointer)] = bytes;
  used_bytes_ += bytes;
  return pointer;
}

bool MemoryTable::Free(void* pointer) {
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations_.end()) return false;
  Release(static_cast<char*>(pointer), found->second);
  used_bytes_ -= found->second;
  allocations_.erase(found);
  return true;
}

void MemoryTable::Release(char* pointer, size_t bytes) {
  char* block = pointer - kGuardBytes;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(block, kGuardBytes + RoundUp(bytes + kGuardBytes));
#endif
  // Guards are compared at the latest possible time, after all work that could write there.
  CheckGuard(pointer, bytes);
  // Whoever still reads the memory finds NaN.
  std::memset(pointer, kPoison, bytes);
  std::free(block);
}

void MemoryTable::CheckGuard(const char* pointer, size_t bytes) const {
  for (size_t i = 0; i < kGuardBytes; ++i) {
    // Both sides are compared in one loop, which finds the write nearest to the memory first.
    const bool before = pointer[-1 - static_cast<ptrdiff_t>(i)] != kGuard;
    if (!before && pointer[bytes + i] == kGuard) continue;
    Misuse("memory of " + name_ + " was written " + std::to_string(i + (before ? 1 : 0)) +
           " bytes " + (before ? "before the start" : "past the end") + " of an allocation of " +
           std::to_string(bytes) + " bytes");
  }
}

void MemoryTable::CheckGuards() const {
// AddressSanitizer has seen every access to the guards, which are poisoned for this code, too.
#if !defined(__SANITIZE_ADDRESS__)
  for (const auto& [begin, bytes] : allocations_) {
    CheckGuard(reinterpret_cast<const char*>(begin), bytes);
  }
#endif
}

bool MemoryTable::Contains(const void* pointer, size_t bytes, const char* user) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  // The last allocation that begins at or before the address is the only one that can hold it.
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return false;
  const auto& [begin, size] = *--next;
  const size_t offset = address - begin;
  // An empty allocation holds its own address, which may be freed.
  if (offset >= size && !(offset == 0 && size == 0)) return false;
  if (bytes > size - offset) {
    Misuse(std::string(user) + ": " + std::to_string(bytes) + " bytes at offset " +
           std::to_string(offset) + " exceed an allocation of " + std::to_string(size) +
           " bytes on " + name_);
  }
  return true;
}

std::string MemoryTable::Report() const {
  std::string report;
  for (const auto& [begin, bytes] : allocations_) {
    report += name_ + ": " + std::to_string(bytes) + " bytes were not freed\n";
  }
  return report;
}

}  // namespace tercio::emulation
