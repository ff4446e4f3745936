// The optimizer's treatment of a tensor: weight decay, or no update at all. Pure.
#pragma once

#include <string_view>

#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// Whether `pattern` describes the whole name; `*` stands for any characters, also none.
bool MatchesPattern(std::string_view name, std::string_view pattern);

struct TensorPolicy {
  bool weight_decay = false;  // matrices, but for those that optimizer.no_decay names
  bool frozen = false;        // named by training.frozen: neither updated nor part of the norm
};
TensorPolicy PolicyOf(const LogicalTensor& tensor, const v1::TrainingSpec& training);

// Whether any tensor of the model has a name like this. vocab_size may be 0.
bool MatchesAnyTensor(const v1::ModelSpec& model, std::string_view pattern);

}  // namespace tercio::plan
