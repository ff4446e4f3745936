#include "checkpoint/huggingface/weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/read_stored.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "plan/model_tensors.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kNamedTensors = 8;  // in a note

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Whether two tensors have the same bits. Files of torch hold a tied tensor only once.
bool SameBits(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && a.bytes.size() == b.bytes.size() &&
         (a.bytes.data() == b.bytes.data() || a.bytes == b.bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HuggingFaceModel>> HuggingFaceModel::Open(
    const std::string& directory) {
  auto model = std::make_unique<HuggingFaceModel>();
  model->directory_ = directory;
  const std::string config = directory + "/config.json";
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
  // The config decides which tensors there have to be, so it is read before the weights.
  TERCIO_ASSIGN_OR_RETURN(model->model_, ModelOfHuggingFaceConfig(text, config));
  model->base_ = IsBaseModelConfig(text, model->model_);
  TERCIO_ASSIGN_OR_RETURN(model->files_, OpenWeightFiles(directory, model->model_));
  if (const HuggingFaceForm& form = FormOf(model->model_); form.complete != nullptr) {
    form.complete([&](std::string_view name) { return model->HasStored(name); }, &model->model_);
  }
  TERCIO_RETURN_IF_ERROR(model->PlaceTensors());
  return model;
}

bool HuggingFaceModel::HasStored(std::string_view name) const {
  for (const WeightFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors) {
      if (tensor.name == name) return true;
    }
  }
  return false;
}

HuggingFaceModel::Found HuggingFaceModel::FindTensors(TensorFaults* faults) const {
  Found found;
  for (const WeightFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors) {
      // A file may hold a tensor with and without prefix, and only one of them could count.
      if (!found.emplace(CurrentSuffix(model_, tensor.name), &tensor).second) {
        faults->Damaged(absl::StrCat("tensor ", ShownName(tensor.name), " appears twice"));
      }
    }
  }
  return found;
}

// A file may hold only the copy of a tied tensor.
const StoredTensor* HuggingFaceModel::FindOrCopy(const Found& found,
                                                 const std::string& suffix) const {
  if (const auto at = found.find(suffix); at != found.end()) return at->second;
  for (const auto& [name, tensor] : found) {
    if (TiedCopyOf(model_, name) == suffix) return tensor;
  }
  return nullptr;
}

// Heads that a base model or a new classifier lacks are initialised by the job.
bool HuggingFaceModel::MayLack(const HuggingFaceTensor& tensor) const {
  return (base_ || model_.labels() > 0) && plan::BelongsToTask(model_, tensor.parts.front().tensor);
}

void HuggingFaceModel::Place(const HuggingFaceTensor& tensor, const StoredTensor& stored,
                             TensorFaults* faults) {
  canonical_[stored.name] = tensor.parts.front().tensor;
  const std::optional<FloatFormat> format = FloatFormatOf(stored.dtype);
  const std::string name = ShownName(stored.name);
  // The shape comes first, since a tensor of another shape is of another model.
  if (stored.shape != tensor.shape) {
    return faults->Damaged(absl::StrCat("tensor ", name, " has shape ", ShapeText(stored.shape),
                                        ", config.json gives ", ShapeText(tensor.shape)));
  }
  if (!format.has_value()) {
    return faults->Unsupported(absl::StrCat("tensor ", name, " has dtype ", stored.dtype,
                                            ", this version reads F32, F16, BF16 and F64"));
  }
  if (stored.repeats) {
    return faults->Unsupported(
        absl::StrCat("tensor ", name, " repeats its elements, which is not supported"));
  }
  if (*format == FloatFormat::kF64) rounded_ = stored.name;
  for (const HuggingFacePart& part : tensor.parts) {
    // The view stays valid: its file lives as long as this model.
    places_[part.tensor] = {stored.bytes.data(), *format,       part,          tensor.transposed,
                            tensor.is_vector,    tensor.inputs, tensor.outputs};
  }
}

absl::Status HuggingFaceModel::PlaceTensors() {
  TensorFaults faults(directory_);
  const Found found = FindTensors(&faults);
  // Checked before a table of that size is made.
  if (const int layers = model::LayersOf(model_); static_cast<size_t>(layers) > found.size()) {
    return absl::DataLossError(absl::StrCat(directory_, ": config.json says ", layers,
                                            " layers, but the files hold ", found.size(),
                                            " tensors"));
  }
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model_)) {
    if (const StoredTensor* const stored = FindOrCopy(found, tensor.suffix)) {
      Place(tensor, *stored, &faults);
    } else if (!MayLack(tensor)) {
      faults.Damaged(absl::StrCat("tensor ", tensor.name, " is missing"));
    }
  }
  // A job may have another task than config.json names.
  for (const HuggingFaceTensor& tensor : OtherTaskTensors(model_)) {
    if (const StoredTensor* const stored = FindOrCopy(found, tensor.suffix)) {
      Place(tensor, *stored, &faults);
    }
  }
  CheckOthers(found, &faults);
  return faults.ToStatus();
}

void HuggingFaceModel::CheckOthers(const Found& found, TensorFaults* faults) {
  for (const auto& [suffix, extra] : found) {
    if (canonical_.contains(extra->name) || IsIgnoredBuffer(model_, suffix)) continue;
    const std::string tied(TiedCopyOf(model_, suffix));
    // The original, or the first of several copies.
    const StoredTensor* const original = tied.empty() ? nullptr : FindOrCopy(found, tied);
    if (original != nullptr) {
      // If the copy differed, it would not be tied in truth, and dropping it would change the
      // model.
      if (SameBits(*extra, *original)) continue;
      faults->Damaged(absl::StrCat(suffix, " differs from ", ShownName(original->name),
                                   ", of which it is a copy",
                                   model_.untied_head() ? "" : " (tie_word_embeddings is true)"));
    } else if (IsOtherHead(model_, suffix)) {
      other_heads_.push_back(extra->name);
    } else {
      faults->Damaged(absl::StrCat("tensor ", ShownName(extra->name), " does not belong to a ",
                                   plan::TextOf(model_.architecture()), " of this size"));
    }
  }
}

std::vector<std::string> HuggingFaceModel::NotesFor(const v1::ModelSpec& model) const {
  std::set<std::string> used;
  for (plan::LogicalTensor& tensor : plan::ModelTensors(model)) used.insert(std::move(tensor.name));
  std::vector<std::string> unused = other_heads_;
  for (const auto& [stored, canonical] : canonical_) {
    if (!used.contains(canonical)) unused.push_back(stored);
  }
  std::vector<std::string> notes;
  if (!unused.empty()) {
    std::sort(unused.begin(), unused.end());
    notes.push_back(absl::StrCat("the model has no use for ", ListedNames(unused, kNamedTensors)));
  }
  if (!rounded_.empty()) {
    notes.push_back(absl::StrCat("numbers of 64 bits (", ShownName(rounded_),
                                 " and others) are rounded to 32 bits"));
  }
  return notes;
}

absl::StatusOr<std::string> HuggingFaceModel::TokenizerJson() const {
  return absl::NotFoundError(absl::StrCat(directory_, " holds no Tercio tokenizer"));
}

absl::Status HuggingFaceModel::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  const auto found = places_.find(slice.tensor());
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no tensor ", slice.tensor()));
  }
  return ReadStored(found->second, slice, directory_, out);
}

}  // namespace tercio::checkpoint
