#include "checkpoint/megatron/rank_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/names.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

constexpr int kNewestVersion = 3;
// Megatron-LM nests its maps three deep. The bounds end a walk through maps that contain each
// other.
constexpr int kDeepestMap = 6;
constexpr int kMostMembers = 1 << 20;

std::string EscapedName(const std::string& name) {
  return absl::Utf8SafeCEscape(name.substr(0, 200));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MegatronRank>> MegatronRank::Open(const std::string& path) {
  auto rank = std::make_unique<MegatronRank>();
  TERCIO_ASSIGN_OR_RETURN(rank->file_, TorchFile::Open(path));
  TERCIO_RETURN_IF_ERROR(rank->ReadHeader());
  TERCIO_RETURN_IF_ERROR(rank->ReadChunks());
  return rank;
}

absl::Status MegatronRank::ReadHeader() {
  const PickleValue& root = file_->root();
  if (root.kind() != PickleValue::Kind::kMap) {
    return absl::DataLossError(absl::StrCat(path(), ": not a checkpoint of Megatron-LM"));
  }
  // The first checkpoints had no version, which Megatron-LM takes for 0.
  if (const PickleValue* version = root.Find("checkpoint_version"); version != nullptr) {
    double number = -1;
    if (version->kind() == PickleValue::Kind::kReal) number = version->real();
    if (version->kind() == PickleValue::Kind::kInteger) {
      number = static_cast<double>(version->integer());
    }
    for (version_ = kNewestVersion; version_ >= 0 && number != version_;) --version_;
    if (version_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path(), ": checkpoint_version ", number,
                       " is not supported by this version, which reads 0, 1, 2 and 3"));
    }
  }
  for (const char* key : {"total_iters", "iteration"}) {
    const PickleValue* iteration = root.Find(key);
    if (iteration != nullptr && iteration->kind() == PickleValue::Kind::kInteger) {
      iteration_ = iteration->integer();
    }
  }
  has_optimizer_ = root.Find("optimizer") != nullptr;
  const PickleValue* args = root.Find("args");
  if (args != nullptr && args->kind() == PickleValue::Kind::kObject) args_ = args;
  return absl::OkStatus();
}

absl::Status MegatronRank::ReadChunks() {
  const PickleValue& root = file_->root();
  // Virtual pipeline stages have a number each.
  for (int chunk = -1;; ++chunk) {
    const std::string key = chunk < 0 ? "model" : absl::StrCat("model", chunk);
    const PickleValue* model = root.Find(key);
    if (model == nullptr && chunk < 0) continue;
    if (model == nullptr) break;
    if (model->kind() != PickleValue::Kind::kMap) {
      return absl::DataLossError(absl::StrCat(path(), ": '", key, "' is not a map of tensors"));
    }
    TERCIO_RETURN_IF_ERROR(Flatten(*model, "", 0, &chunks_.emplace_back()));
    if (chunk < 0) break;
  }
  if (!chunks_.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path(), ": has no 'model', so it is not a checkpoint of Megatron-LM"));
}

absl::Status MegatronRank::Flatten(const PickleValue& map, const std::string& prefix, int depth,
                                   MegatronChunk* chunk) {
  for (const auto& [key, value] : map.members()) {
    if (key.kind() != PickleValue::Kind::kText || depth > kDeepestMap ||
        ++members_ > kMostMembers) {
      return absl::DataLossError(
          absl::StrCat(path(), ": '", EscapedName(prefix), "' is not a map of tensors"));
    }
    const std::string stored = absl::StrCat(prefix, key.text());
    if (value.kind() == PickleValue::Kind::kMap) {
      TERCIO_RETURN_IF_ERROR(Flatten(value, stored + ".", depth + 1, chunk));
      continue;
    }
    const std::string plain = MegatronPlainName(stored);
    if (IsIgnoredByMegatron(plain)) continue;
    if (value.kind() != PickleValue::Kind::kTensor) {
      return absl::DataLossError(
          absl::StrCat(path(), ": '", EscapedName(stored), "' is not a tensor"));
    }
    const auto [at, added] = chunk->emplace(plain, MegatronStored{stored, &value.tensor()});
    if (!added) {
      return absl::DataLossError(absl::StrCat(path(), ": '", EscapedName(stored), "' and '",
                                              EscapedName(at->second.name),
                                              "' are the same tensor"));
    }
  }
  return absl::OkStatus();
}

int64_t LayersOf(const MegatronChunk& chunk) {
  int64_t layers = 0;
  for (const auto& [name, stored] : chunk) {
    layers = std::max(layers, LayerOfMegatronName(name) + 1);
  }
  return layers;
}

}  // namespace tercio::checkpoint
