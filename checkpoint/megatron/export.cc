#include "checkpoint/megatron/export.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/export_part.h"
#include "checkpoint/megatron/directory.h"
#include "checkpoint/megatron/export_arguments.h"
#include "checkpoint/megatron/model_form.h"
#include "checkpoint/megatron/shards.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "checkpoint/torch/torch_writer.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kMegatronPartElements = int64_t{1} << 18;  // stays in the cache until written
constexpr double kWrittenVersion = 3.0;

// A tensor of one rank's file.
struct RankTensor {
  std::string path;  // through the nested maps of the file
  const MegatronTensor* form = nullptr;
  std::vector<int64_t> shape;
};

// Rows [begin, end) of one.
struct RankRows {
  const RankTensor* tensor = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// The nested maps of tensors with the paths from `skip` on; appends the tensors to *order as a walk
// through the maps meets them.
TorchDict DictOf(const std::vector<const RankTensor*>& tensors, size_t skip, FloatFormat format,
                 std::vector<const RankTensor*>* order) {
  std::vector<std::pair<std::string, std::vector<const RankTensor*>>> groups;
  for (const RankTensor* tensor : tensors) {
    const size_t slash = tensor->path.find('/', skip);
    const std::string key = tensor->path.substr(skip, slash - skip);
    // The table of names keeps the tensors of a map together.
    if (groups.empty() || groups.back().first != key) groups.emplace_back().first = key;
    groups.back().second.push_back(tensor);
  }
  TorchDict dict;
  for (const auto& [key, group] : groups) {
    if (group.front()->path.size() == skip + key.size()) {
      order->push_back(group.front());
      dict.members.push_back({key, {TorchTensorForm{format, group.front()->shape}}});
      continue;
    }
    dict.members.push_back({key, {DictOf(group, skip + key.size() + 1, format, order)}});
  }
  return dict;
}

// The model as Megatron-LM's classes have it, which may have more tensors than ours.
v1::ModelSpec StoredModel(const v1::ModelSpec& model) {
  v1::ModelSpec stored = model;
  const MegatronForm form = MegatronFormOf(model);
  if (form.causal && form.learned_positions) stored.set_bias(true);
  // A BERT has token types only together with its binary head.
  if (!form.causal && model.labels() == 0) {
    stored.set_sentence_order(true);
  }
  return stored;
}

class MegatronExporter {
 public:
  MegatronExporter(const Reader& reader, const MegatronExportOptions& options)
      : reader_(reader),
        options_(options),
        model_(StoredModel(reader.model())),
        format_(options.dtype.value_or(FloatFormat::kF32)) {
    split_.tensor = options.tensor;
    split_.padded_vocabulary = MegatronPaddedVocabulary(model_.vocab_size(), options.tensor);
  }

  // Before anything is written.
  absl::Status Check() const;
  absl::StatusOr<ExportResult> Export(OutputDirectory* output);

 private:
  void AddNotes();
  std::vector<RankTensor> TensorsOfStage(int stage) const;
  absl::Status WriteRank(int tensor_rank, int stage, OutputDirectory* output) const;
  absl::Status MakePart(const RankRows& rows, int tensor_rank, OutputPart* part) const;
  absl::Status FillRun(const MegatronTensor& form, const MegatronRun& run, const RankRows& rows,
                       std::vector<float>* values) const;
  absl::Status FillPadding(const RankRows& rows, int tensor_rank, OutputPart* part) const;
  std::string Folder() const {
    const int64_t step = reader_.manifest().step;
    return step == 0 ? "release" : absl::StrFormat("iter_%07d", step);
  }

  const Reader& reader_;
  const MegatronExportOptions options_;
  const v1::ModelSpec model_;
  const FloatFormat format_;
  MegatronSplit split_;
  std::vector<MegatronTensor> forms_;
  MegatronTensor tied_head_;
  std::set<std::string> present_;  // canonical tensors that the checkpoint has
  ExportResult result_;
};

absl::Status MegatronExporter::Check() const {
  TERCIO_RETURN_IF_ERROR(CheckHasMegatronForm(model_));
  TERCIO_RETURN_IF_ERROR(CheckMegatronSplit(model_, split_));
  if (model_.layers() % options_.pipeline == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a pipeline degree of ", options_.pipeline,
                                                 " does not divide the model's ", model_.layers(),
                                                 " layers"));
}

