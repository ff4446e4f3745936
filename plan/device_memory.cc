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
  const model::AttentionOptions& options;
  model::AttentionWidths at;
  int64_t tokens;  // of the longest stream that has it
  bool has_dropout;
};

std::vector<AttentionCall> AttentionCalls(const StageShape& shape,
                                          const model::Architecture& architecture,
                                          bool has_dropout) {
  std::vector<AttentionCall> calls;
  for (const model::AttentionOptions* options : model::AttentionsOf(architecture)) {
    calls.push_back({shape, *options, model::WidthsOf(*options, shape.tensor), shape.most().tokens,
                     has_dropout});
  }
  return calls;
}

// Null: cuDNN takes the model's calls.
const char* WhyNotCudnn(const AttentionCall& call) {
  return kernels::cuda::WhyNotCudnn({.format = call.shape.precision.format,
                                     .sequences = call.shape.sequences,
                                     .tokens = call.tokens,
                                     .heads = call.at.heads,
                                     .head_dim = call.at.head_dim,
                                     .stride = call.at.qkv(),
                                     .softcap = call.options.softcap,
                                     .window = call.options.window,
                                     .bias = call.options.relative.has_value()});
}

// Scratch of cuDNN's gradients of attention for some heads of some sequences.
int64_t AttentionBytes(const AttentionCall& call, int64_t sequences, int64_t heads) {
  return kernels::cuda::LibraryAttentionBytes({.sequences = sequences,
                                               .tokens = call.tokens,
                                               .heads = heads,
                                               .group = call.at.heads / call.at.key_heads,
                                               .head_dim = call.at.head_dim,
                                               .dropout = call.has_dropout});
}
int64_t LeastAttentionBytes(const AttentionCall& call) {
  return AttentionBytes(call, 1, call.at.heads / call.at.key_heads);
}

// Workspace of cuDNN's attention, where it takes the model's calls.
int64_t AttentionWorkspace(const AttentionCall& call) {
  if (WhyNotCudnn(call) != nullptr) return 0;
  int64_t least = LeastAttentionBytes(call);
  if (least > kMostAttentionWorkspace) least = 0;  // our own kernel does the gradients
  return std::min(AttentionBytes(call, call.shape.sequences, call.at.heads),
                  std::max(kAttentionWorkspace, least));
}

// For the operations of a GPU: of layers, of the head, and over whole tensors.
int64_t GpuWorkspace(const StageShape& shape, const StageUnits& units, const StageTensors& tensors,
                     bool has_dropout) {
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
  for (const AttentionCall& call : AttentionCalls(shape, units.architecture, has_dropout)) {
    layers.heads = std::max(layers.heads, call.at.heads);
    layers.library_attention_bytes =
        std::max(layers.library_attention_bytes, AttentionWorkspace(call));
    if (!call.options.relative.has_value()) continue;
    layers.bias_buckets = std::max(layers.bias_buckets, call.options.relative->buckets);
    layers.bias_blocks = kernels::cuda::AttentionBiasBlocks(shape.sequences, call.tokens);
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
        {.capability = capability, .head_dim = call.at.head_dim, .has_dropout = call.has_dropout});
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
  int64_t Workspace(const StageShape&, const StageUnits&, const StageTensors&) const override {
    return 0;
  }
  int64_t AttentionScratch(const StageShape& shape, const StageUnits& units,
                           int threads) const override {
    int64_t most = 0;
    for (const model::AttentionOptions* options : model::AttentionsOf(units.architecture)) {
      most = std::max(most,
                      kernels::AttentionScratch(
                          {.tokens = shape.most().tokens, .head_dim = options->head_dim}, threads));
    }
    return most;
  }
  int64_t SumScratch(int64_t count, int ranks) const override {
    return AllReduceScratch(count, ranks);
  }
  bool SnapshotsOnHost() const override { return false; }
  int64_t MostBytesOutside(const v1::Layout&, const StageTensors& tensors) const override {
    int64_t largest = 0;
    for (const StageTensor& entry : tensors.tensors) largest = std::max(largest, entry.elements);
    return kHostReserveBytes + largest * static_cast<int64_t>(sizeof(float));
  }
};

class GpuMemory : public DeviceMemory {
 public:
  explicit GpuMemory(const v1::JobSpec& job) : job_(job) {}

  int64_t Workspace(const StageShape& shape, const StageUnits& units,
                    const StageTensors& tensors) const override {
    return GpuWorkspace(shape, units, tensors, job_.model().dropout() > 0);
  }
  int64_t AttentionScratch(const StageShape&, const StageUnits&, int) const override { return 0; }
  // Sums are NCCL's, which has buffers of its own, or are made on the host.
  int64_t SumScratch(int64_t, int) const override { return 0; }
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
  return std::make_unique<CpuMemory>();
}

std::string WhyOwnAttention(const v1::JobSpec& job, const v1::Layout& layout, int capability) {
  const StageShape shape = ShapeOfStage(job, layout, 0);
  const model::Architecture architecture = model::ArchitectureOf(job.model());
  for (const AttentionCall& call : AttentionCalls(shape, architecture, job.model().dropout() > 0)) {
    if (std::string why = WhyOwnAttention(call, capability); !why.empty()) return why;
  }
  return "";
}

}  // namespace tercio::plan
