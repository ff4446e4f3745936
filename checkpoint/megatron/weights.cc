#include "checkpoint/megatron/weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/megatron/names.h"
#include "checkpoint/megatron/vocabulary.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kNamedPieces = 5;  // faults that a message names

std::string ExtentsText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckMegatronSlice(const v1::TensorSlice& slice, const std::vector<int64_t>& shape,
                                const std::string& directory) {
  // Slices are checked before any address is computed from them.
  if (!std::equal(shape.begin(), shape.end(), slice.shape().begin(), slice.shape().end())) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": tensor ", slice.tensor(), " has ",
                                                   ExtentsText(shape),
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

QkvOrder OrderOfVersion(int version) {
  return version == 0   ? QkvOrder::kPartHeadChannel
         : version == 1 ? QkvOrder::kHeadChannelPart
                        : QkvOrder::kHeadPartChannel;
}

}  // namespace

// Finds the tensors of the model in all ranks, and gathers faults.
class MegatronModel::Placing {
 public:
  explicit Placing(MegatronModel* model) : model_(*model), files_(model->files_) {
    split_.tensor = files_.tensor;
    split_.padded_vocabulary = model_.description_.padded_vocabulary;
    split_.order = OrderOfVersion(model_.ranks_.front()->version());
  }

  absl::Status Place() {
    if (const absl::Status split = CheckMegatronSplit(model_.model(), split_); !split.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files_.folder, ": ", std::string(split.message())));
    }
    TERCIO_RETURN_IF_ERROR(FindLayers());
    for (const plan::LogicalTensor& tensor : plan::ModelTensors(model_.model())) {
      MegatronModel::Place& place = model_.places_[tensor.name];
      place.shape.push_back(tensor.rows);
      if (!tensor.is_vector) place.shape.push_back(tensor.columns);
    }
    for (const MegatronTensor& tensor : MegatronTensors(model_.model())) {
      for (int rank = 0; rank < files_.tensor; ++rank) PlaceTensor(tensor, rank);
    }
    CheckTiedHeads();
    CheckOthers();
    if (!rounded_.empty()) {
      model_.description_.notes.push_back(
          absl::StrCat("numbers of 64 bits (", rounded_, ") are rounded to fp32"));
    }
    return status();
  }

 private:
  // A part of the model in one file, and the name of a layer there.
  struct Where {
    int stage = 0;
    size_t chunk = 0;
    int64_t layer = 0;  // counted in the chunk
  };

  // Stages follow each other within a chunk, and chunks after all stages (get_num_layers and offset
  // in Megatron-LM's megatron/model/transformer.py). The files say how many layers each has, since
  // stages may differ.
  absl::Status FindLayers() {
    const size_t chunks = model_.ranks_.front()->chunks().size();
    for (const auto& rank : model_.ranks_) {
      if (rank->chunks().size() == chunks) continue;
      return absl::DataLossError(absl::StrCat(rank->path(), ": has ", rank->chunks().size(),
                                              " virtual pipeline stages, but ",
                                              model_.ranks_.front()->path(), " has ", chunks));
    }
    int64_t layers = 0;
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      for (int stage = 0; stage < files_.pipeline; ++stage) {
        const MegatronChunk& tensors = model_.rank(0, stage).chunks()[chunk];
        const int64_t here = LayersOf(tensors);
        // Checked before a table of that size is made.
        if (here > static_cast<int64_t>(tensors.size())) {
          return absl::DataLossError(absl::StrCat(model_.rank(0, stage).path(), ": names ", here,
                                                  " layers, but holds ", tensors.size(),
                                                  " tensors"));
        }
        for (int64_t layer = 0; layer < here; ++layer) layers_.push_back({stage, chunk, layer});
        layers += here;
      }
    }
    if (layers == model_.model().layers()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(files_.folder, ": the files hold ", layers,
                                            " layers, but args.num_layers is ",
                                            model_.model().layers()));
  }

  Where WhereOf(const MegatronTensor& tensor) const {
    switch (tensor.stage) {
      case MegatronStage::kFirst:
        return {0, 0, 0};
      case MegatronStage::kOfLayer:
        return layers_[static_cast<size_t>(tensor.layer)];
      case MegatronStage::kLast:
        break;
    }
    return {files_.pipeline - 1, model_.ranks_.front()->chunks().size() - 1, 0};
  }

  void PlaceTensor(const MegatronTensor& tensor, int rank) {
    const Where where = WhereOf(tensor);
    const MegatronRank& file = model_.rank(rank, where.stage);
    std::string name = tensor.name;
    if (tensor.layer >= 0) {
      // A stage counts its layers from 0.
      name =
          absl::StrCat("layers.", where.layer, name.substr(name.find('.', sizeof("layers.") - 1)));
    }
    const MegatronChunk& chunk = file.chunks()[where.chunk];
    const auto found = chunk.find(name);
    if (found == chunk.end()) {
      return Damaged(file, absl::StrCat("tensor ", name, " is missing"));
    }
    placed_.insert(found->second.tensor);
    const TorchTensor& stored = *found->second.tensor;
    const std::vector<int64_t> expected = MegatronShape(tensor, split_);
    const std::optional<FloatFormat> format = FloatFormatOf(stored.dtype);
    // The shape comes first, since a tensor of another shape is of another model.
    if (stored.shape != expected) {
      return Damaged(file, absl::StrCat("tensor ", found->second.name, " has shape ",
                                        ExtentsText(stored.shape), ", the arguments give ",
                                        ExtentsText(expected)));
    }
    if (!format.has_value()) {
      unsupported_.push_back(absl::StrCat(file.path(), ": tensor ", found->second.name,
                                          " has dtype ", stored.dtype,
                                          ", this version reads F32, F16, BF16 and F64"));
      return;
    }
    int64_t bytes = BytesOf(*format);
    for (const int64_t extent : expected) bytes *= extent;
    // A tensor that repeats its elements could be of any size.
    if (bytes > static_cast<int64_t>(stored.storage.size())) {
      unsupported_.push_back(absl::StrCat(file.path(), ": tensor ", found->second.name,
                                          " repeats its elements, which is not supported"));
      return;
    }
    if (*format == FloatFormat::kF64) rounded_ = found->second.name;
    // All ranks have the same copy of what is not cut.
    if (tensor.cut == MegatronCut::kWhole && rank > 0) return;
    for (const MegatronRun& run : MegatronRuns(tensor, model_.model(), split_, rank)) {
      const std::string& part = tensor.parts[static_cast<size_t>(run.part)];
      model_.places_[part].pieces.push_back({run, &stored, *format});
    }
  }

  // With a tied head the last of several stages has a copy of the table of tokens. If it differed,
  // the head would be untied in truth, and dropping it would change the model.
  void CheckTiedHeads() {
    if (model_.model().untied_head()) return;
    const Where last = WhereOf({.stage = MegatronStage::kLast});
    for (int rank = 0; rank < files_.tensor; ++rank) {
      const MegatronRank& file = model_.rank(rank, last.stage);
      const MegatronChunk& first = model_.rank(rank, 0).chunks().front();
      const auto table = first.find("embedding.word_embeddings.weight");
      for (const char* name : {"word_embeddings_for_head.weight", "output_layer.weight"}) {
        const auto copy = file.chunks()[last.chunk].find(name);
        if (copy == file.chunks()[last.chunk].end() || table == first.end()) continue;
        const TorchTensor& head = *copy->second.tensor;
        const TorchTensor& tokens = *table->second.tensor;
        placed_.insert(&head);
        const bool same = head.dtype == tokens.dtype && head.shape == tokens.shape &&
                          head.IsContiguous() && tokens.IsContiguous() &&
                          head.bytes() == tokens.bytes();
        if (!same) {
          Damaged(file, absl::StrCat("the head is tied, but ", copy->second.name,
                                     " differs from the word embeddings"));
        }
      }
    }
  }

  void CheckOthers() {
    for (const auto& rank : model_.ranks_) {
      for (const MegatronChunk& chunk : rank->chunks()) {
        for (const auto& [plain, stored] : chunk) {
          if (placed_.contains(stored.tensor)) continue;
          Damaged(*rank,
                  absl::StrCat("tensor ", absl::Utf8SafeCEscape(stored.name.substr(0, 200)),
                               " does not belong to a ",
                               plan::TextOf(model_.model().architecture()), " of this size"));
        }
      }
    }
  }

  void Damaged(const MegatronRank& rank, const std::string& what) {
    damaged_.push_back(absl::StrCat(rank.path(), ": ", what));
  }

  absl::Status status() const {
    std::vector<std::string> told = damaged_;
    told.insert(told.end(), unsupported_.begin(), unsupported_.end());
    if (told.empty()) return absl::OkStatus();
    if (told.size() > kNamedPieces) {
      const size_t more = told.size() - kNamedPieces;
      told.resize(kNamedPieces);
      told.push_back(absl::StrCat("and ", more, " more"));
    }
    const std::string message = absl::StrJoin(told, "; ");
    // A type that this version cannot read says nothing against the file.
    return damaged_.empty() ? absl::InvalidArgumentError(message) : absl::DataLossError(message);
  }

  MegatronModel& model_;
  const MegatronFiles& files_;
  MegatronSplit split_;
  std::vector<Where> layers_;
  std::set<const TorchTensor*> placed_;
  std::string rounded_;  // a tensor whose numbers are rounded
  std::vector<std::string> damaged_;
  std::vector<std::string> unsupported_;
};

