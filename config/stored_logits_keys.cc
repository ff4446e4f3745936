#include "config/stored_logits_keys.h"

#include "absl/strings/str_cat.h"
#include "checkpoint/logits/header.h"
#include "nlohmann/json.hpp"

namespace tercio::config {
namespace {

constexpr int64_t kMostLogits = int64_t{1} << 20;

}  // namespace

void ParseStoredLogits(Section& distillation, const std::string& directory,
                       v1::DistillationSpec* out) {
  const int64_t given = distillation.Integer("top_k", 0, 1, kMostLogits);
  if (!distillation.Has("logits")) {
    if (given > 0) {
      distillation.Fault("top_k", "only stored logits (logits) have it; leave it out");
    }
    return;
  }
  const std::string path = ResolvePath(distillation.Text("logits", ""), directory);
  out->set_logits(path);
  out->set_top_k(static_cast<int32_t>(given));
  const absl::StatusOr<checkpoint::LogitsHeader> header = checkpoint::ReadLogitsHeader(path);
  // Where only nodes can see the directory, they do the comparison.
  if (absl::IsNotFound(header.status()) && given > 0) return;
  if (!header.ok()) {
    distillation.Fault("logits", std::string(header.status().message()));
    return;
  }
  if (given > 0 && given != header->k) {
    distillation.Fault("top_k", absl::StrCat(given, ", but the logits in ", path, " have ",
                                             header->k, " of each token; leave it out"));
  }
  out->set_top_k(static_cast<int32_t>(header->k));
  // No more of the teacher is known, nor needed.
  out->mutable_model()->set_vocab_size(static_cast<int32_t>(header->subject.vocabulary));
}

std::string StoredLogitsYaml(const v1::DistillationSpec& spec) {
  if (spec.logits().empty()) return "";
  return absl::StrCat("logits: ", nlohmann::json(spec.logits()).dump(), ", top_k: ", spec.top_k());
}

}  // namespace tercio::config
