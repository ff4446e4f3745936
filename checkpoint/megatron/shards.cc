#include "checkpoint/megatron/shards.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/model_form.h"

namespace tercio::checkpoint {
namespace {

// Heads of one rank.
struct RankHeads {
  int64_t head_dim = 0;
  int64_t groups = 0;   // heads of keys, and of values
  int64_t queries = 0;  // heads of queries in each group
};

RankHeads HeadsOfRank(const v1::ModelSpec& model, const MegatronSplit& split) {
  const MegatronForm form = MegatronFormOf(model);
  return {form.head_dim, form.kv_heads / split.tensor, model.heads() / form.kv_heads};
}

// Query, key and value are parts 0, 1 and 2.
std::vector<MegatronRun> QkvRuns(const MegatronTensor& tensor, const RankHeads& heads,
                                 QkvOrder order, int rank) {
  std::vector<MegatronRun> runs;
  const int64_t in_group = heads.queries + 2;  // heads of all kinds
  for (int part = 0; part < 3; ++part) {
    // Versions 0 and 1 know no groups: each query head has a key and a value of its own.
    const int64_t width = (part == 0 ? heads.queries : 1) * heads.head_dim;
    const int64_t rows = heads.groups * width;
    const MegatronRun all{part, rank * rows, rows, 0, tensor.columns, 0, 1};
    switch (order) {
      case QkvOrder::kPartHeadChannel:
        runs.push_back(all);
        runs.back().stored_row = part * rows;
        break;
      case QkvOrder::kHeadChannelPart:
        runs.push_back(all);
        runs.back().stored_row = part;
        runs.back().stored_step = 3;
        break;
      case QkvOrder::kHeadPartChannel: {
        const int64_t before = part == 0 ? 0 : heads.queries + part - 1;  // heads of the group
        for (int64_t group = 0; group < heads.groups; ++group) {
          MegatronRun& run = runs.emplace_back(all);
          run.row += group * width;
          run.rows = width;
          run.stored_row = (group * in_group + before) * heads.head_dim;
        }
        break;
      }
    }
  }
  return runs;
}

}  // namespace

std::vector<int64_t> MegatronShape(const MegatronTensor& tensor, const MegatronSplit& split) {
  int64_t rows = tensor.vocabulary ? split.padded_vocabulary : tensor.rows;
  int64_t columns = tensor.columns;
  if (tensor.cut == MegatronCut::kRows) rows /= split.tensor;
  if (tensor.cut == MegatronCut::kColumns) columns /= split.tensor;
  std::vector<int64_t> shape = {rows};
  if (!tensor.is_vector) shape.push_back(columns);
  return shape;
}

std::vector<MegatronRun> MegatronRuns(const MegatronTensor& tensor, const v1::ModelSpec& model,
                                      const MegatronSplit& split, int rank) {
  if (tensor.parts.size() == 3) {
    return QkvRuns(tensor, HeadsOfRank(model, split), split.order, rank);
  }
  const std::vector<int64_t> shape = MegatronShape(tensor, split);
  const auto parts = static_cast<int64_t>(tensor.parts.size());
  MegatronRun run;
  run.rows = shape[0] / parts;
  run.columns = tensor.columns;
  if (tensor.cut == MegatronCut::kColumns) {
    run.columns = shape[1];
    run.column = rank * run.columns;
  }
  if (tensor.cut == MegatronCut::kRows) run.row = rank * run.rows;
  if (tensor.vocabulary) {
    // Padding lies behind the last token, so that the last ranks may hold nothing else.
    run.rows = std::clamp<int64_t>(tensor.rows - run.row, 0, run.rows);
    if (run.rows == 0) return {};
  }
  std::vector<MegatronRun> runs(static_cast<size_t>(parts), run);
  for (int part = 1; part < parts; ++part) {
    runs[static_cast<size_t>(part)].part = part;
    runs[static_cast<size_t>(part)].stored_row = part * run.rows;
  }
  return runs;
}

absl::Status CheckMegatronSplit(const v1::ModelSpec& model, const MegatronSplit& split) {
  const MegatronForm form = MegatronFormOf(model);
  const struct {
    const char* what;
    int64_t size;
  } sizes[] = {{"heads", model.heads()},
               {"kv_heads", form.kv_heads},
               {"ffn_hidden", model.ffn_hidden()},
               {"padded vocabulary", split.padded_vocabulary}};
  for (const auto& [what, size] : sizes) {
    if (size % split.tensor == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor degree of ", split.tensor, " does not divide the model's ", size, " ", what));
  }
  // Only the order of the later versions has groups.
  if (split.order != QkvOrder::kHeadPartChannel && form.kv_heads != model.heads()) {
    return absl::InvalidArgumentError(
        "grouped queries need checkpoint_version 2 or later, where their order is defined");
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
