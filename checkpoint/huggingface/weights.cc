#include "checkpoint/huggingface/weights.h"

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/transpose.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

// A file of another model has hundreds of faults, and the first few say enough.
constexpr size_t kNamedFaults = 5;
// A block of fp32 takes 4 KiB, and stays in the nearest cache.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kBlockColumns = 16;

// A name out of an untrusted file, for a message.
std::string Shown(std::string_view name) {
  return absl::Utf8SafeCEscape(std::string(name.substr(0, 200)));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The faults of a directory's tensors; the first few are reported.
class TensorFaults {
 public:
  explicit TensorFaults(std::string directory) : directory_(std::move(directory)) {}

  void Damaged(const std::string& what) {
    damaged_ = true;
    faults_.push_back(what);
  }
  // A type that this version cannot read says nothing against the file.
  void Unsupported(const std::string& what) { faults_.push_back(what); }

  absl::Status ToStatus() const {
    if (faults_.empty()) return absl::OkStatus();
    std::vector<std::string> told(
        faults_.begin(),
        faults_.begin() + static_cast<std::ptrdiff_t>(std::min(faults_.size(), kNamedFaults)));
    if (told.size() < faults_.size()) {
      told.push_back(absl::StrCat("and ", faults_.size() - told.size(), " more"));
    }
    const std::string message = absl::StrCat(directory_, ": ", absl::StrJoin(told, "; "));
    return damaged_ ? absl::DataLossError(message) : absl::InvalidArgumentError(message);
  }

 private:
  std::string directory_;
  std::vector<std::string> faults_;
  bool damaged_ = false;
};

struct FoundTensor {
  const HuggingFaceModel::File* file;
  const TensorEntry* entry;
};

// All tensors of the files by their name without prefix.
std::map<std::string, FoundTensor> FindTensors(const std::vector<HuggingFaceModel::File>& files,
                                               const v1::ModelSpec& model, TensorFaults* faults) {
  std::map<std::string, FoundTensor> found;
  for (const HuggingFaceModel::File& file : files) {
    for (const TensorEntry& entry : file.layout.tensors) {
      const std::string suffix(WithoutPrefix(model, entry.name));
      // A file may hold a tensor with and without prefix, and only one of them could count.
      if (!found.emplace(suffix, FoundTensor{&file, &entry}).second) {
        faults->Damaged(absl::StrCat("tensor ", Shown(entry.name), " appears twice"));
      }
    }
  }
  return found;
}

// Names of the files to read, in the order of their names.
absl::StatusOr<std::set<std::string>> FilesOfIndex(
    const std::map<std::string, std::string>& weight_map, const std::string& path) {
  // The map names a file once for each of its tensors.
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  if (names.empty()) return absl::DataLossError(absl::StrCat(path, ": names no files"));
  return names;
}

absl::Status CheckWeightSlice(const v1::TensorSlice& slice, const std::vector<int64_t>& shape,
                              const std::string& directory) {
  // Slices are checked before any address is computed from them.
  if (!std::equal(shape.begin(), shape.end(), slice.shape().begin(), slice.shape().end())) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": tensor ", slice.tensor(), " has ",
                                                   ShapeText(shape),
                                                   ", but a different shape was requested"));
  }
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  if (slice.row_begin() < 0 || slice.row_begin() > slice.row_end() || slice.row_end() > shape[0] ||
      slice.column_begin() < 0 || slice.column_begin() > slice.column_end() ||
      slice.column_end() > columns) {
    return absl::InvalidArgumentError(absl::StrCat("slice outside of tensor ", slice.tensor()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(std::string_view text,
                                                                  const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": has no weight_map"));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // The name comes from a file that is not trusted, and must not lead out of the directory; open
    // would cut it at a zero byte.
    if (file.empty() || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos || file == "." || file == "..") {
      return absl::DataLossError(
          absl::StrCat(path, ": tensor ", Shown(tensor), " is not in a file of this directory"));
    }
    weight_map[tensor] = file;
  }
  return weight_map;
}

absl::StatusOr<std::unique_ptr<HuggingFaceModel>> HuggingFaceModel::Open(
    const std::string& directory) {
  auto model = std::make_unique<HuggingFaceModel>();
  model->directory_ = directory;
  const std::string config = directory + "/config.json";
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
  // The config decides which tensors there have to be, so it is read before the weights.
  TERCIO_ASSIGN_OR_RETURN(model->model_, ModelOfHuggingFaceConfig(text, config));
  model->base_ = IsBaseModelConfig(text);
  TERCIO_RETURN_IF_ERROR(model->OpenFiles());
  // Files of masked language models on the hub often hold both heads of the pretraining.
  if (HasPretrainingHeads(model->files_, model->model_)) model->model_.set_sentence_order(true);
  TERCIO_RETURN_IF_ERROR(model->PlaceTensors());
  return model;
}

