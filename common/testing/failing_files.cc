// For tests: makes calls on some files fail with EIO, as on a dying disk, or block, as on a slow
// one. Linked into a test, or preloaded into a program (LD_PRELOAD).
//
// Each line of the file that FAILING_FILES names is `fail CALL PART` or `hold CALL PART`, where
// CALL is fsync or read, and PART a part of the path, or, followed by a $, its end. Changes apply
// from the next call on; a blocked call continues when its line is removed.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

// Uses system calls only: the library's functions are replaced below.
std::string Content(const char* path) {
  std::string content;
  const long file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);  // NOLINT
  if (file < 0) return content;
  char buffer[4096];
  for (long count; (count = syscall(SYS_read, file, buffer, sizeof(buffer))) > 0;) {  // NOLINT
    content.append(buffer, static_cast<size_t>(count));
  }
  syscall(SYS_close, file);
  return content;
}

std::string PathOf(int descriptor) {
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  char target[4096];
  const ssize_t size = readlink(link, target, sizeof(target));
  return {target, size > 0 ? static_cast<size_t>(size) : 0};
}

// Whether `line` is of this call ("fail fsync ") on this file.
bool IsOf(std::string_view line, std::string_view call, std::string_view path) {
  if (!line.starts_with(call)) return false;
  std::string_view part = line.substr(call.size());
  if (!part.ends_with('$')) return path.find(part) != std::string_view::npos;
  part.remove_suffix(1);
  return path.ends_with(part);
}

bool Says(const char* rules, const std::string& call, std::string_view path) {
  const std::string content = Content(rules);
  std::string_view rest = content;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (IsOf(rest.substr(0, end), call, path)) return true;
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return false;
}

bool Fails(const std::string& call, int descriptor) {
  const char* rules = getenv("FAILING_FILES");
  if (rules == nullptr || access(rules, F_OK) != 0) return false;
  const std::string path = PathOf(descriptor);
  while (Says(rules, "hold " + call + " ", path)) usleep(2000);
  if (!Says(rules, "fail " + call + " ", path)) return false;
  errno = EIO;
  return true;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int descriptor) {
  static auto* const next = Next<int(int)>("fsync");
  return Fails("fsync", descriptor) ? -1 : next(descriptor);
}

int fdatasync(int descriptor) {
  static auto* const next = Next<int(int)>("fdatasync");
  return Fails("fsync", descriptor) ? -1 : next(descriptor);
}

ssize_t read(int descriptor, void* buffer, size_t size) {
  static auto* const next = Next<ssize_t(int, void*, size_t)>("read");
  return Fails("read", descriptor) ? -1 : next(descriptor, buffer, size);
}

ssize_t pread(int descriptor, void* buffer, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, void*, size_t, off_t)>("pread");
  return Fails("read", descriptor) ? -1 : next(descriptor, buffer, size, offset);
}

ssize_t pread64(int descriptor, void* buffer, size_t size, off_t offset) {
  return pread(descriptor, buffer, size, offset);
}

}  // extern "C"
