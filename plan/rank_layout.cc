#include "plan/rank_layout.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::plan {
namespace {

v1::ProcessGroup Group(const std::string& name, v1::GroupKind kind, const std::vector<int>& ranks) {
  v1::ProcessGroup group;
  group.set_name(name);
  group.set_kind(kind);
  group.mutable_ranks()->Add(ranks.begin(), ranks.end());
  return group;
}

absl::Status Impossible(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("impossible layout: ", what));
}

}  // namespace

int WorldSize(const v1::Layout& layout) {
  return layout.tensor() * layout.data() * layout.pipeline() * layout.context_parallel();
}

Coordinates CoordinatesOfRank(const v1::Layout& layout, int rank) {
  TERCIO_CHECK(rank >= 0 && rank < WorldSize(layout));
  Coordinates at;
  at.tensor = rank % layout.tensor();
  at.data = rank / layout.tensor() % layout.data();
  at.pipeline = rank / (layout.tensor() * layout.data());
  return at;
}

int RankOfCoordinates(const v1::Layout& layout, const Coordinates& at) {
  return (at.pipeline * layout.data() + at.data) * layout.tensor() + at.tensor;
}

std::vector<v1::ProcessGroup> ProcessGroups(const v1::Layout& layout) {
  const int world = WorldSize(layout);
  std::vector<v1::ProcessGroup> groups;
  std::vector<int> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(rank);
  groups.push_back(Group("world", v1::GROUP_KIND_WORLD, all));
  const auto add = [&](const char* name, v1::GroupKind kind, int size, auto member) {
    int index = 0;
    for (int rank = 0; rank < world; ++rank) {
      const Coordinates at = CoordinatesOfRank(layout, rank);
      std::vector<int> ranks;
      for (int i = 0; i < size; ++i) ranks.push_back(RankOfCoordinates(layout, member(at, i)));
      // Each group is made once, from its first rank.
      if (ranks.front() != rank) continue;
      groups.push_back(Group(absl::StrCat(name, ".", index++), kind, ranks));
    }
  };
  add("tensor", v1::GROUP_KIND_TENSOR, layout.tensor(), [](Coordinates at, int i) {
    at.tensor = i;
    return at;
  });
  add("data", v1::GROUP_KIND_DATA, layout.data(), [](Coordinates at, int i) {
    at.data = i;
    return at;
  });
  add("pipeline", v1::GROUP_KIND_PIPELINE, layout.pipeline(), [](Coordinates at, int i) {
    at.pipeline = i;
    return at;
  });
  return groups;
}

absl::Status CheckLayout(const v1::JobSpec& job, const v1::Layout& layout, int ranks) {
  const v1::ModelSpec& model = job.model();
  const int tensor = layout.tensor();
  const int pipeline = layout.pipeline();
  const int data = layout.data();
  if (tensor < 1 || pipeline < 1 || data < 1 || layout.context_parallel() < 1) {
    return Impossible(absl::StrCat("every degree must be at least 1 (tensor ", tensor,
                                   ", pipeline ", pipeline, ", data ", data, ")"));
  }
  if (WorldSize(layout) != ranks) {
    return Impossible(absl::StrCat("tensor ", tensor, " x pipeline ", pipeline, " x data ", data,
                                   " = ", WorldSize(layout), " ranks, but resources.ranks is ",
                                   ranks));
  }
  if (model.heads() % tensor != 0) {
    return Impossible(
        absl::StrCat("tensor ", tensor, " does not divide model.heads ", model.heads()));
  }
  if (model.kv_heads() % tensor != 0) {
    return Impossible(
        absl::StrCat("tensor ", tensor, " does not divide model.kv_heads ", model.kv_heads()));
  }
  if (layout.sequence_parallel() && model.context() % tensor != 0) {
    return Impossible(absl::StrCat("sequence_parallel: tensor ", tensor,
                                   " does not divide model.context ", model.context()));
  }
  if (model.ffn_hidden() % tensor != 0) {
    return Impossible(
        absl::StrCat("tensor ", tensor, " does not divide model.ffn_hidden ", model.ffn_hidden()));
  }
  const int chunks = std::max(1, layout.virtual_pipeline());
  if (model.layers() % (pipeline * chunks) != 0) {
    return Impossible(absl::StrCat("pipeline ", pipeline,
                                   chunks > 1 ? absl::StrCat(" x virtual_pipeline ", chunks) : "",
                                   " does not divide model.layers ", model.layers()));
  }
  if ((layout.schedule() == "interleaved") != (chunks > 1)) {
    return Impossible(absl::StrCat("schedule ", layout.schedule(), " with virtual_pipeline ",
                                   chunks, ": interleaved needs 2 or more, the others 1"));
  }
  if (chunks > 1 && pipeline < 2) return Impossible("interleaved needs pipeline 2 or more");
  const int64_t batch = job.training().global_batch();
  const int64_t unit = int64_t{data} * layout.micro_batch();
  if (layout.micro_batch() < 1 || batch % unit != 0) {
    return Impossible(absl::StrCat("training.global_batch ", batch, " is not a multiple of data ",
                                   data, " x micro_batch ", layout.micro_batch()));
  }
  if (chunks > 1 && batch / unit % pipeline != 0) {
    return Impossible(absl::StrCat("interleaved needs a multiple of pipeline ", pipeline,
                                   " micro-batches, global_batch / (data x micro_batch) is ",
                                   batch / unit));
  }
  if (layout.micro_batches() != batch / unit) {
    return Impossible(absl::StrCat("micro_batches is ", layout.micro_batches(),
                                   ", but global_batch / (data x micro_batch) is ", batch / unit));
  }
  return absl::OkStatus();
}

}  // namespace tercio::plan
