#include "checkpoint/huggingface_import.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/huggingface_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output_directory.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

constexpr char kWeightsFile[] = "weights.safetensors";
constexpr int64_t kChunkElements = int64_t{4} << 20;

std::string_view BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

absl::Status WriteTensor(const WeightSource& source, const plan::LogicalTensor& tensor,
                         OutputDirectory* output) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor.name);
  slice.add_shape(tensor.rows);
  if (!tensor.is_vector) slice.add_shape(tensor.columns);
  slice.set_column_end(tensor.columns);
  const int64_t step = std::max<int64_t>(1, kChunkElements / tensor.columns);
  std::vector<float> values;
  for (int64_t row = 0; row < tensor.rows; row += step) {
    slice.set_row_begin(row);
    slice.set_row_end(std::min(tensor.rows, row + step));
    values.resize(static_cast<size_t>((slice.row_end() - row) * tensor.columns));
    TERCIO_RETURN_IF_ERROR(source.ReadSlice(slice, values.data()));
    TERCIO_RETURN_IF_ERROR(output->Append(BytesOf(values)));
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(const WeightSource& source, Manifest* manifest, OutputDirectory* output) {
  const std::vector<plan::LogicalTensor> tensors = plan::ModelTensors(source.model());
  std::vector<TensorEntry> entries;
  for (const plan::LogicalTensor& tensor : tensors) {
    TensorEntry entry;
    entry.name = tensor.name;
    entry.shape = {tensor.rows};
    if (!tensor.is_vector) entry.shape.push_back(tensor.columns);
    entries.push_back(entry);
  }
  const std::string header = SafetensorsHeader(&entries);
  TERCIO_RETURN_IF_ERROR(output->Begin(kWeightsFile));
  TERCIO_RETURN_IF_ERROR(output->Append(header));
  for (size_t i = 0; i < tensors.size(); ++i) {
    TERCIO_RETURN_IF_ERROR(WriteTensor(source, tensors[i], output));
    ManifestTensor& tensor = manifest->tensors[tensors[i].name];
    tensor.shape = entries[i].shape;
    tensor.pieces.push_back({kWeightsFile, static_cast<int64_t>(header.size()) + entries[i].begin,
                             0, tensors[i].rows, 0, tensors[i].columns});
  }
  return output->End();
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
  if (absl::EndsWith(std::string(name), ".model")) return true;  // of SentencePiece
  return absl::StartsWith(std::string(name), "tokenizer") &&
         absl::EndsWith(std::string(name), ".json");
}

std::vector<std::string> KeptFiles(const std::string& directory) {
  std::vector<std::string> kept;
  for (const std::string& name : ListDirectory(directory)) {
    const bool known = name == "config.json" || name == "generation_config.json" ||
                       name == kHuggingFaceIndex || IsTokenizerFile(name);
    std::error_code error;
    if (known && std::filesystem::is_regular_file(directory + "/" + name, error)) {
      kept.push_back(name);
    }
  }
  return kept;
}

absl::StatusOr<ImportResult> ImportHuggingFace(const std::string& directory,
                                               const std::string& output_path) {
  TERCIO_ASSIGN_OR_RETURN(const auto model, HuggingFaceModel::Open(directory));
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, /*digests=*/true));
  ImportResult result;
  result.model = model->model();
  result.parameters = plan::ParameterCount(model->model());
  Manifest manifest;
  manifest.training_state_json = R"({"lanes":0,"next_sample":0,"seed":0,"step":0,"tokens":0})";
  google::protobuf::util::JsonPrintOptions names;
  names.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(model->model(), &manifest.model_json, names)
           .ok()) {
    return absl::InternalError("the model has no JSON form");
  }
  TERCIO_RETURN_IF_ERROR(WriteWeights(*model, &manifest, output.get()));
  result.kept = KeptFiles(directory);
  for (const std::string& name : result.kept) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(directory + "/" + name));
    TERCIO_RETURN_IF_ERROR(output->Write(kKeptFolder + name, file->content()));
  }
  TERCIO_RETURN_IF_ERROR(WriteForm(*model, output.get()));
  manifest.files = output->files();
  TERCIO_RETURN_IF_ERROR(CheckCoverage(manifest));
  TERCIO_RETURN_IF_ERROR(output->Write("manifest.json", ManifestToJson(manifest)));
  TERCIO_RETURN_IF_ERROR(output->Commit());
  result.bytes = output->bytes();
  return result;
}

}  // namespace tercio::checkpoint
