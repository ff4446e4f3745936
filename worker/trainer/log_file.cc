#include "worker/trainer/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "common/log.h"

namespace tercio::trainer {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);

}  // namespace

bool RotateLog(const std::string& path, int64_t most_bytes, const std::vector<int>& descriptors) {
  struct stat present = {};
  struct stat named = {};
  if (fstat(descriptors.front(), &present) != 0 || present.st_size <= most_bytes) return false;
  // Does nothing if the output goes elsewhere, as in a debugger.
  if (stat(path.c_str(), &named) != 0 || named.st_ino != present.st_ino) return false;
  // One older file is kept, so that a rank takes twice the limit on the disk at most.
  const std::string older = path + ".1";
  if (std::rename(path.c_str(), older.c_str()) != 0) return false;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    // Output continues in the old file, which readers look for by this name.
    std::rename(older.c_str(), path.c_str());
    return false;
  }
  // Libraries print to the descriptors, so these are turned to the new file.
  for (const int descriptor : descriptors) dup2(file, descriptor);
  close(file);
  return true;
}

LogRotation::LogRotation(const std::string& path, int64_t most_bytes) {
  thread_ = std::thread([this, path, most_bytes] {
    MutexLock lock(mutex_);
    const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
    while (!changed_.WaitFor(mutex_, kInterval, stops)) {
      // The line also tells readers that the new file has begun.
      if (RotateLog(path, most_bytes, {STDOUT_FILENO, STDERR_FILENO})) {
        LogInfo("the log was rotated: earlier lines are in the file that ends in .1");
      }
    }
  });
}

LogRotation::~LogRotation() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

}  // namespace tercio::trainer
