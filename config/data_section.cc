#include "config/data_section.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "data/chat/template_names.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"
#include "plan/span_lengths.h"

namespace tercio::config {
namespace {

// Train and validation may be blends of the same form, and share their code.
using Blend = google::protobuf::RepeatedPtrField<v1::WeightedData>;

// More are most likely a mistake of the script that has written the file.
constexpr size_t kMostDatasets = 256;
// One text for both keys, so that they describe the same forms.
constexpr char kForms[] =
    "expected a path, a list of paths (one data set in parts), or a list of {path, weight}";
// A test is one data set: a mean over several by weights would be no figure of any of them.
constexpr char kTestForms[] = "expected a path, or a list of paths (one data set in parts)";

std::string Resolve(const std::string& directory, const std::string& path) {
  // Paths are resolved on the machine of the job file; the nodes see them absolute.
  if (path.empty() || path[0] == '/') return path;
  return (std::filesystem::path(directory) / path).lexically_normal().string();
}

class DataParser {
 public:
  DataParser(const std::string& directory, Faults* faults)
      : directory_(directory), faults_(faults) {}

  // A list under `key` of the section.
  void ParseList(const YAML::Node& list, const std::string& key, Blend* out) {
    // The size is checked before anything is read, so that a long list causes one fault.
    if (list.size() == 0 || list.size() > kMostDatasets) {
      Fault(list, key,
            absl::StrCat("a list of ", list.size(), " data sets; expected 1 to ", kMostDatasets));
      return;
    }
    // A list of paths is one data set in parts, without a weight; a single map makes it a blend.
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

  // The one data set of data.test, a path or a list of paths.
  void ParseTest(Section* data, v1::DataSpec* out) {
    const YAML::Node test = data->Get("test");
    if (!test.IsDefined()) return;
    double fraction = 0;
    const bool number = test.IsScalar() && YAML::convert<double>::decode(test, fraction);
    const auto is_path = [](const YAML::Node& node) { return node.IsScalar(); };
    if (number || test.IsMap() ||
        (test.IsSequence() && !std::all_of(test.begin(), test.end(), is_path))) {
      Fault(test, "data.test",
            absl::StrCat(kTestForms, number ? "; only data.validation may be a fraction" : ""));
      return;
    }
    v1::WeightedData parts;
    ParsePaths(test, "data.test", &parts);
    for (const std::string& path : parts.paths()) {
      if (out->test_path().empty()) {
        out->set_test_path(path);
      } else {
        out->add_test_more_paths(path);
      }
    }
  }

 private:
  void ParseWeighted(Section data, const std::string& place, v1::WeightedData* out) {
    const YAML::Node path = data.Get("path");
    // Each data set is read to its end, so that all of its faults are reported.
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
      // A weight of 0 would be a data set that nobody reads but everybody checks.
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
    // An empty list would be a data set without samples.
    if (node.size() == 0) Fault(node, place, "empty; name at least one file");
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
    // yaml-cpp counts lines from 0, editors from 1.
    faults_->Add(node.Mark().line + 1, place, what);
  }

  const std::string& directory_;
  Faults* faults_;
};

// The extension decides: no file is opened here. Tables are texts for a classifier only: for a
// language model the name says nothing of what is in them.
bool IsText(const std::string& path, const v1::ModelSpec& model) {
  const bool table = absl::EndsWith(path, ".csv") || absl::EndsWith(path, ".tsv");
  return absl::EndsWith(path, ".txt") || absl::EndsWith(path, ".jsonl") ||
         (table && model.labels() > 0);
}

bool AnyText(const v1::DataSpec& data, const v1::ModelSpec& model) {
  std::vector<std::string> paths = {data.train(), data.validation_path(), data.test_path()};
  paths.insert(paths.end(), data.test_more_paths().begin(), data.test_more_paths().end());
  for (const Blend* blend : {&data.train_blend(), &data.validation_blend()}) {
    for (const v1::WeightedData& part : *blend) {
      paths.insert(paths.end(), part.paths().begin(), part.paths().end());
    }
  }
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return IsText(path, model); });
}

// The weights that a model starts from come with a tokenizer.
void ParseTokenizer(Section* data, const std::string& directory, const v1::ModelSpec& model,
                    v1::DataSpec* out) {
  // Tokenised formats have their ids already; a tokenizer is needed for text only.
  const bool text = AnyText(*out, model);
  const std::string usual =
      model.from().empty() ? "bytes" : checkpoint::TokenizerDirectoryOf(model.from());
  if (text && !model::ArchitectureOf(model).causal && model.from().empty() &&
      !data->Has("tokenizer") && !data->Has("special_tokens")) {
    data->Fault("tokenizer",
                "missing; bert needs one with [CLS], [SEP], [MASK] and [PAD]: name "
                "a vocab.txt or tokenizer.json");
  }
  const std::string tokenizer = data->Text("tokenizer", text ? usual : "");
  // Two names stand for tokenizers that need no file.
  const bool path = !tokenizer.empty() && tokenizer != "bytes" && tokenizer != "chars";
  out->set_tokenizer(path ? Resolve(directory, tokenizer) : tokenizer);
}

// The kind of model, which determines which keys the section may have.
struct ModelKind {
  explicit ModelKind(const v1::ModelSpec& model)
      : architecture(plan::TextOf(model.architecture())),
        bert(!model::ArchitectureOf(model).causal),
        spans(model::ArchitectureOf(model).streams.size() > 1),
        labelled(bert && model.labels() > 0) {}

