#include "plan/base_format.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/names.h"

namespace tercio::plan {
namespace {

// The matrices that are quantised. Names and sizes of layers do not depend on the vocabulary, but
// the list of tensors wants one.
std::vector<LogicalTensor> QuantizedMatrices(v1::JobSpec job) {
  job.mutable_model()->set_vocab_size(std::max(1, job.model().vocab_size()));
  const std::vector<bool> quantized = TensorsQuantized(job);
  std::vector<LogicalTensor> matrices = ModelTensors(job.model());
  std::erase_if(matrices, [&](const LogicalTensor& tensor) {
    return !quantized[static_cast<size_t>(tensor.index)];
  });
  return matrices;
}

absl::Status Refused(const v1::JobSpec& job, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("model.base_format ", TextOf(job.model().base_format()), ": ", what));
}

}  // namespace

std::string FaultOfBaseFormat(const v1::JobSpec& job) {
  if (BaseFormatOf(job.model()) == kernels::BaseFormat::kNone) return "";
  const std::vector<LogicalTensor> matrices = QuantizedMatrices(job);
  if (matrices.empty()) {
    return "it is what frozen matrices of layers are kept as, and none is frozen; add an adapter, "
           "name them in training.frozen, or leave it out";
  }
  for (const LogicalTensor& tensor : matrices) {
    if (tensor.columns % kernels::kBaseBlock == 0) continue;
    return absl::StrCat(tensor.name, " has ", tensor.columns, " columns, and a block ",
                        kernels::kBaseBlock,
                        "; use a model whose sizes are multiples of that, or leave it out");
  }
  return "";
}

absl::Status CheckBaseFormat(const v1::JobSpec& job) {
  const std::string fault = FaultOfBaseFormat(job);
  return fault.empty() ? absl::OkStatus() : Refused(job, fault);
}

absl::Status CheckBaseLayout(const v1::JobSpec& job, const v1::Layout& layout) {
  if (BaseFormatOf(job.model()) == kernels::BaseFormat::kNone) return absl::OkStatus();
  for (const LogicalTensor& tensor : QuantizedMatrices(job)) {
    if (tensor.shard != Shard::kColumns) continue;
    if (tensor.columns % (layout.tensor() * kernels::kBaseBlock) == 0) continue;
    return Refused(job, absl::StrCat("tensor ", layout.tensor(), " cuts the ", tensor.columns,
                                     " columns of ", tensor.name, " inside a block of ",
                                     kernels::kBaseBlock, "; use a smaller degree"));
  }
  return absl::OkStatus();
}

int64_t SavedCodes(kernels::BaseFormat format, const QuantizedTensor& tensor) {
  return kernels::CodesBytes(format, tensor.elements()) / static_cast<int64_t>(sizeof(float));
}

int64_t BaseSnapshotElements(const StageTensors& tensors) {
  int64_t elements = 0;
  for (const QuantizedTensor& tensor : tensors.quantized) {
    elements += SavedCodes(tensors.base_format, tensor) + tensor.blocks() + 1 + tensor.group_count;
  }
  return elements;
}

}  // namespace tercio::plan
