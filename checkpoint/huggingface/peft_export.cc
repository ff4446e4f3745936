#include "checkpoint/huggingface/peft_export.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/base_digest.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/peft_names.h"
#include "checkpoint/model_description.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

// A tensor of the file, row-major.
struct PeftTensor {
  TensorEntry entry;
  std::vector<float> values;
};

v1::TensorSlice RowsOf(const std::string& tensor, const std::vector<int64_t>& shape, int64_t begin,
                       int64_t end) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor);
  for (const int64_t extent : shape) slice.add_shape(extent);
  slice.set_row_begin(begin);
  slice.set_row_end(end);
  slice.set_column_end(shape.size() > 1 ? shape[1] : 1);
  return slice;
}

class PeftExporter {
 public:
  explicit PeftExporter(const Reader& reader)
      : reader_(reader), modules_(PeftModulesOf(reader.model())) {}

  absl::Status Read() {
    for (const PeftModule& module : modules_) {
      if (reader_.Has(module.TensorA())) TERCIO_RETURN_IF_ERROR(ReadModule(module));
      if (reader_.Has(module.TensorOfFactors(module.part.weights.front()))) {
        TERCIO_RETURN_IF_ERROR(ReadFactors(module));
      }
    }
    return ReadTrained();
  }

  absl::Status Write(OutputDirectory* output) {
    std::vector<TensorEntry> entries;
    for (const PeftTensor& tensor : tensors_) entries.push_back(tensor.entry);
    std::string file = SafetensorsHeader(&entries, "pt");
    for (const PeftTensor& tensor : tensors_) {
      file.append(reinterpret_cast<const char*>(tensor.values.data()),
                  tensor.values.size() * sizeof(float));
    }
    TERCIO_RETURN_IF_ERROR(output->Write(kPeftWeights, file));
    return output->Write(kPeftConfig, Config().dump(2) + "\n");
  }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    PeftTensor& tensor = tensors_.emplace_back();
    tensor.entry.name = kPeftPrefix + name;
    tensor.entry.shape = std::move(shape);
    tensor.values = std::move(values);
  }

  void AddTarget(const PeftModule& module, std::vector<std::string>* targets) {
    if (std::find(targets->begin(), targets->end(), module.target) == targets->end()) {
      targets->push_back(module.target);
    }
  }

  absl::Status ReadFactors(const PeftModule& module) {
    const HuggingFaceTensor& weight = module.weight;
    AddTarget(module, &targets_);
    if (module.cut_by_columns) AddTarget(module, &feedforward_);
    const int64_t count = module.cut_by_columns ? weight.inputs : weight.outputs;
    std::vector<float> factors(static_cast<size_t>(count));
    for (size_t i = 0; i < weight.parts.size(); ++i) {
      const std::string tensor = module.TensorOfFactors(module.part.weights[i]);
      const HuggingFacePart part =
          module.cut_by_columns ? HuggingFacePart{"", 0, count, count, count} : weight.parts[i];
      for (int64_t row = 0; row < part.rows; row += part.run) {
        TERCIO_RETURN_IF_ERROR(reader_.ReadSlice(RowsOf(tensor, {part.rows}, row, row + part.run),
                                                 factors.data() + part.OutputOf(row)));
      }
    }
    std::vector<int64_t> shape = {count, 1};
    if (module.cut_by_columns) std::swap(shape[0], shape[1]);
    Add(module.module + ".ia3_l", std::move(shape), std::move(factors));
    return absl::OkStatus();
  }

  absl::Status ReadModule(const PeftModule& module) {
    const int64_t rank = reader_.model().adapter().rank();
    const HuggingFaceTensor& weight = module.weight;
    AddTarget(module, &targets_);
    std::vector<float> a(static_cast<size_t>(rank * weight.inputs));
    TERCIO_RETURN_IF_ERROR(
        reader_.ReadSlice(RowsOf(module.TensorA(), {rank, weight.inputs}, 0, rank), a.data()));
    Add(module.module + ".lora_A.weight", {rank, weight.inputs}, std::move(a));
    std::vector<float> b(static_cast<size_t>(weight.outputs * rank));
    for (size_t i = 0; i < weight.parts.size(); ++i) {
      TERCIO_RETURN_IF_ERROR(
          ReadOutputs(module.TensorB(module.part.weights[i]), weight.parts[i], rank, &b));
    }
    Add(module.module + ".lora_B.weight", {weight.outputs, rank}, std::move(b));
    return absl::OkStatus();
  }

  // Rows of `part` to where the file's tensor has them.
  absl::Status ReadOutputs(const std::string& tensor, const HuggingFacePart& part, int64_t inputs,
                           std::vector<float>* values) const {
    for (int64_t row = 0; row < part.rows; row += part.run) {
      TERCIO_RETURN_IF_ERROR(
          reader_.ReadSlice(RowsOf(tensor, {part.rows, inputs}, row, row + part.run),
                            values->data() + part.OutputOf(row) * inputs));
    }
    return absl::OkStatus();
  }

  // Modules of which a tensor was trained as it is.
  absl::Status ReadTrained() {
    std::set<std::string> trained;
    for (const plan::LogicalTensor& tensor : plan::ModelTensors(reader_.model())) {
      if (!tensor.of_adapter && !tensor.below_adapters) trained.insert(tensor.name);
    }
    const std::vector<HuggingFaceTensor> all = HuggingFaceTensors(reader_.model());
    for (const HuggingFaceTensor& tensor : all) {
      for (const HuggingFacePart& part : tensor.parts) {
        if (trained.contains(part.tensor)) saved_.insert(ModuleOf(tensor.name));
      }
    }
    for (const HuggingFaceTensor& tensor : all) {
      if (saved_.contains(ModuleOf(tensor.name))) TERCIO_RETURN_IF_ERROR(ReadWhole(tensor));
    }
    return absl::OkStatus();
  }

  static std::string ModuleOf(const std::string& tensor) {
    return tensor.substr(0, tensor.rfind('.'));
  }

  absl::Status ReadWhole(const HuggingFaceTensor& tensor) {
    const int64_t inputs = tensor.is_vector ? 1 : tensor.inputs;
    std::vector<float> rows(static_cast<size_t>(tensor.outputs * inputs));
    for (const HuggingFacePart& part : tensor.parts) {
      std::vector<int64_t> shape = {part.rows};
      if (!tensor.is_vector) shape.push_back(inputs);
      for (int64_t row = 0; row < part.rows; row += part.run) {
        TERCIO_RETURN_IF_ERROR(reader_.ReadSlice(RowsOf(part.tensor, shape, row, row + part.run),
                                                 rows.data() + part.OutputOf(row) * inputs));
      }
    }
    if (tensor.transposed) {
      std::vector<float> turned(rows.size());
      for (int64_t o = 0; o < tensor.outputs; ++o) {
        for (int64_t i = 0; i < inputs; ++i) {
          turned[static_cast<size_t>(i * tensor.outputs + o)] =
              rows[static_cast<size_t>(o * inputs + i)];
        }
      }
      rows = std::move(turned);
    }
    Add(tensor.name, tensor.shape, std::move(rows));
    return absl::OkStatus();
  }

  static nlohmann::ordered_json Names(const PeftTargets& targets) {
    if (!targets.pattern.empty()) return targets.pattern;
    return targets.ends;
  }

  nlohmann::ordered_json Config() const {
    const v1::ModelSpec& model = reader_.model();
    const v1::AdapterSpec& adapter = model.adapter();
    const bool low_rank = adapter.kind() == v1::ADAPTER_KIND_LORA;
    nlohmann::ordered_json json = {{"peft_type", low_rank ? "LORA" : "IA3"},
                                   {"task_type", nullptr},
                                   {"base_model_name_or_path", nullptr},
                                   {"target_modules", Names(PeftTargetsOf(model, targets_))},
                                   {"modules_to_save", nullptr},
                                   {"fan_in_fan_out", false},
                                   {"inference_mode", true}};
    if (low_rank) {
      json.update({{"r", adapter.rank()},
                   {"lora_alpha", adapter.alpha()},
                   {"lora_dropout", adapter.dropout()},
                   {"use_rslora", adapter.rslora()},
                   {"bias", "none"},
                   {"init_lora_weights", true}});
      // A whole number, where it is one, is how peft writes it.
      const auto whole = static_cast<int64_t>(adapter.alpha());
      if (adapter.alpha() == static_cast<double>(whole)) json["lora_alpha"] = whole;
    } else {
      json["feedforward_modules"] = Names(PeftTargetsOf(model, feedforward_));
      json["init_ia3_weights"] = true;
    }
    if (model::ArchitectureOf(model).causal) json["task_type"] = "CAUSAL_LM";
    if (model.labels() > 0) json["task_type"] = "SEQ_CLS";
    if (!model.from().empty()) json["base_model_name_or_path"] = model.from();
    for (const PeftModule& module : modules_) {
      // GPT-2's products are stored the other way round, which peft wants to know.
      if (module.weight.transposed) json["fan_in_fan_out"] = true;
    }
    if (!saved_.empty()) json["modules_to_save"] = saved_;
    return json;
  }

  const Reader& reader_;
  const std::vector<PeftModule> modules_;
  std::vector<PeftTensor> tensors_;
  std::vector<std::string> targets_;
  std::vector<std::string> feedforward_;  // those of IA3 whose inputs are scaled
  std::set<std::string> saved_;           // modules
};

