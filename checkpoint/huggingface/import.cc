#include "checkpoint/huggingface/import.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output_directory.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "plan/model_tensors.h"
#include "plan/text_form.h"

namespace tercio::checkpoint {
namespace {

constexpr char kWeightsFile[] = "weights.safetensors";
constexpr int64_t kImportPartElements = int64_t{1} << 18;  // stays in the cache until it is written

// Rows [begin, end) of a tensor.
struct RowRange {
  const plan::LogicalTensor* tensor;
  int64_t begin;
  int64_t end;
};

std::vector<RowRange> PartsOf(const std::vector<plan::LogicalTensor>& tensors) {
  std::vector<RowRange> parts;
  for (const plan::LogicalTensor& tensor : tensors) {
    // A row is never divided, even if it is longer than a part.
    const int64_t step = std::max<int64_t>(1, kImportPartElements / tensor.columns);
    for (int64_t row = 0; row < tensor.rows; row += step) {
      parts.push_back({&tensor, row, std::min(tensor.rows, row + step)});
    }
  }
  return parts;
}

absl::Status MakeRows(const WeightSource& source, const RowRange& rows, OutputPart* part) {
  v1::TensorSlice slice;
  slice.set_tensor(rows.tensor->name);
  slice.add_shape(rows.tensor->rows);
  if (!rows.tensor->is_vector) slice.add_shape(rows.tensor->columns);
  slice.set_row_begin(rows.begin);
  slice.set_row_end(rows.end);
  slice.set_column_end(rows.tensor->columns);
  part->values.resize(static_cast<size_t>((rows.end - rows.begin) * rows.tensor->columns));
  // The view is of the memory that the values are read to right after this.
  part->bytes = {reinterpret_cast<const char*>(part->values.data()),
                 part->values.size() * sizeof(float)};
  return source.ReadSlice(slice, part->values.data());
}

absl::Status WriteWeights(const WeightSource& source, Manifest* manifest, OutputDirectory* output) {
  const std::vector<plan::LogicalTensor> tensors = plan::ModelTensors(source.model());
  std::vector<TensorEntry> entries;
  for (const plan::LogicalTensor& tensor : tensors) {
    TensorEntry entry;
    entry.name = tensor.name;
    entry.shape.push_back(tensor.rows);
    if (!tensor.is_vector) entry.shape.push_back(tensor.columns);
    entries.push_back(std::move(entry));
  }
  // This gives each entry its place, which the manifest repeats below.
  const std::string header = SafetensorsHeader(&entries);
  for (size_t i = 0; i < tensors.size(); ++i) {
    ManifestTensor& tensor = manifest->tensors[tensors[i].name];
    tensor.shape = entries[i].shape;
    // Offsets in the manifest count from the beginning of the file, header included.
    tensor.pieces.push_back({kWeightsFile, static_cast<int64_t>(header.size()) + entries[i].begin,
                             0, tensors[i].rows, 0, tensors[i].columns});
  }
  const std::vector<RowRange> parts = PartsOf(tensors);
  return output->WriteParts(kWeightsFile, static_cast<int64_t>(parts.size()) + 1,
                            [&](int64_t index, OutputPart* part) {
                              if (index == 0) {
                                part->bytes = header;
                                return absl::OkStatus();
                              }
                              return MakeRows(source, parts[static_cast<size_t>(index - 1)], part);
                            });
}

// Headers, and the tensors that are not weights.
absl::Status WriteForm(const HuggingFaceModel& model, OutputDirectory* output) {
  std::vector<TensorEntry> buffers;
  std::string bytes;
  for (const HuggingFaceModel::File& file : model.files()) {
    TERCIO_RETURN_IF_ERROR(
        output->Write(absl::StrCat(kKeptFolder, file.name, kHeaderSuffix), file.header()));
    for (const TensorEntry& entry : file.layout.tensors) {
      const v1::ModelSpec& spec = model.model();
      // Weights are not kept here: their values are in the checkpoint's own file, and a tied copy
      // has those of its original.
      if (!IsIgnoredBuffer(spec, WithoutPrefix(spec, entry.name))) continue;
      buffers.push_back(entry);
      bytes.append(file.bytes(entry));
    }
  }
  if (buffers.empty()) return absl::OkStatus();
  return output->Write(kBuffersFile, SafetensorsHeader(&buffers) + bytes);
}

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
                                               const WriteProgress& progress) {
  // All files are checked before anything is written.
  TERCIO_ASSIGN_OR_RETURN(const auto model, HuggingFaceModel::Open(directory));
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kAll));
  ImportResult result;
  result.model = model->model();
  result.parameters = plan::ParameterCount(model->model());
  Manifest manifest;
  // This is the state of a run before its first step.
  manifest.training_state_json = R"({"lanes":0,"next_sample":0,"seed":0,"step":0,"tokens":0})";
  google::protobuf::util::JsonPrintOptions names;
  // The keys are spelled as in the .proto file, where readers of the format look them up.
  names.preserve_proto_field_names = true;
  TERCIO_ASSIGN_OR_RETURN(manifest.model_json, plan::ToJson(model->model(), names));
  // The total counts the weights alone, since everything beside them is small.
  output->ShowProgress(result.parameters * static_cast<int64_t>(sizeof(float)), progress);
  TERCIO_RETURN_IF_ERROR(WriteWeights(*model, &manifest, output.get()));
  result.kept = KeptFiles(directory);
  for (const std::string& name : result.kept) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(directory + "/" + name));
    TERCIO_RETURN_IF_ERROR(output->Write(kKeptFolder + name, file->content()));
  }
  TERCIO_RETURN_IF_ERROR(WriteForm(*model, output.get()));
  // The manifest names all files but itself, so it comes last.
  manifest.files = output->files();
  // The manifest is checked like one that is read, before it becomes visible.
  TERCIO_RETURN_IF_ERROR(CheckCoverage(manifest));
  TERCIO_RETURN_IF_ERROR(output->Write("manifest.json", ManifestToJson(manifest)));
  TERCIO_RETURN_IF_ERROR(output->Commit());
  result.bytes = output->bytes();
  return result;
}

}  // namespace tercio::checkpoint
