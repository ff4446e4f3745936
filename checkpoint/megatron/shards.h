// Which rows and columns of the canonical tensors a tensor rank of Megatron-LM holds, and where in
// its own tensors they lie. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/megatron/names.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// The order of the rows of query, key and value in a rank's part of their common matrix. Heads are
// those of the rank, d the channels of a head (fix_query_key_value_ordering and
// _transpose_first_dim in Megatron-LM's megatron/checkpointing.py).
enum class QkvOrder {
  kPartHeadChannel,  // checkpoint version 0: all heads' queries, keys, values
  kHeadChannelPart,  // version 1: query, key and value of each channel beside each other
  kHeadPartChannel,  // versions 2 and 3: each group's queries, then its key, then its value
};

// How a checkpoint is cut.
struct MegatronSplit {
  int tensor = 1;                 // degree
  int64_t padded_vocabulary = 0;  // rows of the token table over all ranks
  QkvOrder order = QkvOrder::kHeadPartChannel;
};

// Rows [row, row + rows) of a canonical tensor, columns [column, column + columns) of it: row
// row + i is row stored_row + i * stored_step of what the rank stores, from its first column on.
struct MegatronRun {
  int part = 0;  // index in MegatronTensor::parts
  int64_t row = 0;
  int64_t rows = 0;
  int64_t column = 0;
  int64_t columns = 0;
  int64_t stored_row = 0;
  int64_t stored_step = 1;
};

// The shape of what a rank stores: the same for all ranks.
std::vector<int64_t> MegatronShape(const MegatronTensor& tensor, const MegatronSplit& split);

// What a tensor rank stores, without the rows that pad the vocabulary. REQUIRES:
// CheckMegatronSplit.
std::vector<MegatronRun> MegatronRuns(const MegatronTensor& tensor, const v1::ModelSpec& model,
                                      const MegatronSplit& split, int rank);

// INVALID_ARGUMENT names the size of the model that the tensor degree does not divide.
absl::Status CheckMegatronSplit(const v1::ModelSpec& model, const MegatronSplit& split);

}  // namespace tercio::checkpoint