absl::StatusOr<std::unique_ptr<MegatronModel>> MegatronModel::Open(const std::string& directory) {
  auto model = std::make_unique<MegatronModel>();
  model->directory_ = directory;
  TERCIO_ASSIGN_OR_RETURN(model->files_, FindMegatronFiles(directory));
  TERCIO_RETURN_IF_ERROR(model->OpenRanks());
  TERCIO_ASSIGN_OR_RETURN(const int64_t tokenizer, VocabularyBeside(directory));
  TERCIO_ASSIGN_OR_RETURN(model->description_,
                          DescribeMegatron(model->files_, model->rank(0, 0),
                                           model->rank(0, model->files_.pipeline - 1), tokenizer));
  TERCIO_RETURN_IF_ERROR(Placing(model.get()).Place());
  bool optimizer = model->files_.optimizer_files;
  for (const auto& rank : model->ranks_) optimizer |= rank->has_optimizer();
  if (optimizer) {
    model->description_.notes.push_back(
        "the state of the optimizer is left out: only weights are read");
  }
  return model;
}

absl::Status MegatronModel::OpenRanks() {
  for (const std::string& path : files_.paths) {
    TERCIO_ASSIGN_OR_RETURN(auto rank, MegatronRank::Open(path));
    if (!ranks_.empty()) TERCIO_RETURN_IF_ERROR(CheckSameTraining(*ranks_.front(), *rank));
    ranks_.push_back(std::move(rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MegatronModel::TokenizerJson() const {
  return absl::NotFoundError(absl::StrCat(directory_, " holds no Tercio tokenizer"));
}

// The values of a piece that lie in the slice go to their places in `out`.
void MegatronModel::ReadPiece(const Piece& piece, const v1::TensorSlice& slice, float* out) {
  const MegatronRun& run = piece.run;
  const int64_t row_begin = std::max(slice.row_begin(), run.row);
  const int64_t row_end = std::min(slice.row_end(), run.row + run.rows);
  const int64_t column_begin = std::max(slice.column_begin(), run.column);
  const int64_t column_end = std::min(slice.column_end(), run.column + run.columns);
  if (row_begin >= row_end || column_begin >= column_end) return;
  const TorchTensor& stored = *piece.stored;
  const bool matrix = stored.shape.size() == 2;
  const int64_t row_stride = stored.strides[0] * run.stored_step;
  const int64_t column_stride = matrix ? stored.strides[1] : 1;
  const int64_t first = stored.offset + run.stored_row * stored.strides[0] +
                        (row_begin - run.row) * row_stride +
                        (column_begin - run.column) * column_stride;
  const int64_t width = slice.column_end() - slice.column_begin();
  const int64_t bytes = BytesOf(piece.format);
  const char* from = stored.storage.data() + first * bytes;
  float* to = out + (row_begin - slice.row_begin()) * width + (column_begin - slice.column_begin());
  const int64_t rows = row_end - row_begin;
  const int64_t columns = column_end - column_begin;
  // Rows that follow each other here and there need one call instead of one each.
  if (column_stride == 1 && row_stride == columns && width == columns) {
    return WidenFloats(piece.format, from, rows * columns, to);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const char* at = from + row * row_stride * bytes;
    if (column_stride == 1) {
      WidenFloats(piece.format, at, columns, to + row * width);
      continue;
    }
    // torch saves a transposed view with the strides that it has.
    for (int64_t column = 0; column < columns; ++column) {
      WidenFloats(piece.format, at + column * column_stride * bytes, 1, to + row * width + column);
    }
  }
}

absl::Status MegatronModel::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  const auto found = places_.find(slice.tensor());
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no tensor ", slice.tensor()));
  }
  const Place& place = found->second;
  TERCIO_RETURN_IF_ERROR(CheckMegatronSlice(slice, place.shape, directory_));
  for (const Piece& piece : place.pieces) ReadPiece(piece, slice, out);
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