void MegatronExporter::AddNotes() {
  const v1::ModelSpec& ours = reader_.model();
  if (model_.bias() && !ours.bias()) {
    result_.notes.push_back("Megatron-LM's GPT has biases: they are written as zeros");
  }
  if (model_.sentence_order() && !ours.sentence_order()) {
    result_.notes.push_back(
        "Megatron-LM's BERT has token types only with its binary head: that head and the pooler "
        "are written as zeros");
  }
  if (ours.label_names_size() > 0) {
    result_.notes.push_back("Megatron-LM keeps no names of classes: they are left out");
  }
}

absl::StatusOr<ExportResult> MegatronExporter::Export(OutputDirectory* output) {
  forms_ = MegatronTensors(model_);
  tied_head_ = MegatronTiedHead(model_);
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(reader_.model())) {
    present_.insert(tensor.name);
  }
  AddNotes();
  int64_t total = 0;
  for (int stage = 0; stage < options_.pipeline; ++stage) {
    for (const RankTensor& tensor : TensorsOfStage(stage)) {
      int64_t bytes = BytesOf(format_) * options_.tensor;
      for (const int64_t extent : tensor.shape) bytes *= extent;
      total += bytes;
    }
  }
  output->ShowProgress(total, options_.progress);
  for (int stage = 0; stage < options_.pipeline; ++stage) {
    for (int rank = 0; rank < options_.tensor; ++rank) {
      TERCIO_RETURN_IF_ERROR(WriteRank(rank, stage, output));
    }
  }
  const int64_t step = reader_.manifest().step;
  TERCIO_RETURN_IF_ERROR(
      output->Write(kMegatronIterationFile, step == 0 ? "release" : absl::StrCat(step)));
  result_.model = reader_.model();
  result_.step = step;
  for (const auto& [name, file] : output->files()) result_.files.push_back(name);
  result_.bytes = output->bytes();
  return result_;
}

std::vector<RankTensor> MegatronExporter::TensorsOfStage(int stage) const {
  const int layers = model_.layers() / options_.pipeline;
  const bool last = stage == options_.pipeline - 1;
  std::vector<RankTensor> tensors;
  const auto add = [&](const MegatronTensor& form) {
    const std::string& path = options_.layout == MegatronLayout::kLegacy ? form.legacy : form.core;
    // A stage counts its layers from 0.
    const std::string number = absl::StrCat(form.layer - stage * layers);
    tensors.push_back(
        {absl::StrReplaceAll(path, {{"*", number}}), &form, MegatronShape(form, split_)});
  };
  for (const MegatronTensor& form : forms_) {
    const bool here = form.stage == MegatronStage::kFirst  ? stage == 0
                      : form.stage == MegatronStage::kLast ? last
                                                           : form.layer / layers == stage;
    if (here) add(form);
  }
  // Where the table of tokens is on another stage, the tied head needs a copy.
  if (last && stage > 0 && !model_.untied_head()) add(tied_head_);
  return tensors;
}

absl::Status MegatronExporter::WriteRank(int tensor_rank, int stage,
                                         OutputDirectory* output) const {
  const std::vector<RankTensor> tensors = TensorsOfStage(stage);
  std::vector<const RankTensor*> all;
  for (const RankTensor& tensor : tensors) all.push_back(&tensor);
  std::vector<const RankTensor*> order;
  TorchDict model = DictOf(all, 0, format_, &order);
  const MegatronWritten written{split_, options_.layout, options_.pipeline, reader_.manifest().step,
                                format_};
  TorchDict root;
  root.members.push_back({"args", {TorchNamespace{MegatronArguments(model_, written)}}});
  root.members.push_back({"checkpoint_version", {kWrittenVersion}});
  root.members.push_back({"iteration", {reader_.manifest().step}});
  root.members.push_back({"model", {std::move(model)}});
  TorchWriter writer({std::move(root)});
  std::vector<RankRows> parts;
  for (const RankTensor* tensor : order) {
    const int64_t width = tensor->shape.size() == 2 ? tensor->shape[1] : 1;
    // A row is never divided, even if it is longer than a part.
    const int64_t step = std::max<int64_t>(1, kMegatronPartElements / width);
    for (int64_t row = 0; row < tensor->shape[0]; row += step) {
      parts.push_back({tensor, row, std::min(tensor->shape[0], row + step)});
    }
  }
  const std::string rank = options_.pipeline > 1
                               ? absl::StrFormat("mp_rank_%02d_%03d", tensor_rank, stage)
                               : absl::StrFormat("mp_rank_%02d", tensor_rank);
  return output->WriteParts(
      absl::StrCat(Folder(), "/", rank, "/", kMegatronRankFile), static_cast<int64_t>(parts.size()),
      [&](int64_t index, OutputPart* part) {
        return MakePart(parts[static_cast<size_t>(index)], tensor_rank, part);
      },
      &writer);
}

