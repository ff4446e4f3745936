// transformers' names and shapes of a model's tensors, and which canonical tensors (see
// plan/model_tensors.h) each holds: the tables of checkpoint/huggingface/form.h, written out for
// the layers of a model. Everything else that reads or writes Hugging Face directories walks these.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// One canonical tensor inside of a Hugging Face tensor. Its rows come in runs: the first `run` rows
// are outputs from `begin` on, the next ones those from begin + stride on, and so forth. Whole
// tensors are one run.
struct HuggingFacePart {
  std::string tensor;
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t run = 0;
  int64_t stride = 0;

  // The output that holds this row.
  int64_t OutputOf(int64_t row) const { return begin + row / run * stride + row % run; }
};

// Outputs are rows, or columns where the matrix is transposed ([in, out], GPT-2's Conv1D).
struct HuggingFaceTensor {
  std::string name;    // as transformers writes it
  std::string suffix;  // the name without the prefix that a base model's file leaves out
  std::vector<int64_t> shape;
  bool is_vector = false;
  bool transposed = false;
  int64_t outputs = 0;  // over all parts
  int64_t inputs = 1;
  std::vector<HuggingFacePart> parts;
};

// REQUIRES: the architecture has a form, vocab_size > 0.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const v1::ModelSpec& model);

// The tensors of other tasks that a file of this model may hold beside its own: the pooler and the
// heads of bert's pretraining. Empty for architectures with one task.
std::vector<HuggingFaceTensor> OtherTaskTensors(const v1::ModelSpec& model);

// The suffix under which current versions of transformers know a tensor: without "transformer.",
// "model." or "bert.", with weight and bias instead of a norm's gamma and beta, and under the name
// that files have.
std::string CurrentSuffix(const v1::ModelSpec& model, std::string_view name);

// Buffers that old versions of transformers saved, and that carry no information: causal masks,
// rotary frequencies. Suffixes here and below are those of CurrentSuffix.
bool IsIgnoredBuffer(const v1::ModelSpec& model, std::string_view suffix);

// The tensor that `suffix` repeats, as a tied head does; empty when it is no copy.
std::string_view TiedCopyOf(const v1::ModelSpec& model, std::string_view suffix);

// Whether `suffix` belongs to the head of a task that this model does not have: it says nothing
// against the file.
bool IsOtherHead(const v1::ModelSpec& model, std::string_view suffix);

}  // namespace tercio::checkpoint
