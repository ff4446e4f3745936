#include "worker/agent/runs/allowed_paths.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::agent {
namespace {

namespace fs = std::filesystem;

// All files that a path may stand for: itself, the files of a Megatron data set, and the matches of
// a pattern.
std::vector<std::string> StandsFor(const std::string& path) {
  std::vector<std::string> found = {path};
  // Jobs name a Megatron data set without its endings.
  for (const char* end : {".bin", ".idx"}) {
    std::error_code error;
    if (fs::exists(path + end, error)) found.push_back(path + end);
  }
  // Matches are checked one by one, since each may be a link that leads out of the roots.
  glob_t names = {};
  if (glob(path.c_str(), GLOB_NOSORT, nullptr, &names) == 0) {
    found.insert(found.end(), names.gl_pathv, names.gl_pathv + names.gl_pathc);
  }
  globfree(&names);
  return found;
}

// Without the slash, /data would allow /database, too.
std::string WithSlash(std::string path) {
  if (!path.ends_with('/')) path += '/';
  return path;
}

}  // namespace

absl::StatusOr<AllowedPaths> AllowedPaths::Under(const std::vector<std::string>& roots) {
  AllowedPaths allowed;
  allowed.any_ = false;
  for (const std::string& root : roots) {
    std::error_code error;
    // Paths are compared when all their links are resolved, so roots have to be resolved as well.
    const fs::path real = fs::canonical(root, error);
    if (error || !fs::is_directory(real, error)) {
      return absl::InvalidArgumentError(absl::StrCat("--data-root ", root, " is not a directory"));
    }
    allowed.roots_.push_back(WithSlash(real.string()));
  }
  return allowed;
}

AllowedPaths AllowedPaths::Again(bool any, std::vector<std::string> roots) {
  AllowedPaths allowed;
  allowed.any_ = any;
  allowed.roots_ = std::move(roots);
  return allowed;
}

bool AllowedPaths::IsInside(const std::string& path) const {
  std::error_code error;
  // For a path that does not exist, the part that exists counts.
  const fs::path real = fs::weakly_canonical(path, error);
  if (error) return false;
  return std::any_of(roots_.begin(), roots_.end(), [&](const std::string& root) {
    return WithSlash(real.string()).starts_with(root);
  });
}

// Tokenizers and models are directories of files, some of which may be links.
bool AllowedPaths::AllInside(const std::string& path) const {
  if (!IsInside(path)) return false;
  std::error_code error;
  if (!fs::is_directory(path, error)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (!IsInside(entry.path().string())) return false;
  }
  return true;
}

absl::Status AllowedPaths::CheckPath(const std::string& key, const std::string& path) const {
  if (path.empty()) return absl::OkStatus();
  const std::vector<std::string> all = StandsFor(path);
  if (std::all_of(all.begin(), all.end(), [this](const auto& one) { return AllInside(one); })) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      key, ": ", path,
      " is outside the directories that jobs may read on this node (--data-root of its agent)"));
}

absl::Status AllowedPaths::Check(const v1::JobSpec& spec) const {
  if (any_) return absl::OkStatus();
  const v1::DataSpec& data = spec.data();
  TERCIO_RETURN_IF_ERROR(CheckPath("data.train", data.train()));
  TERCIO_RETURN_IF_ERROR(CheckPath("data.validation", data.validation_path()));
  for (const auto& [key, blend] : {std::pair{"data.train", &data.train_blend()},
                                   std::pair{"data.validation", &data.validation_blend()}}) {
    for (const v1::WeightedData& part : *blend) {
      for (const std::string& path : part.paths()) TERCIO_RETURN_IF_ERROR(CheckPath(key, path));
    }
  }
  TERCIO_RETURN_IF_ERROR(CheckPath("data.test", data.test_path()));
  for (const std::string& path : data.test_more_paths()) {
    TERCIO_RETURN_IF_ERROR(CheckPath("data.test", path));
  }
  // These two are built in. Everything else is a path, even a single word.
  if (data.tokenizer() != "bytes" && data.tokenizer() != "chars") {
    TERCIO_RETURN_IF_ERROR(CheckPath("data.tokenizer", data.tokenizer()));
  }
  TERCIO_RETURN_IF_ERROR(CheckPath("model.from", spec.model().from()));
  const v1::DistillationSpec& distillation = spec.training().distillation();
  TERCIO_RETURN_IF_ERROR(CheckPath("training.distillation.teacher", distillation.teacher()));
  TERCIO_RETURN_IF_ERROR(CheckPath("training.distillation.logits", distillation.logits()));
  for (const auto& [key, path] : {std::pair{"tensorboard", &spec.tensorboard()},
                                  std::pair{"checkpoint.path", &spec.checkpoint().path()}}) {
    // These are written: they need not exist yet, and a pattern has no meaning in them.
    if (path->empty() || IsInside(*path)) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        key, ": ", *path,
        " is outside the directories that jobs may write on this node (--data-root of its agent)"));
  }
  return absl::OkStatus();
}

}  // namespace tercio::agent