// As in transformers, the single file is preferred.
absl::Status HuggingFaceModel::OpenFiles() {
  if (PathExists(absl::StrCat(directory_, "/", kHuggingFaceFile))) {
    return OpenFile(kHuggingFaceFile);
  }
  const std::string index = absl::StrCat(directory_, "/", kHuggingFaceIndex);
  if (!PathExists(index)) {
    // Pickled files can run code when they are loaded, so they never are.
    const bool pickled = PathExists(directory_ + "/pytorch_model.bin") ||
                         PathExists(directory_ + "/pytorch_model.bin.index.json");
    if (pickled) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_,
                       ": pytorch_model.bin is not supported; save the model with "
                       "safe_serialization=True"));
    }
    return absl::NotFoundError(
        absl::StrCat(directory_, " has neither ", kHuggingFaceFile, " nor ", kHuggingFaceIndex));
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(index));
  TERCIO_ASSIGN_OR_RETURN(const auto weight_map, ParseWeightMap(text, index));
  TERCIO_ASSIGN_OR_RETURN(const std::set<std::string> names, FilesOfIndex(weight_map, index));
  for (const std::string& name : names) TERCIO_RETURN_IF_ERROR(OpenFile(name));
  return CheckIndex(weight_map);
}

absl::Status HuggingFaceModel::OpenFile(const std::string& name) {
  File file;
  file.name = name;
  const std::string path = absl::StrCat(directory_, "/", name);
  TERCIO_ASSIGN_OR_RETURN(file.mapping, MappedFile::Open(path));
  const std::string_view content = file.mapping->content();
  absl::StatusOr<SafetensorsLayout> layout =
      ParseSafetensors(content, static_cast<int64_t>(content.size()));
  if (!layout.ok()) {
    // The parser knows no path, and a directory may have dozens of files.
    return absl::DataLossError(absl::StrCat(path, ": ", std::string(layout.status().message())));
  }
  file.layout = *std::move(layout);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::CheckIndex(
    const std::map<std::string, std::string>& weight_map) const {
  TensorFaults faults(absl::StrCat(directory_, "/", kHuggingFaceIndex));
  std::map<std::string, std::string> there;
  for (const File& file : files_) {
    for (const TensorEntry& entry : file.layout.tensors) there[entry.name] = file.name;
  }
  // Both directions are compared: a file from another download may lack tensors or have more.
  for (const auto& [tensor, file] : weight_map) {
    const auto found = there.find(tensor);
    if (found == there.end() || found->second != file) {
      faults.Damaged(absl::StrCat("tensor ", Shown(tensor), " is not in ", Shown(file)));
    }
  }
  for (const auto& [tensor, file] : there) {
    if (!weight_map.contains(tensor)) {
      faults.Damaged(
          absl::StrCat("tensor ", Shown(tensor), " of ", Shown(file), " is not in the index"));
    }
  }
  return faults.ToStatus();
}

bool HuggingFaceModel::HasPretrainingHeads(const std::vector<File>& files,
                                           const v1::ModelSpec& model) {
  // A classifier has one head, whatever else its file holds.
  if (model.architecture() != v1::ARCHITECTURE_BERT || model.labels() > 0) return false;
  for (const File& file : files) {
    for (const TensorEntry& entry : file.layout.tensors) {
      if (entry.name == "cls.seq_relationship.weight") return true;
    }
  }
  return false;
}

absl::Status HuggingFaceModel::PlaceTensors() {
  TensorFaults faults(directory_);
  const std::map<std::string, FoundTensor> found = FindTensors(files_, model_, &faults);
  std::set<std::string> placed;
  // Checked before a table of that size is made.
  if (static_cast<size_t>(model_.layers()) > found.size()) {
    return absl::DataLossError(absl::StrCat(directory_, ": config.json says ", model_.layers(),
                                            " layers, but the files hold ", found.size(),
                                            " tensors"));
  }
  v1::ModelSpec all = model_;
  if (base_) all.set_sentence_order(true);  // a base model has a pooler, without what reads it
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(all)) {
    const auto at = found.find(tensor.suffix);
    if (at == found.end()) {
      // Heads that a base model lacks are new, and are initialised by the job.
      if (base_ && plan::BelongsToTask(tensor.parts.front().tensor)) continue;
      faults.Damaged(absl::StrCat("tensor ", tensor.name, " is missing"));
      continue;
    }
    placed.insert(tensor.suffix);
    const TensorEntry& entry = *at->second.entry;
    const std::optional<FloatFormat> format = FloatFormatOf(entry.dtype);
    // The shape comes first, since a tensor of another shape is of another model.
    if (entry.shape != tensor.shape) {
      faults.Damaged(absl::StrCat("tensor ", entry.name, " has shape ", ShapeText(entry.shape),
                                  ", config.json gives ", ShapeText(tensor.shape)));
    } else if (!format.has_value()) {
      faults.Unsupported(absl::StrCat("tensor ", entry.name, " has dtype ", entry.dtype,
                                      ", this version reads F32, F16 and BF16"));
    } else {
      const char* data = at->second.file->bytes(entry).data();
      for (const HuggingFacePart& part : tensor.parts) {
        // The view stays valid: the mapping lives as long as this model.
        places_[part.tensor] = {data,       *format,   tensor.transposed, tensor.is_vector,
                                part.begin, part.rows, tensor.inputs,     tensor.outputs};
      }
    }
  }
  for (const auto& [suffix, extra] : found) {
    if (placed.contains(suffix) || IsIgnoredBuffer(model_, suffix)) continue;
    const std::string_view original = TiedCopyOf(model_, suffix);
    if (original.empty()) {
      faults.Damaged(absl::StrCat("tensor ", Shown(extra.entry->name), " does not belong to a ",
                                  plan::TextOf(model_.architecture()), " of this size"));
      continue;
    }
    // If the copy differed, the head would be untied in truth, and dropping it would change the
    // model.
    const auto copied = found.find(std::string(original));
    if (copied == found.end() || extra.entry->dtype != copied->second.entry->dtype ||
        extra.file->bytes(*extra.entry) != copied->second.file->bytes(*copied->second.entry)) {
      faults.Damaged(absl::StrCat("tie_word_embeddings is true, but ", suffix, " differs from ",
                                  std::string(original)));
    }
  }
  return faults.ToStatus();
}

