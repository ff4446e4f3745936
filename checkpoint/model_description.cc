#include "checkpoint/model_description.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/huggingface/peft_names.h"
#include "checkpoint/megatron/arguments.h"
#include "checkpoint/megatron/directory.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "model/adapters.h"
#include "model/architectures/registry.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"
#include "plan/text_form.h"

namespace tercio::checkpoint {
namespace {

absl::StatusOr<v1::ModelSpec> ModelOfManifest(const std::string& text, const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  v1::ModelSpec model;
  // Only this key is read: the pieces of the tensors are most of a manifest, and no matter here.
  if (!json.is_object() || !json.contains("model") ||
      !plan::FromJson(json["model"].dump(), &model).ok()) {
    return absl::DataLossError(absl::StrCat(path, ": not the manifest of a Tercio checkpoint"));
  }
  // Files are not trusted, and callers divide by these numbers.
  TERCIO_RETURN_IF_ERROR(CheckPossibleModel(model, path));
  return model;
}

// JSON's shortest form reads back as the same number, and differs where numbers differ.
std::string Number(double value) { return nlohmann::json(value).dump(); }

std::string RopeScalingText(const v1::ModelSpec& model) {
  if (!model.has_rope_scaling()) return "none";
  const v1::RopeScaling& rope = model.rope_scaling();
  return absl::StrCat("{factor: ", Number(rope.factor()),
                      ", low_freq_factor: ", Number(rope.low_freq_factor()),
                      ", high_freq_factor: ", Number(rope.high_freq_factor()),
                      ", original_context: ", rope.original_context(), "}");
}

}  // namespace

absl::StatusOr<ModelFormat> FormatOfModel(const std::string& directory) {
  // A checkpoint counts first, whatever lies beside its manifest.
  if (PathExists(directory + "/manifest.json")) return ModelFormat::kCheckpoint;
  if (PathExists(directory + "/config.json")) return ModelFormat::kHuggingFace;
  if (IsMegatronDirectory(directory)) return ModelFormat::kMegatron;
  if (IsPeftAdapter(directory)) return ModelFormat::kPeft;
  return absl::NotFoundError(
      absl::StrCat(directory,
                   " is not a model: it has neither manifest.json (a Tercio checkpoint) nor "
                   "config.json (a Hugging Face directory) nor ",
                   kMegatronIterationFile, " (a Megatron-LM checkpoint) nor ", kPeftConfig,
                   " (an adapter of peft)"));
}

absl::StatusOr<std::string> DescriptionFile(const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(const ModelFormat format, FormatOfModel(directory));
  switch (format) {
    case ModelFormat::kCheckpoint:
      return directory + "/manifest.json";
    case ModelFormat::kHuggingFace:
      return directory + "/config.json";
    case ModelFormat::kPeft:
      return absl::StrCat(directory, "/", kPeftConfig);
    case ModelFormat::kMegatron:
      break;
  }
  TERCIO_ASSIGN_OR_RETURN(const MegatronFiles files, FindMegatronFiles(directory));
  return files.path(0, 0);
}

absl::StatusOr<v1::ModelSpec> DescribeModel(const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(const ModelFormat format, FormatOfModel(directory));
  v1::ModelSpec model;
  if (format == ModelFormat::kPeft) {
    TERCIO_ASSIGN_OR_RETURN(const std::string base, DirectoryOfPeftBase(directory));
    TERCIO_ASSIGN_OR_RETURN(model, DescribeModel(base));
    TERCIO_ASSIGN_OR_RETURN(const auto adapter, PeftAdapter::Open(directory, model));
    *model.mutable_adapter() = adapter->spec();
  } else if (format == ModelFormat::kMegatron) {
    TERCIO_ASSIGN_OR_RETURN(const MegatronFiles files, FindMegatronFiles(directory));
    TERCIO_ASSIGN_OR_RETURN(MegatronDescription description,
                            DescribeMegatronFiles(directory, files));
    model = std::move(description.model);
  } else {
    TERCIO_ASSIGN_OR_RETURN(const std::string path, DescriptionFile(directory));
    TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    TERCIO_ASSIGN_OR_RETURN(model, format == ModelFormat::kCheckpoint
                                       ? ModelOfManifest(text, path)
                                       : ModelOfHuggingFaceConfig(text, path));
  }
  // These belong to the job that reads the description.
  model.clear_from();
  model.clear_dropout();
  model.clear_base_format();
  return model;
}

namespace {

// Callers divide by these, and compute sizes of tensors from them.
bool HeadsFit(const v1::ModelSpec& model) {
  const int64_t head = model.head_dim() > 0 ? model.head_dim() : model.hidden() / model.heads();
  return (model.head_dim() > 0 || model.hidden() % model.heads() == 0) && model.head_dim() >= 0 &&
         model.rotary_dim() >= 0 && model.rotary_dim() <= head && model.rotary_dim() % 2 == 0 &&
         model.sliding_window() >= 0;
}

}  // namespace

absl::Status CheckPossibleModel(const v1::ModelSpec& model, const std::string& path) {
  const bool known = plan::IsNamed(model.architecture());
  // Zero key heads mean as many as query heads.
  const bool positive = model.layers() > 0 && model.hidden() > 0 && model.heads() > 0 &&
                        model.kv_heads() >= 0 && model.context() > 0 && model.ffn_hidden() > 0 &&
                        model.vocab_size() > 0 && model.decoder_layers() >= 0 &&
                        model.decoder_context() >= 0 && model.relative_buckets() >= 0 &&
                        model.relative_buckets() <= model::kMostRelativeBuckets &&
                        model.relative_distance() >= 0;
  const bool has_decoder = model::FactsOf(model.architecture()).Has("decoder_layers");
  // The sizes are positive by now, so nothing is divided by zero.
  if (known && positive && has_decoder == (model.decoder_layers() > 0) && HeadsFit(model) &&
      (model.kv_heads() == 0 || model.heads() % model.kv_heads() == 0)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(path, ": it describes an impossible model"));
}

namespace {

// Values that only some architectures have. What is left out is the usual.
template <typename Compare>
void CompareFurther(const v1::ModelSpec& model, const v1::ModelSpec& source,
                    const Compare& compare) {
  const auto sizes = [&](const char* key, int64_t ours, int64_t theirs) {
    compare(key, absl::StrCat(ours), absl::StrCat(theirs));
  };
  const auto numbers = [&](const char* key, double ours, double theirs) {
    compare(key, Number(ours), Number(theirs));
  };
  const auto activation = [](const v1::ModelSpec& spec) {
    return plan::TextOf(plan::IsNamed(spec.activation())
                            ? spec.activation()
                            : model::FactsOf(spec.architecture()).activation);
  };
  const auto head = [](const v1::ModelSpec& spec) {
    return spec.head_dim() > 0 ? spec.head_dim() : spec.hidden() / std::max(1, spec.heads());
  };
  const auto rotary = [&](const v1::ModelSpec& spec) {
    return spec.rotary_dim() > 0 ? spec.rotary_dim() : head(spec);
  };
  const auto scale = [&](const v1::ModelSpec& spec) {
    return spec.query_scale() > 0 ? spec.query_scale() : head(spec);
  };
  // These follow from sizes that are compared, too, and one fault is enough.
  const bool same_heads = model.hidden() == source.hidden() && model.heads() == source.heads();
  if (model.architecture() != source.architecture() || !same_heads) return;
  compare("activation", activation(model), activation(source));
  sizes("head_dim", head(model), head(source));
  if (head(model) == head(source)) {
    sizes("rotary_dim", rotary(model), rotary(source));
    numbers("query_scale", scale(model), scale(source));
  }
  sizes("sliding_window", model.sliding_window(), source.sliding_window());
  numbers("attention_softcap", model.attention_softcap(), source.attention_softcap());
  numbers("logit_softcap", model.logit_softcap(), source.logit_softcap());
  compare("sequential_residual", model.sequential_residual() ? "true" : "false",
          source.sequential_residual() ? "true" : "false");
  sizes("decoder_layers", model.decoder_layers(), source.decoder_layers());
  const model::RelativeBiasOptions usual;
  const auto or_usual = [](int64_t value, int64_t otherwise) {
    return value > 0 ? value : otherwise;
  };
  sizes("relative_buckets", or_usual(model.relative_buckets(), usual.buckets),
        or_usual(source.relative_buckets(), usual.buckets));
  sizes("relative_distance", or_usual(model.relative_distance(), usual.distance),
        or_usual(source.relative_distance(), usual.distance));
  compare("gated_mlp", model.gated_mlp() ? "true" : "false", source.gated_mlp() ? "true" : "false");
}

}  // namespace

// What an adapter is, but for what it drops and where it comes from.
std::string AdapterText(const v1::ModelSpec& model) {
  if (!model.has_adapter()) return "none";
  const v1::AdapterSpec& adapter = model.adapter();
  const std::vector<std::string> names = model::AdaptableNames(model::ArchitectureOf(model));
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    if (model::IsTarget(adapter, name)) targets.push_back(name);
  }
  return absl::StrCat("{kind: ", plan::TextOf(adapter.kind()), ", rank: ", adapter.rank(),
                      ", alpha: ", Number(adapter.alpha()),
                      ", rslora: ", adapter.rslora() ? "true" : "false", ", targets: [",
                      absl::StrJoin(targets, ", "), "]}");
}