absl::Status MegatronExporter::MakePart(const RankRows& rows, int tensor_rank,
                                        OutputPart* part) const {
  const MegatronTensor& form = *rows.tensor->form;
  const int64_t width = rows.tensor->shape.size() == 2 ? rows.tensor->shape[1] : 1;
  part->values.resize(static_cast<size_t>((rows.end - rows.begin) * width));
  // Tensors that the model lacks are zeros; only the others are read below.
  const bool whole = std::all_of(form.parts.begin(), form.parts.end(),
                                 [this](const auto& name) { return present_.contains(name); });
  if (!whole) std::fill(part->values.begin(), part->values.end(), 0.0f);
  for (const MegatronRun& run : MegatronRuns(form, model_, split_, tensor_rank)) {
    TERCIO_RETURN_IF_ERROR(FillRun(form, run, rows, &part->values));
  }
  if (form.vocabulary) TERCIO_RETURN_IF_ERROR(FillPadding(rows, tensor_rank, part));
  return ConvertPart(rows.tensor->path, format_, part);
}

// The rows of a run that lie in `rows`.
absl::Status MegatronExporter::FillRun(const MegatronTensor& form, const MegatronRun& run,
                                       const RankRows& rows, std::vector<float>* values) const {
  const std::string& name = form.parts[static_cast<size_t>(run.part)];
  // In the order that is written, the rows of a run follow each other.
  const int64_t first = std::max(rows.begin, run.stored_row);
  const int64_t last = std::min(rows.end, run.stored_row + run.rows);
  if (first >= last || !present_.contains(name)) return absl::OkStatus();
  const auto tensor = reader_.manifest().tensors.find(name);
  if (tensor == reader_.manifest().tensors.end()) {
    return absl::DataLossError(absl::StrCat("the checkpoint has no tensor ", name));
  }
  v1::TensorSlice slice;
  slice.set_tensor(name);
  for (const int64_t extent : tensor->second.shape) slice.add_shape(extent);
  slice.set_row_begin(run.row + first - run.stored_row);
  slice.set_row_end(run.row + last - run.stored_row);
  slice.set_column_begin(run.column);
  slice.set_column_end(run.column + run.columns);
  return reader_.ReadSlice(slice, values->data() + (first - rows.begin) * run.columns);
}

absl::Status MegatronExporter::FillPadding(const RankRows& rows, int tensor_rank,
                                           OutputPart* part) const {
  const MegatronTensor& form = *rows.tensor->form;
  const int64_t begin = tensor_rank * rows.tensor->shape[0];  // id of the rank's first row
  const int64_t first = std::max(rows.begin, form.rows - begin);
  if (first >= rows.end || !present_.contains(form.parts.front())) return absl::OkStatus();
  std::vector<float>& row = part->other_values;
  row.resize(static_cast<size_t>(form.columns));
  const MegatronRun end{0, form.rows - 1, 1, 0, form.columns, 0, 1};
  TERCIO_RETURN_IF_ERROR(FillRun(form, end, {rows.tensor, 0, 1}, &row));
  for (int64_t at = first; at < rows.end; ++at) {
    std::copy(row.begin(), row.end(), part->values.begin() + (at - rows.begin) * form.columns);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportResult> ExportMegatron(const std::string& checkpoint,
                                            const std::string& output_path,
                                            const MegatronExportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto reader, Reader::Open(checkpoint, DigestCheck::kNone));
  // Sizes of tensors are computed from this model, so an impossible one must not get further.
  TERCIO_RETURN_IF_ERROR(CheckPossibleModel(reader->model(), checkpoint + "/manifest.json"));
  if (reader->model().has_adapter()) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint,
                     " has an adapter, for which Megatron-LM's form has no place; export "
                     "it with --format hf --merge, and import the result"));
  }
  MegatronExporter exporter(*reader, options);
  TERCIO_RETURN_IF_ERROR(exporter.Check());
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kNone));
  // Digests are compared while the output is written: it is not visible before both are done.
  absl::Status undamaged;
  std::thread verification([&] { undamaged = reader->CheckDigests(); });
  absl::StatusOr<ExportResult> result = exporter.Export(output.get());
  verification.join();
  TERCIO_RETURN_IF_ERROR(undamaged);  // first: damage may be why the export failed
  TERCIO_RETURN_IF_ERROR(result.status());
  TERCIO_RETURN_IF_ERROR(output->Commit());
  return result;
}

}  // namespace tercio::checkpoint