// The digest of the weights that training started from, while they can be read. Those of the
// checkpoint may have been rounded.
absl::Status WriteBaseDigest(const v1::ModelSpec& model, OutputDirectory* output,
                             std::vector<std::string>* notes) {
  if (model.from().empty()) return absl::OkStatus();
  const auto base = OpenWeightSource(model.from(), DigestCheck::kNone);
  if (!base.ok()) {
    notes->push_back(absl::StrCat("training started from ", model.from(),
                                  ", which can no longer be read: the adapter does not say which "
                                  "weights it belongs to"));
    return absl::OkStatus();
  }
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, DigestOfBase(**base, model));
  return output->Write(kBaseDigestFile, BaseDigestJson(digest));
}

}  // namespace

absl::StatusOr<ExportResult> ExportPeft(const std::string& checkpoint, const std::string& output) {
  // An adapter is small: its file is made in memory, when everything was compared.
  TERCIO_ASSIGN_OR_RETURN(const auto reader, Reader::Open(checkpoint, DigestCheck::kEveryByte));
  TERCIO_RETURN_IF_ERROR(CheckPossibleModel(reader->model(), checkpoint + "/manifest.json"));
  TERCIO_RETURN_IF_ERROR(CheckHasHuggingFaceForm(reader->model()));
  if (!reader->model().has_adapter()) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint, " has no adapter; export the model with --format hf"));
  }
  PeftExporter exporter(*reader);
  TERCIO_RETURN_IF_ERROR(exporter.Read());
  TERCIO_ASSIGN_OR_RETURN(const auto directory,
                          OutputDirectory::Create(output, FileDigests::kNone));
  TERCIO_RETURN_IF_ERROR(exporter.Write(directory.get()));
  ExportResult result;
  TERCIO_RETURN_IF_ERROR(WriteBaseDigest(reader->model(), directory.get(), &result.notes));
  result.model = reader->model();
  result.step = reader->manifest().step;
  for (const auto& [name, file] : directory->files()) result.files.push_back(name);
  result.bytes = directory->bytes();
  TERCIO_RETURN_IF_ERROR(directory->Commit());
  return result;
}

}  // namespace tercio::checkpoint
