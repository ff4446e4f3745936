#include "plan/device_memory.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/scratch.h"
#include "model/blocks/attention.h"
#include "plan/gpu_reserve.h"
#include "plan/precision.h"
#include "plan/reduction_scratch.h"
#include "plan/reproducibility.h"

namespace tercio::plan {
namespace {

// The workspace of cuDNN's gradients of attention: all scores of 32 heads of 2,048 tokens. Calls
// that want more are cut (kernels/cuda/attention_cudnn.h), at the least to the queries of one key
// head; that these fit is worth this much, for our own kernel is far slower.
constexpr int64_t kAttentionWorkspace = int64_t{296} << 20;
constexpr int64_t kMostAttentionWorkspace = int64_t{2304} << 20;

// What a rank computes of one kind of attention.
struct AttentionCall {
  const StageShape& shape;
  int64_t tokens, key_tokens;
  int64_t heads, key_heads, head_dim;
  int64_t stride;  // of rows of queries
  float softcap = 0;
  int64_t window = 0;
  int64_t bias_buckets = 0;  // 0: no bias
  bool cross = false;        // keys of another stream
  bool has_dropout = false;
  bool documents = false;  // sequences hold several
};

AttentionCall CallOf(const StageShape& shape, int stream, const model::AttentionOptions& options) {
  const model::AttentionWidths at = model::WidthsOf(options, shape.tensor);
  const int64_t tokens = shape.stream(stream).tokens;
  return {.shape = shape,
          .tokens = tokens,
          .key_tokens = tokens,
          .heads = at.heads,
          .key_heads = at.key_heads,
          .head_dim = at.head_dim,
          .stride = at.qkv(),
          .softcap = options.softcap,
          .window = options.window,
          .bias_buckets = options.relative.has_value() ? options.relative->buckets : 0};
}

AttentionCall CallOf(const StageShape& shape, int stream,
                     const model::CrossAttentionOptions& options) {
  const int64_t heads = options.heads / shape.tensor;
  return {.shape = shape,
          .tokens = shape.stream(stream).tokens,
          .key_tokens = shape.streams.front().tokens,
          .heads = heads,
          .key_heads = heads,
          .head_dim = options.head_dim,
          .stride = heads * options.head_dim,
          .cross = true};
}

// Those of the stage's layers.
std::vector<AttentionCall> AttentionCalls(const StageShape& shape, const StageUnits& units,
                                          const v1::JobSpec& job) {
  std::vector<AttentionCall> calls;
  for (size_t i = 0; i < units.kinds.size(); ++i) {
    if (!units.has_kind(static_cast<int>(i))) continue;
    const model::Layer& kind = units.architecture.kinds[i];
    model::ForBlocks(kind, [&](const model::BlockOptions& block) {
      if (const auto* attention = std::get_if<model::AttentionOptions>(&block)) {
        calls.push_back(CallOf(shape, kind.stream, *attention));
      } else if (const auto* cross = std::get_if<model::CrossAttentionOptions>(&block)) {
        calls.push_back(CallOf(shape, kind.stream, *cross));
      } else {
        return;
      }
      calls.back().has_dropout = job.model().dropout() > 0;
      calls.back().documents = PacksDocuments(job);
    });
  }
  return calls;
}

// Null: cuDNN takes the model's calls.
const char* WhyNotCudnn(const AttentionCall& call) {
  return kernels::cuda::WhyNotCudnn({.format = call.shape.precision.format,
                                     .sequences = call.shape.sequences,
                                     .tokens = call.tokens,
                                     .heads = call.heads,
                                     .head_dim = call.head_dim,
                                     .stride = call.stride,
                                     .softcap = call.softcap,
                                     .window = call.window,
                                     .bias = call.bias_buckets > 0,
                                     .cross = call.cross,
                                     .documents = call.documents});
}

// Scratch of cuDNN's gradients of attention for some heads of some sequences.
int64_t AttentionBytes(const AttentionCall& call, int64_t sequences, int64_t heads) {
  return kernels::cuda::LibraryAttentionBytes({.sequences = sequences,
                                               .tokens = call.tokens,
                                               .heads = heads,
                                               .group = call.heads / call.key_heads,
                                               .head_dim = call.head_dim,
                                               .dropout = call.has_dropout});
}
int64_t LeastAttentionBytes(const AttentionCall& call) {
  return AttentionBytes(call, 1, call.heads / call.key_heads);
}

// Workspace of cuDNN's attention, where it takes the model's calls.
int64_t AttentionWorkspace(const AttentionCall& call) {
  if (WhyNotCudnn(call) != nullptr) return 0;
  int64_t least = LeastAttentionBytes(call);
  if (least > kMostAttentionWorkspace) least = 0;  // our own kernel does the gradients
  return std::min(AttentionBytes(call, call.shape.sequences, call.heads),
                  std::max(kAttentionWorkspace, least));
}

// For the operations of a GPU: of layers, of the head, and over whole tensors.
int64_t GpuWorkspace(const StageShape& shape, const StageUnits& units, const StageTensors& tensors,
                     const v1::JobSpec& job) {
  kernels::cuda::ScratchShapes layers;
  layers.rows = shape.most().rows;
  layers.norm_columns = shape.hidden;
  layers.sum_columns = shape.hidden;
  for (const model::LayerDescription& kind : units.kinds) {
    for (const model::Product& product : kind.products) {
      layers.sum_columns = std::max(layers.sum_columns, product.outputs);
    }
  }
  layers.product_bytes = kernels::cuda::kProductWorkspaceBytes;
  for (const AttentionCall& call : AttentionCalls(shape, units, job)) {
    layers.heads = std::max(layers.heads, call.heads);
    layers.library_attention_bytes =
        std::max(layers.library_attention_bytes, AttentionWorkspace(call));
    if (call.bias_buckets == 0) continue;
    layers.bias_buckets = std::max(layers.bias_buckets, call.bias_buckets);
    layers.bias_blocks = std::max(layers.bias_blocks,
                                  kernels::cuda::AttentionBiasBlocks(shape.sequences, call.tokens));
  }
  for (const StageTensor& entry : tensors.tensors) {
    // Digests look at one tensor at a time, norms at all of them in one pass.
    layers.digest_count = std::max(layers.digest_count, entry.elements);
    layers.squares_count += entry.elements;
  }
  kernels::cuda::ScratchShapes head;
  head.rows = shape.chunk_rows;
  head.sum_columns = shape.last ? shape.vocabulary : 0;
  // The head and the layers never run at the same time, so they share the room.
  return std::max(kernels::cuda::CudaScratchBytes(layers), kernels::cuda::CudaScratchBytes(head));
}

std::string WhyOwnAttention(const AttentionCall& call, int capability) {
  const char* why = WhyNotCudnn(call);
  const bool forward = why != nullptr;
  if (!forward && capability != 0) {
    why = kernels::cuda::WhyNotCudnnGradients(
        {.capability = capability, .head_dim = call.head_dim, .has_dropout = call.has_dropout});
  }
  if (why == nullptr && LeastAttentionBytes(call) > kMostAttentionWorkspace) {
    why = "needs more workspace for this model.context than plans give it";
  }
  if (why == nullptr) return "";
  return absl::StrCat(
      forward ? "attention is" : "gradients of attention are",
      " computed by our own kernels, which are much slower than cuDNN's, whose form of it ", why);
}

class CpuMemory : public DeviceMemory {
 public:
  explicit CpuMemory(const v1::JobSpec& job) : job_(job) {}

