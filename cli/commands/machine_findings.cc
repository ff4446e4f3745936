// Findings about the machine: processor, memory, disk, limits, clock.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/findings.h"
#include "common/file.h"
#include "common/gpus/gpu_faults.h"
#include "common/machine.h"

namespace tercio::cli {
namespace {

// With less than this, hardly any model fits.
constexpr int64_t kLittleMemory = int64_t{1} << 30;
constexpr int64_t kLittleDisk = int64_t{10} << 30;
// A trial of this size takes below a second on any disk that is fit for checkpoints.
constexpr int64_t kTrialBytes = int64_t{64} << 20;
constexpr double kSlowDisk = 100e6;  // bytes per second
// Each agent keeps a few connections and files open.
constexpr rlim_t kFewFiles = 4096;

Finding CheckProcessor() {
  std::string instructions;
  bool vectors = true;
#if defined(__x86_64__)
  // Highway chooses the instructions at run time; without these it falls back to slow ones.
  vectors = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  for (const auto& [has, name] :
       {std::pair(__builtin_cpu_supports("avx2"), "AVX2"),
        std::pair(__builtin_cpu_supports("avx512f"), "AVX-512"),
        std::pair(__builtin_cpu_supports("avx512bf16"), "AVX-512 BF16")}) {
    if (has) absl::StrAppend(&instructions, instructions.empty() ? "" : ", ", name);
  }
#endif
  Finding finding = {"cpu", Health::kOk,
                     absl::StrCat(ProcessorName(), ", ", MachineCores(), " cores",
                                  instructions.empty() ? "" : ", ", instructions),
                     ""};
  if (!vectors) {
    finding.health = Health::kWarning;
    finding.mend = "without AVX2, matrix products on the CPU are several times slower";
  }
  return finding;
}

Finding CheckMemory() {
  const int64_t available = AvailableMemoryBytes();
  Finding finding = {"memory", Health::kOk,
                     absl::StrCat(GibibytesText(MachineMemoryBytes()), ", of which ",
                                  GibibytesText(available), " are available"),
                     ""};
  // What other programs hold cannot be planned with.
  if (available < kLittleMemory) {
    finding.health = available == 0 ? Health::kUnknown : Health::kWarning;
    finding.mend = "end other programs that use the machine's memory";
  }
  return finding;
}

// Bytes per second to the disk, as checkpoints and databases write: with fsync.
absl::StatusOr<double> MeasureDisk(const std::string& directory) {
  // The file is made in the directory itself, since its neighbours may be other disks.
  std::string path = directory + "/.tercio-doctor.XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return FileError(errno, "cannot write into", directory);
  const std::string block(1 << 20, 'x');
  int error = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t written = 0; written < kTrialBytes && error == 0;) {
    const ssize_t count = write(file, block.data(), block.size());
    if (count < 0 && errno != EINTR) error = errno;
    written += std::max<ssize_t>(0, count);
  }
  // Without fsync this would be the speed of memory.
  if (error == 0 && fsync(file) != 0) error = errno;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  close(file);
  // The file is removed in every case, also when the disk is full.
  unlink(path.c_str());
  if (error != 0) return FileError(error, "cannot write", path);
  return static_cast<double>(kTrialBytes) / seconds.count();
}

Finding CheckDisk(std::string directory) {
  // The directory may not exist yet; its disk is that of its next parent.
  while (!PathExists(directory) && directory.rfind('/') != std::string::npos) {
    directory = directory.substr(0, directory.rfind('/'));
    if (directory.empty()) directory = "/";
  }
  const absl::StatusOr<int64_t> free = FreeBytes(directory);
  const absl::StatusOr<double> rate = MeasureDisk(directory);
  if (!free.ok() || !rate.ok()) {
    const absl::Status& status = free.ok() ? rate.status() : free.status();
    return {"disk", Health::kError, std::string(status.message()),
            "give a writable directory with --state-dir DIR"};
  }
  Finding finding = {"disk", Health::kOk,
                     absl::StrCat(directory, ": ", GibibytesText(*free), " free, ",
                                  absl::StrFormat("%.0f MB/s to the disk", *rate / 1e6)),
                     ""};
  if (*free < kLittleDisk) {
    finding.health = Health::kWarning;
    // Weights and two moments in fp32 are 12 bytes.
    finding.mend = "free some disk space: a checkpoint takes 12 bytes per parameter";
  } else if (*rate < kSlowDisk) {
    finding.health = Health::kWarning;
    finding.mend = "checkpoints will be slow; choose a faster disk with --state-dir DIR";
  }
  return finding;
}

Finding CheckFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    // The hard limit counts, since daemons raise the soft one to it (RaiseFileLimit).
    return {"open files", Health::kUnknown, std::strerror(errno), ""};
  }
  const bool few = limit.rlim_max < kFewFiles;
  return {"open files", few ? Health::kWarning : Health::kOk,
          limit.rlim_max == RLIM_INFINITY ? std::string("no limit")
                                          : absl::StrCat("at most ", limit.rlim_max),
          few ? "raise `ulimit -Hn`, or LimitNOFILE= of the systemd unit, for more than about 900 "
                "agents"
              : ""};
}

// Tercio does not wait by the wall clock, but certificates and users depend on it.
Finding CheckClock() {
  timex state = {};
  const int kind = adjtimex(&state);
  if (kind < 0) return {"clock", Health::kUnknown, std::strerror(errno), ""};
  // Either sign is enough: some systems set only one of them.
  if (kind == TIME_ERROR || (state.status & STA_UNSYNC) != 0) {
    return {"clock", Health::kWarning, "the kernel reports that it is not synchronised",
            "run an NTP client: certificates and logs depend on the clock"};
  }
  return {"clock", Health::kOk, "synchronised", ""};
}

std::string MebibytesText(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

Finding MemoryPlanFinding(const std::string& check, const absl::StatusOr<nlohmann::json>& trial) {
  // A machine without this trainer is not ill.
  if (!trial.ok()) return {check, Health::kUnknown, std::string(trial.status().message()), ""};
  if (trial->contains("error")) {
    return {check, Health::kError, trial->value("error", ""),
            "no model can be trained on this device: see the message"};
  }
  // Keys may be missing where the trainer is of another version.
  const auto number = [&](const char* key) { return trial->value(key, int64_t{0}); };
  Finding finding = {
      check, Health::kOk,
      absl::StrCat("a small model used ", MebibytesText(number("touched_bytes")), " of ",
                   MebibytesText(number("planned_bytes")), " in ", number("buffers"),
                   " planned buffers, and ", MebibytesText(number("outside_bytes")),
                   " outside them, where the plan allows ",
                   MebibytesText(number("most_outside_bytes"))),
      ""};
  const auto unused = trial->value("unused", std::vector<std::string>());
  if (!unused.empty()) {
    finding.health = Health::kWarning;
    absl::StrAppend(&finding.detail, "; ", absl::StrJoin(unused, "; "));
    finding.mend = "more memory is planned than is used: report this line as a bug";
  } else if (number("outside_bytes") > number("most_outside_bytes")) {
    // Plans reserve a fixed amount for what is beside the arena.
    finding.health = Health::kWarning;
    finding.mend = "plans leave too little memory free: give ranks less memory, or report a bug";
  }
  return finding;
}

std::vector<Finding> MachineFindings(const std::string& directory) {
  return {CheckProcessor(), CheckMemory(), CheckDisk(directory), CheckFileLimit(), CheckClock()};
}

}  // namespace tercio::cli
