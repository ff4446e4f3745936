#include "checkpoint/huggingface/export.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/export_part.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/transpose.h"
#include "common/file.h"
#include "common/ordered_parts.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "tokenizer/export/huggingface_tokenizer.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kExportPartElements = int64_t{1} << 18;  // stays in the cache until it is written
constexpr char kFramework[] = "pt";  // transformers refuses files that do not say it

// A tensor of a file to write: weights out of the checkpoint, or the bytes of a buffer.
struct OutputTensor {
  TensorEntry entry;
  const HuggingFaceTensor* weights = nullptr;
  std::string_view raw;
};

struct OutputShard {
  std::string name;
  std::string header;
  std::vector<OutputTensor> tensors;  // in the order of their bytes
};

// Rows [begin, end) of a tensor as it is written; all of a buffer.
struct OutputRows {
  const OutputTensor* tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

int64_t OutputBytesOf(const OutputTensor& tensor) {
  if (tensor.weights == nullptr) return static_cast<int64_t>(tensor.raw.size());
  int64_t bytes = DtypeBytes(tensor.entry.dtype);
  for (const int64_t extent : tensor.entry.shape) bytes *= extent;
  return bytes;
}

std::vector<OutputRows> PartsOfShard(const OutputShard& shard) {
  std::vector<OutputRows> parts;
  for (const OutputTensor& tensor : shard.tensors) {
    if (tensor.weights == nullptr) {
      // Buffers are small, and are copied as they are.
      parts.push_back({&tensor});
      continue;
    }
    const HuggingFaceTensor& form = *tensor.weights;
    // A transposed matrix is written with a row for each input.
    const int64_t width = form.transposed ? form.outputs : form.inputs;
    // A row is never divided, even if it is longer than a part.
    const int64_t step = std::max<int64_t>(1, kExportPartElements / width);
    for (int64_t row = 0; row < form.shape[0]; row += step) {
      parts.push_back({&tensor, row, std::min(form.shape[0], row + step)});
    }
  }
  return parts;
}

class Exporter {
 public:
  // `weights`: those of the checkpoint, perhaps with an adapter's products in them.
  Exporter(const Reader& reader, const WeightSource& weights, std::string directory,
           const ExportOptions& options)
      : reader_(reader), weights_(weights), directory_(std::move(directory)), options_(options) {
    v1::ModelSpec model = weights.model();
    if (FormOf(model).always_biased && !model.bias()) {
      model.set_bias(true);
      result_.notes.push_back(absl::StrCat("transformers' ", FormOf(model).model_types.front(),
                                           " has biases: they are written as zeros"));
    }
    forms_ = HuggingFaceTensors(model);
    other_forms_ = OtherTaskTensors(model);
    result_.model = weights.model();
    result_.step = reader.manifest().step;
  }

  absl::StatusOr<ExportResult> Export(OutputDirectory* output);

 private:
  absl::Status CheckKeptNames() const;
  std::vector<std::string> Headers() const;
  absl::Status PlanImported(const std::vector<std::string>& headers);
  const HuggingFaceTensor* WeightsOf(const TensorEntry& entry) const;
  absl::Status AddImported(TensorEntry entry, OutputShard* shard);
  void PlanFresh();
  absl::Status Reshard();
  absl::Status WriteShards(OutputDirectory* output);
  absl::Status MakeRows(const OutputRows& rows, OutputPart* part) const;
  absl::Status ReadRows(const HuggingFaceTensor& form, int64_t begin, int64_t end,
                        std::vector<float>* values) const;
  absl::Status ReadColumns(const HuggingFaceTensor& form, int64_t begin, int64_t end,
                           OutputPart* part) const;
  absl::Status WriteIndex(OutputDirectory* output) const;
  absl::Status WriteKept(OutputDirectory* output, bool index) const;
  absl::Status WriteMade(OutputDirectory* output);
  absl::Status WriteTokenizer(const std::string& origin, OutputDirectory* output);
  std::string Origin();

