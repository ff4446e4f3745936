#include "checkpoint/weight_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/huggingface/faults.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/megatron/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kMissingNames = 8;  // in a note

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightSource(const std::string& directory,
                                                               DigestCheck check) {
  TERCIO_ASSIGN_OR_RETURN(const ModelFormat format, FormatOfModel(directory));
  if (format == ModelFormat::kPeft) {
    TERCIO_ASSIGN_OR_RETURN(const std::string path, DirectoryOfPeftBase(directory));
    TERCIO_ASSIGN_OR_RETURN(auto base, OpenWeightSource(path, check));
    return WithAdapter(std::move(base), directory, check);
  }
  if (format == ModelFormat::kHuggingFace) {
    // These files have no digests, so there is nothing to compare.
    TERCIO_ASSIGN_OR_RETURN(auto model, HuggingFaceModel::Open(directory));
    return std::unique_ptr<WeightSource>(std::move(model));
  }
  if (format == ModelFormat::kMegatron) {
    TERCIO_ASSIGN_OR_RETURN(auto model, MegatronModel::Open(directory));
    return std::unique_ptr<WeightSource>(std::move(model));
  }
  TERCIO_ASSIGN_OR_RETURN(auto reader, Reader::Open(directory, check));
  // A checkpoint's model is not trusted before this, as callers compute sizes from it.
  TERCIO_RETURN_IF_ERROR(CheckPossibleModel(reader->model(), directory + "/manifest.json"));
  return std::unique_ptr<WeightSource>(std::move(reader));
}

absl::Status CheckStartsFrom(const v1::ModelSpec& model, const v1::ModelSpec& source) {
  // The first difference is enough: a person changes the job or the directory anyway.
  for (const ModelDifference& difference : DifferencesOf(model, source)) {
    return absl::FailedPreconditionError(absl::StrCat("the job's model.", difference.key, " is ",
                                                      difference.ours, ", but it has ",
                                                      difference.theirs));
  }
  return absl::OkStatus();
}

std::vector<std::string> NotesAbout(const WeightSource& source, const v1::ModelSpec& model) {
  std::vector<std::string> notes = source.NotesFor(model);
  std::vector<std::string> missing;
  for (plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
    if (tensor.of_adapter) continue;  // that a model has none yet is usual
    if (!source.Has(tensor.name)) missing.push_back(std::move(tensor.name));
  }
  if (!missing.empty()) {
    notes.push_back(absl::StrCat("it has no ", ListedNames(missing, kMissingNames),
                                 ": a job that starts from it initialises them"));
  }
  return notes;
}

absl::StatusOr<std::vector<std::string>> CheckInitialWeights(const v1::ModelSpec& model,
                                                             int32_t data_vocabulary) {
  // Ids outside the table would have no embedding.
  if (data_vocabulary > model.vocab_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has ", data_vocabulary, " token ids, but the model in ",
                     model.from(), " has only ", model.vocab_size(), "; use its own tokenizer"));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto source, OpenInitialSource(model, DigestCheck::kEveryByte));
  const std::string where = absl::StrCat("model.from ", model.from(), ": ");
  if (const absl::Status same = CheckStartsFrom(model, source->model()); !same.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(where, std::string(same.message())));
  }
  std::vector<std::string> notes = NotesAbout(*source, model);
  for (std::string& note : notes) note = absl::StrCat(where, note);
  return notes;
}

absl::Status ReadSliceFor(const WeightSource& source, v1::TensorSlice slice, float* out) {
  // The rows are the same in both models; only the shape that the source checks is larger.
  if (slice.tensor() == "embedding.position.weight" && slice.shape_size() == 2) {
    const int64_t rows = model::ArchitectureOf(source.model()).embedding.positions;
    if (slice.shape(0) < rows) slice.set_shape(0, rows);
  }
  return source.ReadSlice(slice, out);
}

std::vector<v1::TensorSlice> DivideSlice(const v1::TensorSlice& slice, int64_t most_elements) {
  const int64_t columns = slice.column_end() - slice.column_begin();
  // Rows stay whole where possible, since the values of a row lie together.
  const int64_t width = std::max<int64_t>(1, std::min(columns, most_elements));
  const int64_t height = most_elements / width;  // 1 where a row is divided
  std::vector<v1::TensorSlice> parts;
  for (int64_t row = slice.row_begin(); row < slice.row_end(); row += height) {
    for (int64_t column = slice.column_begin(); column < slice.column_end(); column += width) {
      v1::TensorSlice& part = parts.emplace_back(slice);
      part.set_row_begin(row);
      part.set_row_end(std::min(slice.row_end(), row + height));
      part.set_column_begin(column);
      part.set_column_end(std::min(slice.column_end(), column + width));
    }
  }
  return parts;
}

}  // namespace tercio::checkpoint
