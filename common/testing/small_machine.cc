// For tests: a machine with as many bytes of memory as SMALL_MACHINE says, for a program that it is
// preloaded into (LD_PRELOAD), and those that it starts.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

extern "C" {

long sysconf(int name) noexcept {  // NOLINT
  const char* bytes = getenv("SMALL_MACHINE");
  if (name == _SC_PHYS_PAGES && bytes != nullptr)
    return std::atol(bytes) / getpagesize();  // NOLINT
  static auto* const next = reinterpret_cast<decltype(&sysconf)>(dlsym(RTLD_NEXT, "sysconf"));
  return next(name);
}

}  // extern "C"