  const Reader& reader_;
  const WeightSource& weights_;
  const std::string directory_;
  const ExportOptions options_;
  std::vector<HuggingFaceTensor> forms_;
  std::vector<HuggingFaceTensor>
      other_forms_;  // forms of further tasks that imported files may hold
  std::shared_ptr<const MappedFile> buffers_file_;
  std::map<std::string, std::string_view> buffers_;
  std::vector<OutputShard> shards_;
  ExportResult result_;
};

absl::StatusOr<ExportResult> Exporter::Export(OutputDirectory* output) {
  // Faults of names are found before anything is written.
  TERCIO_RETURN_IF_ERROR(CheckKeptNames());
  const std::vector<std::string> headers = Headers();
  if (headers.empty()) {
    PlanFresh();
  } else {
    TERCIO_RETURN_IF_ERROR(PlanImported(headers));
  }
  // With nothing to change, the files become the same as those that were imported, bit by bit.
  const bool as_imported =
      !headers.empty() && options_.max_shard_bytes == 0 && !options_.dtype.has_value();
  if (!as_imported) TERCIO_RETURN_IF_ERROR(Reshard());
  TERCIO_RETURN_IF_ERROR(WriteShards(output));
  // The index of the imported files is among the kept ones, and only fits these files.
  if (!as_imported && shards_.size() > 1) TERCIO_RETURN_IF_ERROR(WriteIndex(output));
  if (headers.empty()) {
    TERCIO_RETURN_IF_ERROR(WriteMade(output));
  } else {
    TERCIO_RETURN_IF_ERROR(WriteKept(output, as_imported));
  }
  for (const auto& [name, file] : output->files()) result_.files.push_back(name);
  result_.bytes = output->bytes();
  return result_;
}

// Kept files are written under the same names, which must lie in the directory itself.
absl::Status Exporter::CheckKeptNames() const {
  for (const auto& [name, file] : reader_.manifest().files) {
    if (absl::StartsWith(name, kKeptFolder) &&
        name.find('/', sizeof(kKeptFolder) - 1) != std::string::npos) {
      return absl::DataLossError(
          absl::StrCat(directory_, "/manifest.json: ", name, " is not a kept file"));
    }
  }
  return absl::OkStatus();
}

// Files of the checkpoint that hold headers of imported files.
std::vector<std::string> Exporter::Headers() const {
  std::vector<std::string> headers;
  for (const auto& [name, file] : reader_.manifest().files) {
    if (absl::StartsWith(name, kKeptFolder) && absl::EndsWith(name, kHeaderSuffix)) {
      headers.push_back(name);
    }
  }
  return headers;
}

absl::Status Exporter::PlanImported(const std::vector<std::string>& headers) {
  if (reader_.manifest().files.contains(kBuffersFile)) {
    const std::string path = absl::StrCat(directory_, "/", kBuffersFile);
    TERCIO_ASSIGN_OR_RETURN(buffers_file_, MappedFile::Open(path));
    const std::string_view content = buffers_file_->content();
    // The digests are compared in another thread meanwhile, so this content may still be damaged.
    TERCIO_ASSIGN_OR_RETURN(const SafetensorsLayout layout,
                            ParseSafetensors(content, static_cast<int64_t>(content.size())));
    for (const TensorEntry& entry : layout.tensors) {
      buffers_[entry.name] = content.substr(static_cast<size_t>(layout.data_begin + entry.begin),
                                            static_cast<size_t>(entry.end - entry.begin));
    }
  }
  for (const std::string& file : headers) {
    OutputShard shard;
    // Each sizeof counts the zero byte of its text, hence the 2.
    shard.name = file.substr(sizeof(kKeptFolder) - 1,
                             file.size() - sizeof(kKeptFolder) - sizeof(kHeaderSuffix) + 2);
    TERCIO_ASSIGN_OR_RETURN(shard.header, ReadFile(absl::StrCat(directory_, "/", file)));
    TERCIO_ASSIGN_OR_RETURN(SafetensorsLayout layout, ParseSafetensorsHeader(shard.header));
    // The file is written from its first byte to its last, while the entries come by name.
    std::sort(layout.tensors.begin(), layout.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) {
                return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
              });
    for (TensorEntry& entry : layout.tensors) {
      TERCIO_RETURN_IF_ERROR(AddImported(std::move(entry), &shard));
    }
    shards_.push_back(std::move(shard));
  }
  return absl::OkStatus();
}