  std::string architecture;
  bool bert;
  bool spans;  // t5
  bool labelled;
};

void ParseMasking(Section* data, const ModelKind& kind, v1::DataSpec* out) {
  // A key that has no effect would promise something else than what happens.
  if ((!kind.bert && !kind.spans) || kind.labelled) {
    if (data->Has("masking")) {
      data->Fault("masking", kind.bert
                                 ? "a classifier (model.labels) does not mask tokens; leave it out"
                                 : absl::StrCat("only bert and t5 mask tokens, ", kind.architecture,
                                                " does not; leave it out"));
    }
    return;
  }
  Section masking = data->Child("masking");
  v1::MaskingSpec* spec = out->mutable_masking();
  // 15 % is what Devlin et al. 2019 and Raffel et al. 2020 mask.
  spec->set_probability(
      masking.Number("probability", plan::kUsualMaskingProbability, 0.001, 0.999));
  // A key of the other model would have no effect.
  const char* const other = kind.spans ? "whole_word" : "mean_span";
  if (masking.Has(other)) {
    masking.Fault(other, kind.spans ? "only bert masks whole words; leave it out"
                                    : "only t5 masks spans; leave it out");
  }
  if (kind.spans) {
    spec->set_mean_span(masking.Number("mean_span", plan::kUsualMeanSpan, 1, 1e6));
  } else {
    spec->set_whole_word(masking.Flag("whole_word", false));
  }
  masking.Finish();
}

void ParseSpecialTokens(Section* data, const ModelKind& kind, v1::DataSpec* out) {
  if (!data->Has("special_tokens")) return;
  if (!kind.bert && !kind.spans) {
    data->Fault("special_tokens", absl::StrCat("only bert and t5 have special tokens, ",
                                               kind.architecture, " does not; leave them out"));
    return;
  }
  Section special = data->Child("special_tokens");
  const auto id = [&](const char* key) {
    // All four are needed: training with a guessed id would look right for a long time.
    if (!special.Has(key)) {
      special.Fault(key, kind.spans ? "missing; name all of pad, eos, first_sentinel and sentinels"
                                    : "missing; name all of cls, sep, mask and pad");
    }
    return static_cast<int32_t>(special.Integer(key, 0, 0, (1 << 30) - 1));
  };
  v1::SpecialTokens* spec = out->mutable_special_tokens();
  spec->set_pad(id("pad"));
  if (kind.spans) {
    spec->set_eos(id("eos"));
    spec->set_first_sentinel(id("first_sentinel"));
    spec->set_sentinels(id("sentinels"));
  } else {
    spec->set_cls(id("cls"));
    spec->set_sep(id("sep"));
    spec->set_mask(id("mask"));
  }
  special.Finish();
}

void ParseKeys(Section* data, const ModelKind& kind, v1::DataSpec* out) {
  // A missing key is usual; an empty one can only be a mistake.
  const auto key = [data](const char* name, const char* usual) {
    const std::string value = data->Text(name, usual);
    if (value.empty()) data->Fault(name, "an empty key");
    return value;
  };
  out->set_text_key(key("text_key", "text"));
  if (kind.labelled) {
    out->set_text_pair_key(key("text_pair_key", "text_pair"));
    out->set_label_key(key("label_key", "label"));
    // One column cannot be the text and its label.
    const std::set<std::string> distinct = {out->text_key(), out->text_pair_key(),
                                            out->label_key()};
    if (distinct.size() < 3) {
      data->Fault("label_key", "text_key, text_pair_key and label_key must differ");
    }
    return;
  }
  // These keys are known, so that the message can say where they belong.
  for (const char* name : {"text_pair_key", "label_key"}) {
    if (!data->Has(name)) continue;
    data->Fault(name, absl::StrCat("only a classifier (architecture bert with model.labels) has ",
                                   "labelled texts; leave it out"));
  }
}

// The form of a line that the objective learns from.
v1::AnswerForm AnswersOf(v1::TrainingObjective objective) {
  switch (objective) {
    case v1::TRAINING_OBJECTIVE_DPO:
    case v1::TRAINING_OBJECTIVE_ORPO:
      return v1::ANSWER_FORM_PAIR;
    case v1::TRAINING_OBJECTIVE_KTO:
      return v1::ANSWER_FORM_LABELLED;
    case v1::TRAINING_OBJECTIVE_SFT:
    case v1::TRAINING_OBJECTIVE_PRETRAIN:
    case v1::TRAINING_OBJECTIVE_DISTILL:
    case v1::TRAINING_OBJECTIVE_UNSPECIFIED:
    case v1::TrainingObjective_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::TrainingObjective_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return v1::ANSWER_FORM_UNSPECIFIED;
}

// Conversations are read line by line.
void CheckChatFiles(Section* data, v1::TrainingObjective objective, const v1::DataSpec& spec) {
  const bool sft = AnswersOf(objective) == v1::ANSWER_FORM_UNSPECIFIED;
  const auto check = [&](const char* key, const std::string& path) {
    if (path.empty() || absl::EndsWith(path, ".jsonl")) return;
    data->Fault(key, absl::StrCat(path, ": training.objective: ", plan::TextOf(objective),
                                  " learns from .jsonl files, a ",
                                  sft ? "conversation a line (docs/chat.md)"
                                      : "prompt and its answers a line (docs/preference.md)"));
  };
  const auto check_blend = [&](const char* key, const Blend& blend) {
    for (const v1::WeightedData& part : blend) {
      for (const std::string& path : part.paths()) check(key, path);
    }
  };
  check("train", spec.train());
  check_blend("train", spec.train_blend());
  check("validation", spec.validation_path());
  check_blend("validation", spec.validation_blend());
  check("test", spec.test_path());
  for (const std::string& path : spec.test_more_paths()) check("test", path);
}

void ParseChat(Section* data, const ModelKind& kind, v1::TrainingObjective objective,
               v1::DataSpec* out) {
  // A teacher is asked about texts, unless the job says how conversations are written.
  const bool sft = objective == v1::TRAINING_OBJECTIVE_SFT ||
                   (objective == v1::TRAINING_OBJECTIVE_DISTILL && data->Has("template"));
  const v1::AnswerForm answers = AnswersOf(objective);
  const bool compares = answers != v1::ANSWER_FORM_UNSPECIFIED;
  // A key that has no effect would promise something else than what happens.
  for (const char* key : {"template", "loss_on", "format", "packing"}) {
    if (!data->Has(key) || sft) continue;
    if (compares && key == std::string_view("template")) continue;
    data->Fault(key, compares ? "only training.objective: sft has a choice; leave it out"
                              : "only training.objective: sft learns from conversations, and "
                                "distill where data.template is named; leave it out");
  }
  if (!sft && !compares) return;
  if (kind.bert || kind.spans) {
    data->Fault("train", absl::StrCat("training.objective: ", plan::TextOf(objective),
                                      " needs a decoder such as gpt2 or llama; ", kind.architecture,
                                      " predicts no answers"));
  }
  v1::ChatSpec* chat = out->mutable_chat();
  std::vector<std::string> templates = {"auto"};
  for (const std::string_view name : data::chat::TemplateNames()) templates.emplace_back(name);
  chat->set_template_(data->OneOf("template", "auto", templates));
  CheckChatFiles(data, objective, *out);
  chat->set_answers(answers);
  if (compares) return;
  chat->set_loss_on(data->OneOf("loss_on", v1::LOSS_ON_ASSISTANT));
  chat->set_format(data->OneOf("format", v1::CHAT_FORMAT_AUTO));
  chat->set_packing(data->Flag("packing", false));
}

// JSON texts are YAML, with everything escaped that needs it.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string BlendYaml(const Blend& blend) {
  std::string yaml;
  for (const v1::WeightedData& data : blend) {
    std::string paths;
    for (const std::string& path : data.paths()) {
      absl::StrAppend(&paths, paths.empty() ? "" : ", ", Quoted(path));
    }
    // Weights are written with all digits: another blend would be another order of samples.
    absl::StrAppend(&yaml, "\n    - {path: [", paths,
                    "], weight: ", nlohmann::json(data.weight()).dump(), "}");
  }
  return yaml;
}

}  // namespace

