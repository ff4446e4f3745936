#include "checkpoint/huggingface/names.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/huggingface/form.h"
#include "common/check.h"
#include "model/architecture.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

// Tensors that a base model lacks stand beside it, not in it.
bool IsBeside(const FormTable& table, std::string_view suffix) {
  for (const std::string_view head : table.beside) {
    if (suffix.starts_with(head)) return true;
  }
  return false;
}

class Expansion {
 public:
  Expansion(const FormTable& table, const v1::ModelSpec& model)
      : table_(table), heads_(model.heads()) {
    for (plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
      const std::string name = tensor.name;
      ours_.emplace(name, std::move(tensor));
    }
  }

  // `place`: of the layer in its stream.
  void Add(const FormRow& row, int layer = 0, int place = 0) {
    const std::string number = absl::StrCat(layer);
    HuggingFaceTensor tensor;
    tensor.suffix = absl::StrReplaceAll(row.theirs, {{"*", absl::StrCat(place)}});
    // Heads stand beside the base model, and have no prefix.
    tensor.name = IsBeside(table_, tensor.suffix) ? tensor.suffix : table_.prefix + tensor.suffix;
    tensor.transposed = row.form == RowForm::kTransposed;
    for (const std::string& pattern : row.ours) {
      const auto found = ours_.find(absl::StrReplaceAll(pattern, {{"*", number}}));
      // A model without this tensor (biases, an untied head, a task) has no such row at all.
      if (found == ours_.end()) return;
      const plan::LogicalTensor& part = found->second;
      tensor.parts.push_back({part.name, tensor.outputs, part.rows, part.rows, part.rows});
      tensor.outputs += part.rows;
      // All parts have the same inputs, so the last one may set them.
      tensor.inputs = part.columns;
      tensor.is_vector = part.is_vector;
    }
    if (row.form == RowForm::kInterleaved) Interleave(&tensor);
    tensor.shape = {tensor.outputs};
    if (!tensor.is_vector) tensor.shape.push_back(tensor.inputs);
    // The file has the matrix the other way round: [inputs, outputs].
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    tensors.push_back(std::move(tensor));
  }

  std::vector<HuggingFaceTensor> tensors;

 private:
  // Each head has a run of every part.
  void Interleave(HuggingFaceTensor* tensor) const {
    int64_t begin = 0;
    for (HuggingFacePart& part : tensor->parts) {
      TERCIO_CHECK_EQ(part.rows % heads_, 0);
      part.begin = begin;
      part.run = part.rows / heads_;
      part.stride = tensor->outputs / heads_;
      begin += part.run;
    }
  }

  const FormTable& table_;
  const int64_t heads_;
  std::map<std::string, plan::LogicalTensor> ours_;
};

// Whether a module with this path is a norm, by the last part: "LayerNorm", "ln_1", "norm".
bool IsNorm(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last.starts_with("ln") || last.ends_with("norm") || last.ends_with("Norm");
}

const FormTable& TableOf(const v1::ModelSpec& model) { return FormOf(model).table(model); }

// '*' stands for one or more digits.
bool Matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  size_t end = star;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  return end > star && text.substr(end) == pattern.substr(star + 1);
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const v1::ModelSpec& model) {
  const FormTable& table = TableOf(model);
  const model::Architecture architecture = model::ArchitectureOf(model);
  Expansion expansion(table, model);
  for (const FormRow& row : table.embedding) expansion.Add(row);
  std::map<int, int> places;  // of the next layer of each stream
  for (int layer = 0; layer < model::LayersOf(model); ++layer) {
    const int stream = architecture.layer(layer).stream;
    const int place = places[stream]++;
    for (const FormRow& row : table.layer) {
      if (row.stream == stream) expansion.Add(row, layer, place);
    }
  }
  for (const FormRow& row : table.end) expansion.Add(row);
  return std::move(expansion.tensors);
}

std::vector<HuggingFaceTensor> OtherTaskTensors(const v1::ModelSpec& model) {
  const HuggingFaceForm& form = FormOf(model);
  if (form.with_other_heads == nullptr) return {};
  std::set<std::string> own;
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(model)) own.insert(std::move(tensor.suffix));
  std::vector<HuggingFaceTensor> others;
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(form.with_other_heads(model))) {
    if (!own.contains(tensor.suffix)) others.push_back(std::move(tensor));
  }
  return others;
}

std::string CurrentSuffix(const v1::ModelSpec& model, std::string_view name) {
  const FormTable& table = TableOf(model);
  const std::string_view prefix = table.prefix;
  // Files of a base model have no prefix.
  if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
  for (const auto& [other, ours] : table.renamed) {
    if (name == other) return ours;
  }
  for (const auto& [old, current] : {std::pair<std::string_view, const char*>(".gamma", ".weight"),
                                     std::pair<std::string_view, const char*>(".beta", ".bias")}) {
    if (!name.ends_with(old)) continue;
    const std::string_view module = name.substr(0, name.size() - old.size());
    // Only norms had these names, which they took over from TensorFlow.
    if (IsNorm(module)) return std::string(module) + current;
  }
  return std::string(name);
}

bool IsIgnoredBuffer(const v1::ModelSpec& model, std::string_view suffix) {
  for (const char* pattern : TableOf(model).ignored) {
    if (Matches(pattern, suffix)) return true;
  }
  return false;
}

std::string_view TiedCopyOf(const v1::ModelSpec& model, std::string_view suffix) {
  const FormTable& table = TableOf(model);
  for (const auto* pairs : {&table.copies, &table.tied}) {
    // An untied head is a tensor of its own.
    if (pairs == &table.tied && model.untied_head()) continue;
    for (const auto& [copy, original] : *pairs) {
      if (suffix == copy) return original;
    }
  }
  return {};
}

bool IsOtherHead(const v1::ModelSpec& model, std::string_view suffix) {
  for (const std::string_view head : TableOf(model).other_heads) {
    if (suffix.starts_with(head)) return true;
  }
  return false;
}

}  // namespace tercio::checkpoint
