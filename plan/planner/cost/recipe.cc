#include "plan/planner/cost/recipe.h"

namespace tercio::plan::cost {

namespace {

constexpr Recipe kRecipes[] = {
    // docs/parallelism.md. Gradients are fp32 sums that products add to.
    {.name = "tercio",
     .attention = AttentionKernel::kFlash3,
     .selective = Selective::kNormsAndActivations,
     .recomputes_last = false,
     .fuses_loss = true},
    // The same on CPUs: kernels of one pass for attention and for residuals with norms; messages
    // take
    // the time of cores, so that nothing runs beside anything.
    {.name = "tercio-cpu",
     .attention = AttentionKernel::kFlash2,
     .selective = Selective::kNormsAndActivations,
     .recomputes_last = false,
     .fuses_loss = true,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .scatters_transfers = false,
     .sums_lanes = true,
     .sums_each_unit = true},
    // Shoeybi et al. 2019: no kernel of its own for softmax.
    {.name = "megatron2019",
     .attention = AttentionKernel::kUnfused,
     .skips_masked = false,
     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false,
     .scatters_transfers = false},
    // Narayanan et al. 2021. Gradients are fp16, and added by a kernel of their own.
    {.name = "megatron2021",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false},
    // Korthikanti et al. 2022 and later: products add to the sums of gradients.
    {.name = "megatron2022",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 2,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false,
     .hides_gradient_sums = true},
    // Megatron with DeepSpeed's pipeline, which BigScience and MT-NLG used.
    {.name = "megatron-deepspeed",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false},
    // The same with fp32 sums of bf16 gradients beside the products.
    {.name = "megatron-deepspeed-bf16",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 4,
     .accumulation_bytes = 12,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false},
    // Megatron Core and NeMo from 2023 on.
    {.name = "megatron-core",
     .attention = AttentionKernel::kHopper,
     .sums_each_micro_batch = false,
     .hides_gradient_sums = true},
    // Dubey et al. 2024: weights are divided, and gathered once in a step.
    {.name = "llama3", .attention = AttentionKernel::kFlash3, .sums_each_micro_batch = false},
    // Megatron of 2023 in bf16, whose gradients are fp32.
    {.name = "megatron2023",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false,
     .hides_gradient_sums = true},
    {.name = "nanotron",

     .accumulation_bytes = 12,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .overlaps_transfers = false,
     .scatters_transfers = false},
    // NeMo with Transformer Engine: sums over tensor ranks run beside products.
    {.name = "nemo",
     .attention = AttentionKernel::kHopper,
     .tensor_overlap = 0.6,
     .hides_gradient_sums = true,
     .deferred_head_gradients = 50},
    // Megatron Bridge from 2025 on: norms and activations round what they write.
    {.name = "bridge",
     .attention = AttentionKernel::kFlash3,
     .fuses_loss = true,
     .fp8_bytes = 2,
     .tensor_overlap = 0.6,
     .hides_gradient_sums = true,
     .deferred_head_gradients = 50},
    {.name = "deepspeed-zero3-2021",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .gathers_per_layer = 16,
     .data_share = 0.5},
    {.name = "deepspeed-zero3",
     .attention = AttentionKernel::kFusedSoftmax,
     .skips_masked = false,
     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .gathers_per_layer = 4,
     .data_share = 0.6},
    // llm-foundry: FSDP, one gather for each block.
    {.name = "mpt",
     .attention = AttentionKernel::kFlash,
     .fuses_elementwise = false,
     .accumulation_bytes = 10},
    {.name = "fsdp",
     .fuses_elementwise = false,
     .selective = Selective::kEveryOtherProduct,
     .accumulation_bytes = 10},
    {.name = "fsdp-compiled",
     .selective = Selective::kEveryOtherProduct,
     .fp8_bytes = 2,
     .gathers_fp8 = true,
     .accumulation_bytes = 10},
    {.name = "internlm",
     .attention = AttentionKernel::kFlash,

     .gradient_bytes = 2,
     .accumulation_bytes = 6,
     .overlaps_gradients = false,
     .overlaps_weights = false,
     .overlaps_update = false,
     .gathers_each_tensor = true},
};

}  // namespace

std::span<const Recipe> Recipes() { return kRecipes; }

const Recipe* FindRecipe(std::string_view name) {
  for (const Recipe& recipe : Recipes()) {
    if (recipe.name == name) return &recipe;
  }
  return nullptr;
}

}  // namespace tercio::plan::cost