  int64_t Workspace(const StageShape&, const StageUnits&, const StageTensors&) const override {
    return 0;
  }
  int64_t AttentionScratch(const StageShape& shape, const StageUnits& units,
                           int threads) const override {
    int64_t most = 0;
    for (const AttentionCall& call : AttentionCalls(shape, units, job_)) {
      most = std::max(most, kernels::AttentionScratch({.tokens = call.tokens,
                                                       .head_dim = call.head_dim,
                                                       .key_tokens = call.key_tokens},
                                                      threads));
    }
    return most;
  }
  int64_t SumScratch(int64_t count, int ranks) const override {
    return AllReduceScratch(count, ranks);
  }
  int64_t PartsScratch(int64_t largest_part, int ranks) const override {
    return plan::PartsScratch(largest_part, ranks);
  }
  bool SnapshotsOnHost() const override { return false; }
  int64_t MostBytesOutside(const v1::Layout&, const StageTensors& tensors) const override {
    int64_t largest = 0;
    for (const StageTensor& entry : tensors.tensors) largest = std::max(largest, entry.elements);
    for (const QuantizedTensor& each : tensors.quantized) {
      largest = std::max(largest, each.tensor.rows * each.tensor.columns);
    }
    return kHostReserveBytes + largest * static_cast<int64_t>(sizeof(float));
  }

 private:
  const v1::JobSpec& job_;
};

class GpuMemory : public DeviceMemory {
 public:
  explicit GpuMemory(const v1::JobSpec& job) : job_(job) {}

  int64_t Workspace(const StageShape& shape, const StageUnits& units,
                    const StageTensors& tensors) const override {
    return GpuWorkspace(shape, units, tensors, job_);
  }
  int64_t AttentionScratch(const StageShape&, const StageUnits&, int) const override { return 0; }
  // Sums are NCCL's, which has buffers of its own, or are made on the host.
  int64_t SumScratch(int64_t, int) const override { return 0; }
  int64_t PartsScratch(int64_t largest_part, int ranks) const override {
    // Staged through the host, the sum lies there.
    if (OrderIsFixed(job_) || job_.resources().collectives() == v1::COLLECTIVES_HOST) return 0;
    return plan::PartsScratch(largest_part, ranks);
  }
  bool SnapshotsOnHost() const override { return true; }
  int64_t MostBytesOutside(const v1::Layout& layout, const StageTensors&) const override {
    return GpuReserveBytes(job_, layout);
  }

 private:
  const v1::JobSpec& job_;
};

}  // namespace

std::unique_ptr<DeviceMemory> DeviceMemoryOf(const v1::JobSpec& job) {
  if (OnGpu(job)) return std::make_unique<GpuMemory>(job);
  return std::make_unique<CpuMemory>(job);
}

std::string WhyOwnAttention(const v1::JobSpec& job, const v1::Layout& layout, int capability) {
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    const StageShape shape = ShapeOfStage(job, layout, stage);
    const StageUnits units = UnitsOfStage(job.model(), layout, stage);
    for (const AttentionCall& call : AttentionCalls(shape, units, job)) {
      if (std::string why = WhyOwnAttention(call, capability); !why.empty()) return why;
    }
  }
  return "";
}

}  // namespace tercio::plan
