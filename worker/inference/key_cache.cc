#include "worker/inference/key_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_scratch.h"
#include "model/architecture.h"

namespace tercio::inference {
namespace {

// Small pages waste little where texts end, and share more of equal beginnings; large ones cut
// products into fewer pieces.
constexpr int64_t kPageTokens = 64;

}  // namespace

bool HasCache(const v1::ModelSpec& model) {
  const model::Architecture architecture = model::ArchitectureOf(model);
  return architecture.causal && architecture.streams.size() == 1;
}

absl::StatusOr<CachePlan> PlanCache(const v1::ModelSpec& model, int64_t texts, int64_t tokens) {
  const model::Architecture architecture = model::ArchitectureOf(model);
  const int64_t context = architecture.streams.front().tokens;
  CachePlan plan;
  plan.page_tokens = std::min(kPageTokens, kernels::RoundUp(context, kernels::kWidestPanel));
  plan.pages_per_text = (context + plan.page_tokens - 1) / plan.page_tokens;
  plan.layers = model::LayersOf(model);
  for (const model::AttentionOptions* options : model::AttentionsOf(architecture)) {
    plan.page_elements =
        std::max(plan.page_elements,
                 kernels::PageElements(plan.page_tokens, options->key_heads, options->head_dim));
  }
  const int64_t most = texts * plan.pages_per_text;
  if (tokens > 0 && tokens < context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a cache for ", tokens, " tokens has no room for a text of the whole context, ",
        "which is ", context, "; give it more, or shorten the context"));
  }
  plan.pages =
      tokens == 0 ? most : std::min(most, (tokens + plan.page_tokens - 1) / plan.page_tokens);
  return plan;
}

}  // namespace tercio::inference
