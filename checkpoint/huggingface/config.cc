#include "checkpoint/huggingface/config.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/config_reader.h"
#include "checkpoint/huggingface/form.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

std::string SupportedTypes() {
  std::vector<std::string> types;
  for (const HuggingFaceForm* form : HuggingFaceForms()) {
    if (!plan::IsNamed(form->architecture)) continue;
    types.insert(types.end(), form->model_types.begin(), form->model_types.end());
  }
  return absl::StrJoin(types, ", ");
}

const char* TorchNameOf(FloatFormat format) {
  switch (format) {
    case FloatFormat::kF16:
      return "float16";
    case FloatFormat::kBF16:
      return "bfloat16";
    case FloatFormat::kF64:
      return "float64";
    case FloatFormat::kF32:
      break;
  }
  return "float32";
}

void SetDtype(FloatFormat format, nlohmann::ordered_json* json) {
  const char* const name = TorchNameOf(format);
  // transformers renamed the key; a file keeps the one that it has.
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (json->contains(key)) (*json)[key] = name;
  }
  if (!json->contains("dtype") && !json->contains("torch_dtype")) (*json)["torch_dtype"] = name;
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ModelOfHuggingFaceConfig(std::string_view text,
                                                       const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, ": not a JSON map"));
  ConfigReader config(json, path);
  const std::string type = config.TextOr("model_type", "");
  const HuggingFaceForm* const form = FindForm(type);
  v1::ModelSpec model;
  if (type.empty()) {
    config.Damaged("model_type is missing");
  } else if (form == nullptr || !plan::IsNamed(form->architecture)) {
    config.Unsupported(absl::StrCat("model_type: ", ConfigReader::Shown(type),
                                    " (supported: ", SupportedTypes(), ")"));
  } else {
    model = ReadHuggingFaceModel(*form, &config);
  }
  // Quantised weights have scales beside them, and are no numbers by themselves.
  if (config.Has("quantization_config")) config.Unsupported("quantization_config");
  TERCIO_RETURN_IF_ERROR(config.status());
  return model;
}

v1::ModelSpec ReadHuggingFaceModel(const HuggingFaceForm& form, ConfigReader* config) {
  v1::ModelSpec model;
  model.set_architecture(form.architecture);
  form.read(*config, &model);
  model.set_vocab_size(config->Size("vocab_size"));
  return model;
}

absl::Status CheckHasHuggingFaceForm(const v1::ModelSpec& model) {
  const HuggingFaceForm* const form = FindForm(model.architecture());
  if (form == nullptr || !plan::IsNamed(model.architecture())) {
    return absl::InvalidArgumentError(
        "export of this architecture is not supported by this version");
  }
  return form->check == nullptr ? absl::OkStatus() : form->check(model);
}

bool IsBaseModelConfig(std::string_view text, const v1::ModelSpec& model) {
  const HuggingFaceForm& form = FormOf(model);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return form.is_base != nullptr && json.is_object() && form.is_base(json);
}

std::string HuggingFaceConfig(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = FormOf(model).write(model);
  json["vocab_size"] = model.vocab_size();
  json["tie_word_embeddings"] = !model.untied_head();
  // transformers' own defaults are ids of the published vocabularies.
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (!json.contains(key)) json[key] = nullptr;
  }
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> ChangedHuggingFaceConfig(std::string_view original,
                                                     const v1::ModelSpec& model) {
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(original, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("the original config.json is not a JSON map");
  const HuggingFaceForm& form = FormOf(model);
  // The context is the one size that may differ from the model that training started from.
  if (json.contains(form.context_key) || model.context() != form.usual_context) {
    json[form.context_key] = model.context();
  }
  if (form.change != nullptr) form.change(model, &json);
  // Old files have the context under a second name, too.
  if (json.contains("n_ctx")) json["n_ctx"] = model.context();
  SetDtype(FloatFormat::kF32, &json);
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> WithDtype(std::string_view config, FloatFormat format) {
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("config.json is not a JSON map");
  SetDtype(format, &json);
  return json.dump(2) + "\n";
}

}  // namespace tercio::checkpoint
