#include "config/data_section.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tercio::config {
namespace {

using Blend = google::protobuf::RepeatedPtrField<v1::WeightedData>;

constexpr size_t kMostDatasets = 256;
constexpr char kForms[] =
    "expected a path, a list of paths (one data set in parts), or a list of {path, weight}";

std::string Resolve(const std::string& directory, const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  return (std::filesystem::path(directory) / path).lexically_normal().string();
}

class DataParser {
 public:
  DataParser(const std::string& directory, Faults* faults)
      : directory_(directory), faults_(faults) {}

  // A list under `key` of the section.
  void ParseList(const YAML::Node& list, const std::string& key, Blend* out) {
    if (list.size() == 0 || list.size() > kMostDatasets) {
      Fault(list, key,
            absl::StrCat("a list of ", list.size(), " data sets; expected 1 to ", kMostDatasets));
      return;
    }
    const bool plain =
        std::all_of(list.begin(), list.end(), [](const YAML::Node& n) { return n.IsScalar(); });
    if (plain) {
      v1::WeightedData* data = out->Add();
      data->set_weight(1);
      ParsePaths(list, key, data);
      return;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = absl::StrCat(key, "[", i, "]");
      if (!list[i].IsMap()) {
        Fault(list[i], place, "expected {path, weight} like the others in this list");
        continue;
      }
      ParseWeighted(Section(list[i], place, faults_), place, out->Add());
    }
  }

 private:
  void ParseWeighted(Section data, const std::string& place, v1::WeightedData* out) {
    const YAML::Node path = data.Get("path");
    if (!path.IsDefined()) {
      data.Fault("path", "missing; a data set of a blend needs it");
    } else if (path.IsScalar() || path.IsSequence()) {
      ParsePaths(path, place + ".path", out);
    } else {
      data.Fault("path", "expected a path or a list of paths");
    }
    double weight = 0;
    const YAML::Node given = data.Get("weight");
    if (!given.IsDefined()) {
      data.Fault("weight", "missing; a data set of a blend needs its share of the samples");
    } else if (!given.IsScalar() || !YAML::convert<double>::decode(given, weight) ||
               !std::isfinite(weight) || weight <= 0) {
      data.Fault("weight", absl::StrCat(given.IsScalar() ? given.Scalar() : "a list or map",
                                        " is not a positive number; leave the data set out to ",
                                        "give it no share"));
    }
    out->set_weight(weight);
    data.Finish();
  }

  void ParsePaths(const YAML::Node& node, const std::string& place, v1::WeightedData* out) {
    if (node.IsScalar()) {
      AddPath(node, place, out);
      return;
    }
    if (node.size() == 0) Fault(node, place, "an empty list; name at least one file");
    for (const YAML::Node& path : node) {
      if (path.IsScalar()) {
        AddPath(path, place, out);
      } else {
        Fault(path, place, "expected paths");
      }
    }
  }

  void AddPath(const YAML::Node& node, const std::string& place, v1::WeightedData* out) {
    if (node.Scalar().empty()) Fault(node, place, "an empty path");
    out->add_paths(Resolve(directory_, node.Scalar()));
  }

  void Fault(const YAML::Node& node, const std::string& place, const std::string& what) {
    faults_->Add(node.Mark().line + 1, place, what);
  }

  const std::string& directory_;
  Faults* faults_;
};

bool IsText(const std::string& path) {
  return absl::EndsWith(path, ".txt") || absl::EndsWith(path, ".jsonl");
}

bool AnyText(const std::string& path, const Blend& blend) {
  return IsText(path) || std::any_of(blend.begin(), blend.end(), [](const v1::WeightedData& data) {
           return std::any_of(data.paths().begin(), data.paths().end(), IsText);
         });
}

// `model` is where the weights come from, which have a tokenizer; empty: random weights.
void ParseTokenizer(Section* data, const std::string& directory, const std::string& model,
                    v1::DataSpec* out) {
  const bool text = AnyText(out->train(), out->train_blend()) ||
                    AnyText(out->validation_path(), out->validation_blend());
  const std::string usual = model.empty() ? "bytes" : model;
  const std::string tokenizer = data->Text("tokenizer", text ? usual : "");
  const bool path = !tokenizer.empty() && tokenizer != "bytes" && tokenizer != "chars";
  out->set_tokenizer(path ? Resolve(directory, tokenizer) : tokenizer);
}

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string BlendYaml(const Blend& blend) {
  std::string yaml;
  for (const v1::WeightedData& data : blend) {
    std::string paths;
    for (const std::string& path : data.paths()) {
      absl::StrAppend(&paths, paths.empty() ? "" : ", ", Quoted(path));
    }
    absl::StrAppend(&yaml, "\n    - {path: [", paths,
                    "], weight: ", nlohmann::json(data.weight()).dump(), "}");
  }
  return yaml;
}

}  // namespace

void ParseData(Section data, const std::string& directory, const std::string& model, Faults* faults,
               v1::DataSpec* out) {
  DataParser parser(directory, faults);
  const YAML::Node train = data.Get("train");
  if (!train.IsDefined()) {
    data.Fault("train", "missing; name a .txt or .jsonl file, a Megatron PREFIX or an llm.c .bin");
  } else if (train.IsSequence()) {
    parser.ParseList(train, "data.train", out->mutable_train_blend());
  } else if (train.IsMap()) {
    data.Fault("train", kForms);
  } else {
    out->set_train(Resolve(directory, data.Text("train", "")));
    if (out->train().empty()) data.Fault("train", "an empty path");
  }
  const YAML::Node validation = data.Get("validation");
  double fraction = 0;
  if (validation.IsDefined() && validation.IsScalar() &&
      YAML::convert<double>::decode(validation, fraction)) {
    out->set_validation_fraction(data.Number("validation", 0, 0, 0.999));
  } else if (validation.IsDefined() && validation.IsSequence()) {
    parser.ParseList(validation, "data.validation", out->mutable_validation_blend());
  } else if (validation.IsDefined() && validation.IsMap()) {
    data.Fault("validation", absl::StrCat(kForms, ", or a fraction"));
  } else if (validation.IsDefined()) {
    out->set_validation_path(Resolve(directory, data.Text("validation", "")));
  }
  ParseTokenizer(&data, directory, model, out);
  out->set_text_key(data.Text("text_key", "text"));
  if (out->text_key().empty()) data.Fault("text_key", "an empty key");
  out->set_skip_bad_lines(data.Flag("skip_bad_lines", false));
  data.Finish();
}

std::string DataYaml(const v1::DataSpec& data) {
  std::string yaml =
      absl::StrCat("data:\n  train: ", data.train_blend().empty() ? Quoted(data.train())
                                                                  : BlendYaml(data.train_blend()));
  if (!data.validation_blend().empty()) {
    absl::StrAppend(&yaml, "\n  validation: ", BlendYaml(data.validation_blend()));
  } else if (!data.validation_path().empty()) {
    absl::StrAppend(&yaml, "\n  validation: ", Quoted(data.validation_path()));
  } else if (data.validation_fraction() > 0) {
    absl::StrAppend(&yaml, "\n  validation: ", nlohmann::json(data.validation_fraction()).dump());
  }
  if (!data.tokenizer().empty())
    absl::StrAppend(&yaml, "\n  tokenizer: ", Quoted(data.tokenizer()));
  if (!data.text_key().empty()) absl::StrAppend(&yaml, "\n  text_key: ", Quoted(data.text_key()));
  absl::StrAppend(&yaml, "\n  skip_bad_lines: ", data.skip_bad_lines() ? "true" : "false", "\n");
  return yaml;
}

}  // namespace tercio::config