std::vector<ModelDifference> DifferencesOf(const v1::ModelSpec& model,
                                           const v1::ModelSpec& source) {
  std::vector<ModelDifference> differences;
  const auto compare = [&](const char* key, const std::string& ours, const std::string& theirs) {
    if (ours != theirs) differences.push_back({key, ours, theirs});
  };
  // Values that are left out compare as their defaults: a job file and a manifest may differ in
  // that.
  const auto kv_heads = [](const v1::ModelSpec& spec) {
    return absl::StrCat(spec.kv_heads() > 0 ? spec.kv_heads() : spec.heads());
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  const auto eps = [](const v1::ModelSpec& spec) {
    return Number(spec.norm_eps() > 0 ? spec.norm_eps()
                                      : model::FactsOf(spec.architecture()).norm_eps);
  };
  const auto theta = [](const v1::ModelSpec& spec) {
    if (model::FactsOf(spec.architecture()).rope_theta == 0) return std::string("none");
    return Number(spec.rope_theta() > 0 ? spec.rope_theta() : 10000.0);
  };
  compare("architecture", plan::TextOf(model.architecture()), plan::TextOf(source.architecture()));
  compare("layers", absl::StrCat(model.layers()), absl::StrCat(source.layers()));
  compare("hidden", absl::StrCat(model.hidden()), absl::StrCat(source.hidden()));
  compare("heads", absl::StrCat(model.heads()), absl::StrCat(source.heads()));
  compare("kv_heads", kv_heads(model), kv_heads(source));
  compare("ffn_hidden", absl::StrCat(model.ffn_hidden()), absl::StrCat(source.ffn_hidden()));
  compare("bias", flag(model.bias()), flag(source.bias()));
  compare("tied_head", flag(!model.untied_head()), flag(!source.untied_head()));
  compare("norm_eps", eps(model), eps(source));
  compare("rope_theta", theta(model), theta(source));
  compare("rope_scaling", RopeScalingText(model), RopeScalingText(source));
  CompareFurther(model, source, compare);
  compare("vocab_size", absl::StrCat(model.vocab_size()), absl::StrCat(source.vocab_size()));
  compare("norm", plan::TextOf(model.norm()), plan::TextOf(source.norm()));
  compare("token_types", absl::StrCat(model.token_types()), absl::StrCat(source.token_types()));
  // A task may be changed, so the number of classes only matters between classifiers.
  if (model.labels() > 0 && source.labels() > 0) {
    compare("labels", absl::StrCat(model.labels()), absl::StrCat(source.labels()));
  }
  // A shorter context uses the first rows of the position table, a longer one has none.
  if (model.context() > source.context()) {
    differences.push_back(
        {"context", absl::StrCat(model.context()), absl::StrCat("only ", source.context())});
  }
  // A model without adapters gets new ones.
  if (source.has_adapter()) compare("adapter", AdapterText(model), AdapterText(source));
  return differences;
}

}  // namespace tercio::checkpoint