// The weights that an imported tensor holds; null: none.
const HuggingFaceTensor* Exporter::WeightsOf(const TensorEntry& entry) const {
  const v1::ModelSpec& model = weights_.model();
  std::string suffix = CurrentSuffix(model, entry.name);
  // A file may hold the tied head once more, which is the embedding table again.
  if (const std::string_view original = TiedCopyOf(model, suffix); !original.empty()) {
    suffix = original;
  }
  for (const auto* forms : {&forms_, &other_forms_}) {
    for (const HuggingFaceTensor& form : *forms) {
      // The shape must agree as well, since the header is written again as it was.
      if (form.suffix != suffix || form.shape != entry.shape || !FloatFormatOf(entry.dtype))
        continue;
      // Zeros in place of weights that the checkpoint lacks would not be what was imported.
      const bool whole = std::all_of(form.parts.begin(), form.parts.end(),
                                     [&](const auto& part) { return weights_.Has(part.tensor); });
      if (whole) return &form;
    }
  }
  return nullptr;
}

absl::Status Exporter::AddImported(TensorEntry entry, OutputShard* shard) {
  OutputTensor tensor;
  tensor.weights = WeightsOf(entry);
  const auto buffer = buffers_.find(entry.name);
  if (buffer != buffers_.end()) tensor.raw = buffer->second;
  // What is neither a weight nor a buffer of the right size cannot be written: the checkpoint does
  // not fit its header.
  if (tensor.weights == nullptr &&
      static_cast<int64_t>(tensor.raw.size()) != entry.end - entry.begin) {
    return absl::DataLossError(absl::StrCat(directory_, ": the kept header of ", shard->name,
                                            " does not belong to this model"));
  }
  tensor.entry = std::move(entry);
  shard->tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

void Exporter::PlanFresh() {
  OutputShard shard;
  for (const HuggingFaceTensor& form : forms_) {
    OutputTensor tensor;
    tensor.weights = &form;
    tensor.entry.name = form.name;
    tensor.entry.shape = form.shape;
    shard.tensors.push_back(std::move(tensor));
  }
  shards_.push_back(std::move(shard));
}

// The same tensors in files of a limited size, with transformers' names.
absl::Status Exporter::Reshard() {
  const int64_t most = options_.max_shard_bytes > 0 ? options_.max_shard_bytes : kLargestShard;
  std::vector<OutputShard> shards(1);
  int64_t bytes = 0;
  for (OutputShard& old : shards_) {
    for (OutputTensor& tensor : old.tensors) {
      // Only weights change their dtype: buffers may hold numbers that are no floats.
      if (tensor.weights != nullptr && options_.dtype.has_value()) {
        tensor.entry.dtype = SafetensorsName(*options_.dtype);
      }
      int64_t size = DtypeBytes(tensor.entry.dtype);
      for (const int64_t extent : tensor.entry.shape) size *= extent;
      // A tensor that is larger than the limit gets a file of its own, for none is ever divided.
      if (bytes > 0 && bytes + size > most) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += size;
      shards.back().tensors.push_back(std::move(tensor));
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = ShardName(i + 1, shards.size());
    std::vector<TensorEntry> entries;
    // The header gives each entry its place, in the order in which the tensors are written.
    for (const OutputTensor& tensor : shards[i].tensors) entries.push_back(tensor.entry);
    shards[i].header = SafetensorsHeader(&entries, kFramework);
  }
  shards_ = std::move(shards);
  return absl::OkStatus();
}

absl::Status Exporter::WriteShards(OutputDirectory* output) {
  // Progress counts headers, too, so that it ends at exactly the total.
  int64_t total = 0;
  for (const OutputShard& shard : shards_) {
    total += static_cast<int64_t>(shard.header.size());
    for (const OutputTensor& tensor : shard.tensors) total += OutputBytesOf(tensor);
  }
  output->ShowProgress(total, options_.progress);
  for (const OutputShard& shard : shards_) {
    const std::vector<OutputRows> parts = PartsOfShard(shard);
    const auto make = [&](int64_t index, OutputPart* part) {
      // The header goes before the tensors as the part with index 0.
      if (index > 0) return MakeRows(parts[static_cast<size_t>(index - 1)], part);
      part->bytes = shard.header;
      return absl::OkStatus();
    };
    TERCIO_RETURN_IF_ERROR(
        output->WriteParts(shard.name, static_cast<int64_t>(parts.size()) + 1, make));
  }
  return absl::OkStatus();
}

absl::Status Exporter::MakeRows(const OutputRows& rows, OutputPart* part) const {
  const OutputTensor& tensor = *rows.tensor;
  if (tensor.weights == nullptr) {
    part->bytes = tensor.raw;
    return absl::OkStatus();
  }
  const HuggingFaceTensor& form = *tensor.weights;
  const FloatFormat format = *FloatFormatOf(tensor.entry.dtype);
  const int64_t width = form.transposed ? form.outputs : form.inputs;
  std::vector<float>& values = part->values;
  values.resize(static_cast<size_t>((rows.end - rows.begin) * width));
  // Tensors that the model lacks (the biases of a gpt2 without) are zeros.
  // Only the parts that exist are read below.
  const bool whole = std::all_of(form.parts.begin(), form.parts.end(),
                                 [this](const auto& piece) { return weights_.Has(piece.tensor); });
  if (!whole) std::fill(values.begin(), values.end(), 0.0f);
  TERCIO_RETURN_IF_ERROR(form.transposed ? ReadColumns(form, rows.begin, rows.end, part)
                                         : ReadRows(form, rows.begin, rows.end, &values));
  return ConvertPart(tensor.entry.name, format, part);
}

v1::TensorSlice SliceOf(const HuggingFaceTensor& form, const HuggingFacePart& part) {
  v1::TensorSlice slice;
  slice.set_tensor(part.tensor);
  slice.add_shape(part.rows);
  if (!form.is_vector) slice.add_shape(form.inputs);
  slice.set_row_end(part.rows);
  slice.set_column_end(form.inputs);
  return slice;
}

// Outputs [begin, end) of all parts, run by run.
absl::Status Exporter::ReadRows(const HuggingFaceTensor& form, int64_t begin, int64_t end,
                                std::vector<float>* values) const {
  for (const HuggingFacePart& part : form.parts) {
    // Parts that the model lacks stay zeros.
    if (!weights_.Has(part.tensor)) continue;
    // The runs before this one lie before the outputs.
    const int64_t skipped = std::max<int64_t>(0, begin - part.begin) / part.stride;
    for (int64_t row = skipped * part.run; row < part.rows; row += part.run) {
      const int64_t output = part.OutputOf(row);
      if (output >= end) break;
      const int64_t first = std::max(begin, output);
      const int64_t last = std::min(end, output + part.run);
      if (first >= last) continue;
      v1::TensorSlice slice = SliceOf(form, part);
      slice.set_row_begin(row + first - output);
      slice.set_row_end(row + last - output);
      TERCIO_RETURN_IF_ERROR(
          weights_.ReadSlice(slice, values->data() + (first - begin) * form.inputs));
    }
  }
  return absl::OkStatus();
}

// Inputs [begin, end) of all parts, which lie side by side.
absl::Status Exporter::ReadColumns(const HuggingFaceTensor& form, int64_t begin, int64_t end,
                                   OutputPart* part) const {
  const int64_t count = end - begin;
  // This memory belongs to the part, and is used again for the next one.
  std::vector<float>& read = part->other_values;
  for (const HuggingFacePart& piece : form.parts) {
    if (!weights_.Has(piece.tensor)) continue;
    v1::TensorSlice slice = SliceOf(form, piece);
    slice.set_column_begin(begin);
    slice.set_column_end(end);
    read.resize(static_cast<size_t>(piece.rows * count));
    TERCIO_RETURN_IF_ERROR(weights_.ReadSlice(slice, read.data()));
    Transpose(read.data(), piece.rows, count, count, part->values.data() + piece.begin,
              form.outputs);
  }
  return absl::OkStatus();
}

absl::Status Exporter::WriteIndex(OutputDirectory* output) const {
  std::map<std::string, std::string> map;
  int64_t total = 0;
  for (const OutputShard& shard : shards_) {
    for (const OutputTensor& tensor : shard.tensors) map[tensor.entry.name] = shard.name;
    // The size in transformers' index is that of the tensors without headers.
    total += output->files().at(shard.name).bytes - static_cast<int64_t>(shard.header.size());
  }
  return output->Write(kHuggingFaceIndex, WeightIndex(total, map));
}

// Copies what the import kept; `index`: also that of the weight files.
absl::Status Exporter::WriteKept(OutputDirectory* output, bool index) const {
  for (const auto& [path, file] : reader_.manifest().files) {
    if (!absl::StartsWith(path, kKeptFolder) || absl::EndsWith(path, kHeaderSuffix) ||
        path == kBuffersFile) {
      continue;
    }
    const std::string name = path.substr(sizeof(kKeptFolder) - 1);
    // An index of the imported files does not fit files that were divided in another way.
    if (name == kHuggingFaceIndex && !index) continue;
    TERCIO_ASSIGN_OR_RETURN(const auto kept, MappedFile::Open(directory_ + "/" + path));
    // The dtype in config.json must be that of the weights.
    if (name == "config.json" && options_.dtype.has_value()) {
      TERCIO_ASSIGN_OR_RETURN(const std::string config,
                              WithDtype(kept->content(), *options_.dtype));
      TERCIO_RETURN_IF_ERROR(output->Write(name, config));
      continue;
    }
    TERCIO_RETURN_IF_ERROR(output->Write(name, kept->content()));
  }
  return absl::OkStatus();
}

// The folder with the Hugging Face files of the model that training started from, or "".
std::string Exporter::Origin() {
  const std::string& from = weights_.model().from();
  if (from.empty()) return "";
  const absl::StatusOr<ModelFormat> format = FormatOfModel(from);
  // The export needs the folder only for better files, so its loss is worth a note, not an error.
  if (!format.ok()) {
    result_.notes.push_back(absl::StrCat("training started from ", from,
                                         ", which can no longer be read: config.json is made "
                                         "from the model"));
    return "";
  }
  // A checkpoint that was imported holds the Hugging Face files in this folder, and a Megatron-LM
  // checkpoint has none.
  const std::string folder = *format == ModelFormat::kHuggingFace ? from : from + "/hf";
  return PathExists(folder + "/config.json") ? folder : "";
}

absl::Status Exporter::WriteMade(OutputDirectory* output) {
  const std::string origin = Origin();
  std::string config = HuggingFaceConfig(weights_.model());
  if (!origin.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const std::string original, ReadFile(origin + "/config.json"));
    TERCIO_ASSIGN_OR_RETURN(config, ChangedHuggingFaceConfig(original, weights_.model()));
    // Not every model has one, and nothing in it depends on the weights.
    if (const auto generation = ReadFile(origin + "/generation_config.json"); generation.ok()) {
      TERCIO_RETURN_IF_ERROR(output->Write("generation_config.json", *generation));
    }
  }
  if (options_.dtype.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(config, WithDtype(config, *options_.dtype));
  }
  TERCIO_RETURN_IF_ERROR(output->Write("config.json", config));
  return WriteTokenizer(origin, output);
}

// The files of the directory that training started from are better than generated ones: they also
// hold what Tercio does not know, such as chat templates. But the job may have had another
// tokenizer.
absl::Status Exporter::WriteTokenizer(const std::string& origin, OutputDirectory* output) {
  tokenizer::TokenizerFiles files;
  for (const std::string& name : origin.empty() ? std::vector<std::string>() : KeptFiles(origin)) {
    if (!IsTokenizerFile(name)) continue;
    TERCIO_ASSIGN_OR_RETURN(files[name], ReadFile(origin + "/" + name));
  }
  const absl::StatusOr<std::string> own = reader_.TokenizerJson();
  if (own.ok() && !tokenizer::HasVocabularyOf(*own, files)) {
    tokenizer::TokenizerUse use;
    use.context = weights_.model().context();
    use.encodes_texts = !model::ArchitectureOf(weights_.model()).causal;
    files = tokenizer::HuggingFaceTokenizer(*own, use).value_or(tokenizer::TokenizerFiles());
  }
  for (const auto& [name, content] : files) {
    TERCIO_RETURN_IF_ERROR(output->Write(name, content));
  }
  if (files.empty()) {
    result_.notes.push_back(own.ok() ? "the checkpoint's tokenizer has no Hugging Face form: no "
                                       "tokenizer files are written"
                                     : "the checkpoint holds no tokenizer: no tokenizer files are "
                                       "written");
  }
  return absl::OkStatus();
}

// transformers' files have no place for adapters, and to drop them silently would lose the
// training.
absl::Status CheckMerge(const v1::ModelSpec& model, const std::string& checkpoint, bool merge) {
  if (model.has_adapter() == merge) return absl::OkStatus();
  return absl::InvalidArgumentError(
      merge ? absl::StrCat(checkpoint, " has no adapter to merge; leave --merge out")
            : absl::StrCat(checkpoint,
                           " has an adapter: add --merge for a whole model, or use "
                           "--format peft for the adapter alone"));
}

}  // namespace

