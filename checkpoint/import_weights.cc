#include "checkpoint/import_weights.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "plan/model_tensors.h"
#include "plan/text_form.h"

namespace tercio::checkpoint {
namespace {

constexpr char kWeightsFile[] = "weights.safetensors";
constexpr char kTokenizerFile[] = "tokenizer.json";
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

absl::Status WriteWeights(const WeightSource& source,
                          const std::vector<plan::LogicalTensor>& tensors, Manifest* manifest,
                          OutputDirectory* output) {
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

}  // namespace

absl::Status WriteImportedWeights(const WeightSource& source,
                                  const std::vector<plan::LogicalTensor>& tensors,
                                  const ImportOptions& options, Manifest* manifest,
                                  OutputDirectory* output) {
  // This is the state of a run before its first step.
  manifest->training_state_json = R"({"lanes":0,"next_sample":0,"seed":0,"step":0,"tokens":0})";
  google::protobuf::util::JsonPrintOptions names;
  // The keys are spelled as in the .proto file, where readers of the format look them up.
  names.preserve_proto_field_names = true;
  TERCIO_ASSIGN_OR_RETURN(manifest->model_json, plan::ToJson(source.model(), names));
  int64_t values = 0;
  for (const plan::LogicalTensor& tensor : tensors) values += tensor.rows * tensor.columns;
  output->ShowProgress(values * static_cast<int64_t>(sizeof(float)), options.progress);
  return WriteWeights(source, tensors, manifest, output);
}

absl::Status CommitImport(const ImportOptions& options, Manifest* manifest,
                          OutputDirectory* output) {
  if (!options.tokenizer_json.empty()) {
    manifest->tokenizer_file = kTokenizerFile;
    TERCIO_RETURN_IF_ERROR(output->Write(kTokenizerFile, options.tokenizer_json));
  }
  // The manifest names all files but itself, so it comes last.
  manifest->files = output->files();
  // The manifest is checked like one that is read, before it becomes visible.
  TERCIO_RETURN_IF_ERROR(CheckCoverage(*manifest));
  TERCIO_RETURN_IF_ERROR(output->Write("manifest.json", ManifestToJson(*manifest)));
  return output->Commit();
}

}  // namespace tercio::checkpoint
