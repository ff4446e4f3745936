#include "checkpoint/huggingface/import.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/import_weights.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/safetensors.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

// All weights that the directory has: those of its own model and of bert's other tasks. A job may
// have another task than config.json names.
std::vector<plan::LogicalTensor> TensorsToImport(const HuggingFaceModel& source) {
  std::vector<plan::LogicalTensor> all = plan::ModelTensors(source.model());
  for (const HuggingFaceTensor& form : OtherTaskTensors(source.model())) {
    for (const HuggingFacePart& part : form.parts) {
      plan::LogicalTensor& tensor = all.emplace_back();
      tensor.name = part.tensor;
      tensor.rows = part.rows;
      tensor.columns = form.inputs;
      tensor.is_vector = form.is_vector;
    }
  }
  std::erase_if(all, [&](const auto& tensor) { return !source.Has(tensor.name); });
  return all;
}

// The form of the files as an export will write them again: headers, and the tensors that are not
// weights.
class KeptForm {
 public:
  explicit KeptForm(const HuggingFaceModel& model) : model_(model) {
    for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model.model())) {
      current_names_[tensor.suffix] = tensor.name;
    }
    for (const HuggingFaceTensor& tensor : OtherTaskTensors(model.model())) {
      current_names_[tensor.suffix] = tensor.name;
    }
  }

  absl::Status Write(OutputDirectory* output) {
    size_t number = 0;
    for (const WeightFile& file : model_.files()) {
      const std::string name =
          file.is_torch() ? ShardName(++number, model_.files().size()) : file.name;
      const std::string header = file.is_torch() ? NewHeader(file, name) : std::string(file.header);
      TERCIO_RETURN_IF_ERROR(output->Write(absl::StrCat(kKeptFolder, name, kHeaderSuffix), header));
      for (const StoredTensor& tensor : file.tensors) KeepRaw(file, tensor);
    }
    if (number > 1) {
      TERCIO_RETURN_IF_ERROR(output->Write(absl::StrCat(kKeptFolder, kHuggingFaceIndex),
                                           WeightIndex(total_bytes_, weight_map_)));
    }
    return WriteRaw(output);
  }

 private:
  std::string SuffixOf(const StoredTensor& tensor) const {
    return CurrentSuffix(model_.model(), tensor.name);
  }

  // Whether current versions of transformers would not save this tensor of a torch file, or it has
  // no bytes to be kept.
  bool IsDropped(const StoredTensor& tensor) const {
    if (model_.GivesWeights(tensor.name)) return false;
    const std::string suffix = SuffixOf(tensor);
    return tensor.repeats || IsIgnoredBuffer(model_.model(), suffix) ||
           !TiedCopyOf(model_.model(), suffix).empty();
  }

  std::string NewHeader(const WeightFile& file, const std::string& name) {
    std::vector<TensorEntry> entries;
    for (const StoredTensor& tensor : file.tensors) {
      if (IsDropped(tensor)) continue;
      std::string suffix = SuffixOf(tensor);
      // Where a file has only the copy of a tied tensor, that gives the weights.
      if (const std::string_view original = TiedCopyOf(model_.model(), suffix); !original.empty()) {
        suffix = original;
      }
      const auto current = current_names_.find(suffix);
      TensorEntry& entry = entries.emplace_back();
      entry.name = current != current_names_.end() ? current->second : tensor.name;
      entry.shape = tensor.shape;
      entry.dtype = tensor.dtype;
    }
    std::string header = SafetensorsHeader(&entries, "pt");
    for (const TensorEntry& entry : entries) {
      weight_map_[entry.name] = name;
      total_bytes_ += entry.end - entry.begin;
    }
    return header;
  }

  void KeepRaw(const WeightFile& file, const StoredTensor& tensor) {
    // The values of weights are in the checkpoint's own file, and a tied copy has those of its
    // original.
    if (model_.GivesWeights(tensor.name) || (file.is_torch() && IsDropped(tensor)) ||
        !TiedCopyOf(model_.model(), SuffixOf(tensor)).empty()) {
      return;
    }
    TensorEntry& entry = raw_.emplace_back();
    entry.name = tensor.name;
    entry.shape = tensor.shape;
    entry.dtype = tensor.dtype;
    raw_bytes_.push_back(tensor.bytes);
  }

  absl::Status WriteRaw(OutputDirectory* output) {
    if (raw_.empty()) return absl::OkStatus();
    const std::string header = SafetensorsHeader(&raw_);
    return output->WriteParts(
        kBuffersFile, static_cast<int64_t>(raw_.size()) + 1, [&](int64_t index, OutputPart* part) {
          part->bytes =
              index == 0 ? std::string_view(header) : raw_bytes_[static_cast<size_t>(index - 1)];
          return absl::OkStatus();
        });
  }

  const HuggingFaceModel& model_;
  std::map<std::string, std::string> current_names_;  // by suffix
  std::map<std::string, std::string> weight_map_;     // the weight map of new headers
  int64_t total_bytes_ = 0;
  std::vector<TensorEntry> raw_;
  std::vector<std::string_view> raw_bytes_;
};

}  // namespace

bool IsTokenizerFile(std::string_view name) {
  for (const char* known : {"vocab.json", "merges.txt", "special_tokens_map.json",
                            "added_tokens.json", "vocab.txt", "chat_template.jinja"}) {
    if (name == known) return true;
  }
  if (absl::EndsWith(std::string(name), ".model")) return true;  // a file of SentencePiece
  return absl::StartsWith(std::string(name), "tokenizer") &&
         absl::EndsWith(std::string(name), ".json");
}

std::vector<std::string> KeptFiles(const std::string& directory) {
  std::vector<std::string> kept;
  for (const std::string& name : ListDirectory(directory)) {
    const bool known = name == "config.json" || name == "generation_config.json" ||
                       name == kHuggingFaceIndex || IsTokenizerFile(name);
    // Links to files count, since the hub's cache consists of them.
    std::error_code error;
    if (known && std::filesystem::is_regular_file(directory + "/" + name, error)) {
      kept.push_back(name);
    }
  }
  return kept;
}

absl::StatusOr<ImportResult> ImportHuggingFace(const std::string& directory,
                                               const std::string& output_path,
                                               const ImportOptions& options) {
  // All files are checked before anything is written.
  TERCIO_ASSIGN_OR_RETURN(const auto model, HuggingFaceModel::Open(directory));
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kAll));
  const std::vector<plan::LogicalTensor> tensors = TensorsToImport(*model);
  ImportResult result;
  result.model = model->model();
  for (const plan::LogicalTensor& tensor : tensors) {
    result.parameters += tensor.rows * tensor.columns;
  }
  for (const std::string& note : NotesAbout(*model, model->model())) {
    result.notes.push_back(absl::StrCat(directory, ": ", note));
  }
  if (model->files().front().is_torch()) {
    result.notes.push_back(
        absl::StrCat(directory, ": the export of this import will have the same ",
                     "weights as safetensors, under transformers' current names"));
  }
  Manifest manifest;
  TERCIO_RETURN_IF_ERROR(WriteImportedWeights(*model, tensors, options, &manifest, output.get()));
  result.kept = KeptFiles(directory);
  for (const std::string& name : result.kept) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(directory + "/" + name));
    TERCIO_RETURN_IF_ERROR(output->Write(kKeptFolder + name, file->content()));
  }
  TERCIO_RETURN_IF_ERROR(KeptForm(*model).Write(output.get()));
  TERCIO_RETURN_IF_ERROR(CommitImport(options, &manifest, output.get()));
  result.bytes = output->bytes();
  return result;
}

}  // namespace tercio::checkpoint