absl::StatusOr<ExportResult> ExportHuggingFace(const std::string& checkpoint,
                                               const std::string& output_path,
                                               const ExportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto reader, Reader::Open(checkpoint, DigestCheck::kNone));
  // Sizes of tensors are computed from this model, so an impossible one must not get further.
  TERCIO_RETURN_IF_ERROR(CheckPossibleModel(reader->model(), checkpoint + "/manifest.json"));
  TERCIO_RETURN_IF_ERROR(CheckHasHuggingFaceForm(reader->model()));
  TERCIO_RETURN_IF_ERROR(CheckMerge(reader->model(), checkpoint, options.merge));
  std::unique_ptr<MergedWeights> merged;
  if (options.merge) {
    TERCIO_ASSIGN_OR_RETURN(merged, MergedWeights::Of(*reader));
  }
  const WeightSource& weights =
      merged == nullptr ? static_cast<const WeightSource&>(*reader) : *merged;
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kNone));
  // Digests are compared while the output is written: it is not visible before both are done.
  absl::Status undamaged;
  std::thread verification([&] { undamaged = reader->CheckDigests(); });
  Exporter exporter(*reader, weights, checkpoint, options);
  absl::StatusOr<ExportResult> result = exporter.Export(output.get());
  verification.join();
  TERCIO_RETURN_IF_ERROR(undamaged);  // first: damage may be why the export failed
  TERCIO_RETURN_IF_ERROR(result.status());
  TERCIO_RETURN_IF_ERROR(output->Commit());
  return result;
}

}  // namespace tercio::checkpoint
