// Allocations of emulated memory: which addresses belong to them, poison, guards. A buffer is
// filled with NaN bits at first and before it is given back. Around it lie guard bytes, which must
// not change; with AddressSanitizer they may not even be touched.
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
  // False where this is not the begin of an allocation. Ends the program where its guards were
  // written.
  bool Free(void* pointer);

  // Gives everything back.
  void Clear();

  // Whether the address lies in an allocation. Ends the program where [pointer, pointer + bytes)
  // leaves it; `user` is named then.
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

// What no program may do: prints it and aborts.
[[noreturn]] void Misuse(const std::string& what);

}  // namespace tercio::emulation
