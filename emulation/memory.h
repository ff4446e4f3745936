// Allocations of emulated memory: their addresses, poison, guards. A buffer is filled with NaN bits
// at first and before it is released. Around it lie guard bytes, which must not change; with
// AddressSanitizer they must not even be touched.
//
// Threads: thread-compatible; the caller locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace tercio::emulation {

class MemoryTable {
 public:
  // `name` is that of the memory in messages: "device 0".
  explicit MemoryTable(std::string name) : name_(std::move(name)) {}
  ~MemoryTable() { Clear(); }
  MemoryTable(const MemoryTable&) = delete;
  MemoryTable& operator=(const MemoryTable&) = delete;

  void* Allocate(size_t bytes);
  // False if this is not the start of an allocation. Ends the program if its guards were written.
  bool Free(void* pointer);

  // Releases everything.
  void Clear();

  // Whether the address lies in an allocation. Ends the program, naming `user`, if [pointer,
  // pointer + bytes) exceeds it.
  bool Contains(const void* pointer, size_t bytes, const char* user) const;
  void CheckGuards() const;

  size_t used_bytes() const { return used_bytes_; }
  std::string Report() const;

 private:
  void Release(char* pointer, size_t bytes);
  void CheckGuard(const char* pointer, size_t bytes) const;

  std::string name_;
  std::map<uintptr_t, size_t> allocations_;  // begin -> bytes
  size_t used_bytes_ = 0;
};

// Reports an illegal use of memory and aborts.
[[noreturn]] void Misuse(const std::string& what);

}  // namespace tercio::emulation
