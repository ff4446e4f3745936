#include "worker/trainer/out_of_memory_score.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace tercio::trainer {

void SetOutOfMemoryScore(int score) {
  const std::string text = absl::StrCat(score);
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    LogWarning(absl::StrCat("cannot set the out-of-memory score of this process to ", score, ": ",
                            std::strerror(errno)));
  }
  if (file >= 0) close(file);
}

}  // namespace tercio::trainer
