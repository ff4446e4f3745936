// What a training system's software does, as far as it costs time. Pure.
#pragma once

#include <span>
#include <string_view>

namespace tercio::plan::cost {

enum class AttentionKernel {
  kUnfused,       // scores in memory, softmax in several kernels
  kFusedSoftmax,  // scores in memory; scale, mask and softmax are one kernel
  kFlash,         // one kernel (Dao et al. 2022)
  kFlash2,        // one kernel (Dao 2023)
  kHopper,        // the first ones with Hopper's instructions (cuDNN of early 2024)
  kFlash3,        // later ones (Shah et al. 2024)
};

inline bool StoresScores(AttentionKernel kernel) {
  return kernel == AttentionKernel::kUnfused || kernel == AttentionKernel::kFusedSoftmax;
}

// What RECOMPUTE_SELECTIVE computes again.
enum class Selective {
  kAttentionCore,        // scores, softmax and values (Korthikanti et al. 2022)
  kNormsAndActivations,  // Tercio
  kEveryOtherProduct,    // torchtitan
};

struct Recipe {
  std::string_view name;
  AttentionKernel attention = AttentionKernel::kFlash2;
  // Whether the attention kernel leaves out the half that a causal mask hides.
  bool skips_masked = true;
  // Whether neighbouring elementwise operations are one kernel.
  bool fuses_elementwise = true;
  Selective selective = Selective::kAttentionCore;
  // Whether a full recomputation repeats a layer's last product, whose result nothing reads.
  bool recomputes_last = true;
  // Whether the loss is one kernel over the logits.
  bool fuses_loss = false;
  // Bytes of memory traffic for each element that is rounded to 8 bits beside a product.
  double fp8_bytes = 4;
  // Whether what 8-bit products read is gathered in 8 bits.
  bool gathers_fp8 = false;
  // Bytes of a gradient as data ranks send it.
  int gradient_bytes = 4;
  // Bytes of memory traffic for adding a micro-batch's gradient of a weight to those before, beside
  // the product's own.
  double accumulation_bytes = 0;
  // With zero_stage 2 and 3: whether gradients are summed after each micro-batch, not once.
  bool sums_each_micro_batch = true;
  // Collectives over data ranks run beside the backward pass (gradients) and the forward pass
  // (weights that are divided).
  bool overlaps_gradients = true;
  bool overlaps_weights = true;
  // Likewise the gathers of weights that a divided update (zero_stage 1 and 2) has written, beside
  // the first forward pass.
  bool overlaps_update = true;
  // Messages between stages travel while both compute.
  bool overlaps_transfers = true;
  // Each tensor rank sends its part of a message between stages, and gathers the rest inside.
  bool scatters_transfers = true;
  // The part of sums over tensor ranks that runs beside products.
  double tensor_overlap = 0;
  // Whether sums over tensor ranks of gradients run beside the product of the weight's gradient,
  // which does not wait for them (Megatron-LM from 2022 on).
  bool hides_gradient_sums = false;
  // Micro-batches whose gradients of the head's matrix are computed after the last pass, while the
  // pipeline empties (Megatron Core's deferred gradients of the embedding).
  int deferred_head_gradients = 0;
  // Collectives in which a layer's weights are gathered with zero_stage 3.
  int gathers_per_layer = 1;
  // Whether gradients of weights are summed in lanes of sequences (plan/lanes.h): products of fewer
  // rows, and additions of whole gradients.
  bool sums_lanes = false;
  // Whether gradients are summed over data ranks unit by unit (embedding, each layer, head); else
  // in buckets of some size.
  bool sums_each_unit = false;
  // Whether new weights are gathered tensor by tensor with zero_stage 1 and 2; else in buckets.
  bool gathers_each_tensor = false;
  // Whether the host's cores update what lies on the host (Ren et al. 2021, ZeRO-Offload):
  // gradients go there and new weights come back. Else the device does, over its link.
  bool updates_on_host = false;
  // The part of the network's rate that its collectives over data ranks reach.
  double data_share = 1;
};

std::span<const Recipe> Recipes();
// nullptr: there is none of that name.
const Recipe* FindRecipe(std::string_view name);

}  // namespace tercio::plan::cost