void ParseData(Section data, const std::string& directory, const v1::ModelSpec& model, DataUse use,
               Faults* faults, v1::DataSpec* out) {
  DataParser parser(directory, faults);
  // The node is asked for, not its text: the key has several forms.
  const YAML::Node train = data.Get("train");
  if (!train.IsDefined()) {
    // A job that only evaluates reads its test data and no other.
    if (use.training_data == TrainingData::kRequired || !data.Has("test")) {
      data.Fault("train",
                 "missing; name a .txt or .jsonl file, a Megatron PREFIX or an llm.c .bin");
    }
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
  // A number is a share of the training data; a path that looks like one can be written ./0.1.
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
  parser.ParseTest(&data, out);
  // The tokenizer depends on the formats of all, so it follows them.
  ParseTokenizer(&data, directory, model, out);
  const ModelKind kind(model);
  ParseKeys(&data, kind, out);
  // Lines that cannot be read stop a job unless this is asked for.
  out->set_skip_bad_lines(data.Flag("skip_bad_lines", false));
  ParseMasking(&data, kind, out);
  ParseSpecialTokens(&data, kind, out);
  ParseChat(&data, kind, use.objective, out);
  data.Finish();
}

std::string DataYaml(const v1::DataSpec& data) {
  std::string yaml = "data:";
  if (!data.train_blend().empty()) {
    absl::StrAppend(&yaml, "\n  train: ", BlendYaml(data.train_blend()));
  } else if (!data.train().empty()) {
    absl::StrAppend(&yaml, "\n  train: ", Quoted(data.train()));
  }
  // At most one of the three was given.
  if (!data.validation_blend().empty()) {
    absl::StrAppend(&yaml, "\n  validation: ", BlendYaml(data.validation_blend()));
  } else if (!data.validation_path().empty()) {
    absl::StrAppend(&yaml, "\n  validation: ", Quoted(data.validation_path()));
  } else if (data.validation_fraction() > 0) {
    absl::StrAppend(&yaml, "\n  validation: ", nlohmann::json(data.validation_fraction()).dump());
  }
  if (!data.test_path().empty()) {
    std::string paths = Quoted(data.test_path());
    for (const std::string& path : data.test_more_paths()) {
      absl::StrAppend(&paths, ", ", Quoted(path));
    }
    absl::StrAppend(&yaml, "\n  test: ",
                    data.test_more_paths().empty() ? paths : absl::StrCat("[", paths, "]"));
  }
  // What is empty was not given and has no default here, so that the text reads back as the same.
  if (!data.tokenizer().empty())
    absl::StrAppend(&yaml, "\n  tokenizer: ", Quoted(data.tokenizer()));
  if (!data.text_key().empty()) absl::StrAppend(&yaml, "\n  text_key: ", Quoted(data.text_key()));
  for (const auto& [key, value] : {std::pair("text_pair_key", data.text_pair_key()),
                                   std::pair("label_key", data.label_key())}) {
    if (!value.empty()) absl::StrAppend(&yaml, "\n  ", key, ": ", Quoted(value));
  }
  // Only bert and t5 have these sections, and their presence is part of the message.
  if (data.has_masking()) {
    absl::StrAppend(
        &yaml, "\n  masking: {probability: ", nlohmann::json(data.masking().probability()).dump(),
        // Only t5 has a mean span, and always one.
        data.masking().mean_span() > 0
            ? absl::StrCat(", mean_span: ", nlohmann::json(data.masking().mean_span()).dump())
            : absl::StrCat(", whole_word: ", data.masking().whole_word() ? "true" : "false"),
        "}");
  }
  if (data.has_special_tokens()) {
    const v1::SpecialTokens& special = data.special_tokens();
    absl::StrAppend(
        &yaml, "\n  special_tokens: {pad: ", special.pad(),
        data.masking().mean_span() > 0
            ? absl::StrCat(", eos: ", special.eos(), ", first_sentinel: ", special.first_sentinel(),
                           ", sentinels: ", special.sentinels())
            : absl::StrCat(", cls: ", special.cls(), ", sep: ", special.sep(),
                           ", mask: ", special.mask()),
        "}");
  }
  if (data.has_chat()) {
    absl::StrAppend(&yaml, "\n  template: ", data.chat().template_());
    // Only conversations have these.
    if (data.chat().answers() == v1::ANSWER_FORM_UNSPECIFIED) {
      absl::StrAppend(&yaml, "\n  loss_on: ", plan::TextOf(data.chat().loss_on()),
                      "\n  format: ", plan::TextOf(data.chat().format()),
                      "\n  packing: ", data.chat().packing() ? "true" : "false");
    }
  }
  absl::StrAppend(&yaml, "\n  skip_bad_lines: ", data.skip_bad_lines() ? "true" : "false", "\n");
  return yaml;
}

}  // namespace tercio::config
