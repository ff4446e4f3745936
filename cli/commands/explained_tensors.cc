#include "cli/commands/explained_tensors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/text.h"
#include "plan/tensor_places.h"

namespace tercio::cli {
namespace {

const char* CutOf(const plan::LogicalTensor& tensor) {
  switch (tensor.shard) {
    case plan::Shard::kRows:
      return "rows";
    case plan::Shard::kColumns:
      return "columns";
    case plan::Shard::kWhole:
      break;
  }
  return "whole";
}

std::string ShapeOf(const plan::LogicalTensor& tensor) {
  if (tensor.is_vector) return absl::StrCat(tensor.rows);
  return absl::StrCat(tensor.rows, " x ", tensor.columns);
}

// "0-3, 8-11", and with a step "0-6 by 2".
std::string RanksText(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    const int step = end < ranks.size() ? ranks[end] - ranks[begin] : 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) ++end;
    // Two ranks that are not neighbours are no range.
    if (end - begin == 2 && step > 1) --end;
    absl::StrAppend(&text, text.empty() ? "" : ", ", ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    if (end - begin > 1 && step > 1) absl::StrAppend(&text, " by ", step);
    begin = end;
  }
  return text;
}

std::string PartText(const plan::LogicalTensor& tensor, const plan::TensorShard& shard) {
  switch (tensor.shard) {
    case plan::Shard::kRows:
      return absl::StrCat("rows ", shard.row_begin, " to ", shard.row_end);
    case plan::Shard::kColumns:
      return absl::StrCat("columns ", shard.column_begin, " to ", shard.column_end);
    case plan::Shard::kWhole:
      break;
  }
  return "all";
}

}  // namespace

std::string ExplainedTensorsText(const v1::ModelSpec& model, const v1::Layout& layout) {
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "SHAPE", "CUT", "PART", "RANKS"}};
  for (const plan::TensorPlaces& places : plan::PlacesOfTensors(model, layout)) {
    const plan::LogicalTensor& tensor = places.tensor;
    for (size_t i = 0; i < places.parts.size(); ++i) {
      const plan::TensorPart& part = places.parts[i];
      rows.push_back({i == 0 ? tensor.name : "", i == 0 ? ShapeOf(tensor) : "",
                      i == 0 ? CutOf(tensor) : "", PartText(tensor, part.shard),
                      RanksText(part.ranks)});
    }
  }
  return Table(rows);
}

nlohmann::ordered_json ExplainedTensorsJson(const v1::ModelSpec& model, const v1::Layout& layout) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const plan::TensorPlaces& places : plan::PlacesOfTensors(model, layout)) {
    const plan::LogicalTensor& tensor = places.tensor;
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const plan::TensorPart& part : places.parts) {
      parts.push_back({{"rows", {part.shard.row_begin, part.shard.row_end}},
                       {"columns", {part.shard.column_begin, part.shard.column_end}},
                       {"ranks", part.ranks}});
    }
    std::vector<int64_t> shape = {tensor.rows};
    if (!tensor.is_vector) shape.push_back(tensor.columns);
    tensors.push_back(
        {{"name", tensor.name}, {"shape", shape}, {"cut", CutOf(tensor)}, {"parts", parts}});
  }
  const nlohmann::ordered_json degrees = {
      {"tensor", layout.tensor()}, {"pipeline", layout.pipeline()}, {"data", layout.data()}};
  return {{"layout", degrees}, {"tensors", tensors}};
}

}  // namespace tercio::cli