absl::StatusOr<std::string> HuggingFaceModel::TokenizerJson() const {
  return absl::NotFoundError(absl::StrCat(directory_, " holds no Tercio tokenizer"));
}

// A block at a time becomes fp32 where it stays in the cache.
void HuggingFaceModel::ReadTransposed(const Place& place, const v1::TensorSlice& slice,
                                      float* out) const {
  float block[kBlockColumns * kBlockRows];
  const int64_t width = slice.column_end() - slice.column_begin();
  const int64_t bytes = BytesOf(place.format);
  for (int64_t row = slice.row_begin(); row < slice.row_end(); row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, slice.row_end() - row);
    for (int64_t column = 0; column < width; column += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, width - column);
      for (int64_t i = 0; i < columns; ++i) {
        // The matrix is stored with a row for each input, and `place` begins at one of its outputs.
        const int64_t at = (slice.column_begin() + column + i) * place.outputs + place.begin + row;
        WidenFloats(place.format, place.data + at * bytes, rows, block + i * kBlockRows);
      }
      Transpose(block, columns, rows, kBlockRows, out + (row - slice.row_begin()) * width + column,
                width);
    }
  }
}

absl::Status HuggingFaceModel::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  const auto found = places_.find(slice.tensor());
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no tensor ", slice.tensor()));
  }
  const Place& place = found->second;
  // The shape is that of the canonical tensor, which may be a part of the stored one.
  std::vector<int64_t> shape = {place.rows};
  if (!place.is_vector) shape.push_back(place.inputs);
  TERCIO_RETURN_IF_ERROR(CheckWeightSlice(slice, shape, directory_));
  if (place.transposed) {
    ReadTransposed(place, slice, out);
    return absl::OkStatus();
  }
  // Whole rows lie one after the other, and need one call instead of one each.
  const int64_t width = slice.column_end() - slice.column_begin();
  if (width == place.inputs) {
    const int64_t at = (place.begin + slice.row_begin()) * width;
    WidenFloats(place.format, place.data + at * BytesOf(place.format),
                (slice.row_end() - slice.row_begin()) * width, out);
    return absl::OkStatus();
  }
  for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row) {
    const int64_t at = (place.begin + row) * place.inputs + slice.column_begin();
    WidenFloats(place.format, place.data + at * BytesOf(place.format), width,
                out + (row - slice.row_begin()) * width);
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
