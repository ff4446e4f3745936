// The optimizer's treatment of a tensor: weight decay, or no update at all. Pure.
#pragma once

#include <string_view>

#include "model/name_pattern.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

using model::MatchesPattern;

struct TensorPolicy {
  bool weight_decay = false;  // matrices, but for those that optimizer.no_decay names
  // Named by training.frozen, or below adapters: neither updated nor part of the norm.
  bool frozen = false;
};
TensorPolicy PolicyOf(const LogicalTensor& tensor, const v1::TrainingSpec& training);

// Whether the job may have frozen tensors.
bool FreezesAnything(const v1::JobSpec& job);

// Whether any tensor of the model has a name like this. vocab_size may be 0.
bool MatchesAnyTensor(const v1::ModelSpec& model, std::string_view pattern);

}  // namespace tercio::plan
