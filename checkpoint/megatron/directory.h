// The files of a Megatron-LM checkpoint (its format "torch"), found by their names:
//
//   latest_checkpointed_iteration.txt            "500", or "release"
//   iter_0000500/mp_rank_TT/model_optim_rng.pt   tensor rank TT, without pipeline stages
//   iter_0000500/mp_rank_TT_PPP/...              tensor rank TT of pipeline stage PPP
//   release/...                                  the same of a checkpoint without an iteration
//
// A directory of ranks may be given itself, and the file of iterations may be missing where there
// is one such directory only. (Names: get_checkpoint_name and read_metadata in Megatron-LM's
// megatron/training/checkpointing.py, before core r0.5 megatron/checkpointing.py.)
//
// Threads: any.
// Errors: NOT_FOUND when there is no such checkpoint; DATA_LOSS for a rank that is missing or of
// another layout, named; INVALID_ARGUMENT for what this version does not read: sharded checkpoints
// (torch_dist), expert parallelism.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::checkpoint {

inline constexpr char kMegatronIterationFile[] = "latest_checkpointed_iteration.txt";
inline constexpr char kMegatronRankFile[] = "model_optim_rng.pt";

// Whether the names in the directory are those of such a checkpoint, complete or not.
bool IsMegatronDirectory(const std::string& directory);

struct MegatronFiles {
  std::string folder;  // with the ranks
  int tensor = 0;      // degrees
  int pipeline = 0;
  std::vector<std::string> paths;  // that of tensor rank t in stage p at p * tensor + t
  bool optimizer_files = false;    // files of a distributed optimizer are there, too

  const std::string& path(int tensor_rank, int stage) const {
    return paths[static_cast<size_t>(stage * tensor + tensor_rank)];
  }
};

absl::StatusOr<MegatronFiles> FindMegatronFiles(const std::string& directory);

}  // namespace tercio::checkpoint
