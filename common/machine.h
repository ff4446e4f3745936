// What this machine has. Containers with a share of it are not looked at.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>

namespace tercio {

// At least 1.
inline int MachineCores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

inline int64_t MachineMemoryBytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace tercio
