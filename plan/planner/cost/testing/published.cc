#include "plan/planner/cost/testing/published.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "plan/model_tensors.h"

namespace tercio::plan::cost {
namespace {

constexpr double kGiga = 1e9;
// Omni-Path carries 12.5 GB/s; the all-reduce that was measured there reached 2 to 5 GB/s of a
// node's 50.
constexpr double kJeanZay = 4.6;
constexpr double kJeanZayLink = 110;

// Interfaces of a node and their GB/s: docs/planner.md.
constexpr Source kSources[] = {
    {.name = "narayanan-t1", .recipe = "megatron2021", .dropout = 0.1, .vocabulary = 51200},
    {.name = "narayanan-jan",
     .recipe = "megatron2021",
     .dropout = 0.1,
     .vocabulary = 51200,
     .micro_batch = 4},
    {.name = "narayanan-t2-zero3",
     .recipe = "deepspeed-zero3-2021",
     .dropout = 0.1,
     .vocabulary = 51200},
    {.name = "narayanan-t2-ptd", .recipe = "megatron2021", .dropout = 0.1, .vocabulary = 51200},
    {.name = "mt-nlg", .recipe = "megatron-deepspeed-bf16", .dropout = 0.1},
    {.name = "megatron-h100-weak",
     .recipe = "megatron-core",
     .interface_gigabytes = 50,
     .layers_of_chunk = 1,
     .sequence_parallel = true},
    {.name = "megatron-h100-strong",
     .recipe = "megatron-core",
     .interface_gigabytes = 50,
     .layers_of_chunk = 1,
     .sequence_parallel = true,
     .zero_stage = 1},
    {.name = "megatron-2020-v100", .recipe = "megatron2021", .dropout = 0.1, .micro_batch = 8},
    {.name = "megatron-2020-a100", .recipe = "megatron2021", .dropout = 0.1, .micro_batch = 16},
    {.name = "shoeybi",
     .recipe = "megatron2019",
     .interface_gigabytes = 12.5,
     .dropout = 0.1,
     .micro_batch = 8},
    {.name = "korthikanti-t5", .recipe = "megatron2022", .dropout = 0.1, .vocabulary = 51200},
    {.name = "megascale-megatron",
     .recipe = "megatron2023",
     .layers_of_chunk = 2,
     .recompute = "selective",
     .sequence_parallel = true},
    {.name = "llama3",
     .recipe = "llama3",
     .interface_gigabytes = 50,
     .llama = true,
     .layers_of_chunk = 1,
     .sequence_parallel = true,
     .causal_flops = true},
    {.name = "azure-zero3", .recipe = "deepspeed-zero3", .dropout = 0.1},
    {.name = "internlm",
     .recipe = "internlm",
     .interfaces = 4,
     .interface_gigabytes = 12.5,
     .llama = true},
    {.name = "nemo-2407-fp8", .recipe = "nemo", .interface_gigabytes = 50},
    {.name = "nemo-2412-fp8", .recipe = "nemo", .interface_gigabytes = 50},
    {.name = "nemo-2405-fp8", .recipe = "nemo", .interface_gigabytes = 50},
    {.name = "nemo-longseq-fp8", .recipe = "nemo", .interface_gigabytes = 50, .llama = true},
    {.name = "nemo-2308-5b", .recipe = "megatron2023", .dropout = 0.1, .vocabulary = 51200},
    {.name = "nemo-2308-175b", .recipe = "megatron2023", .dropout = 0.1, .vocabulary = 51200},
    {.name = "nemo-2207", .recipe = "megatron2021", .dropout = 0.1, .vocabulary = 51200},
    {.name = "megatron-llama-fp8", .recipe = "bridge", .interface_gigabytes = 50, .llama = true},
    {.name = "bridge-fp8",
     .recipe = "bridge",
     .interface_gigabytes = 50,
     .llama = true,
     .causal_flops = true},
    {.name = "bridge-sft-fp8",
     .recipe = "bridge",
     .interface_gigabytes = 50,
     .llama = true,
     .causal_flops = true},
    {.name = "automodel",
     .recipe = "fsdp-compiled",
     .interface_gigabytes = 50,
     .llama = true,
     .recompute = "full"},
    {.name = "torchtitan-a100", .recipe = "fsdp", .llama = true},
    {.name = "torchtitan-h100",
     .recipe = "fsdp",
     .interface_gigabytes = 50,
     .llama = true,
     .sequence_parallel = true},
    {.name = "zero-bubble-t4", .recipe = "megatron2022", .dropout = 0.1, .vocabulary = 32000},
    {.name = "zero-bubble-t6", .recipe = "megatron2022", .dropout = 0.1, .vocabulary = 32000},
    {.name = "zero-bubble-t12", .recipe = "megatron2022", .dropout = 0.1, .vocabulary = 32000},
    {.name = "nanotron",
     .recipe = "nanotron",
     .interface_gigabytes = 50,
     .balances_stages = true,
     .llama = true},
    {.name = "bigscience-0217",
     .recipe = "megatron-deepspeed",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bigscience-0220",
     .recipe = "megatron-deepspeed",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bigscience-fp16",
     .recipe = "megatron-deepspeed",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bigscience-0228-bf16",
     .recipe = "megatron-deepspeed-bf16",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bloom",
     .recipe = "megatron-deepspeed-bf16",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bigscience-v100",
     .recipe = "megatron-deepspeed",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "bigscience-104b-v100",
     .recipe = "megatron-deepspeed",
     .interfaces = 4,
     .interface_gigabytes = kJeanZay,
     .link_gigabytes = kJeanZayLink},
    {.name = "mpt-h100", .recipe = "mpt", .interface_gigabytes = 50},
    {.name = "mpt-a100-80", .recipe = "mpt"},
    {.name = "mpt-a100-40", .recipe = "mpt"},
    {.name = "fms-fsdp", .recipe = "fsdp-compiled", .llama = true},
};

v1::JobSpec JobOf(const PublishedRow& row, const Source& source) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  const int hidden = row.integer("hidden", 0);
  const int heads = row.integer("heads", std::max(1, hidden / 150));
  model->set_architecture(source.llama ? v1::ARCHITECTURE_LLAMA : v1::ARCHITECTURE_GPT2);
  model->set_layers(row.integer("layers", 1));
  model->set_hidden(hidden);
  model->set_heads(heads);
  model->set_kv_heads(row.integer("kv_heads", heads));
  model->set_ffn_hidden(row.integer("ffn", source.llama ? 11008 : 4 * hidden));
  model->set_context(row.integer("seq", 2048));
  model->set_vocab_size(row.integer("vocab", source.vocabulary));
  model->set_bias(!source.llama);
  model->set_untied_head(source.llama);
  model->set_dropout(source.dropout);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_training()->set_fp8(absl::StartsWith(row.text("precision"), "fp8"));
  return job;
}

v1::Recompute RecomputeOf(std::string_view word) {
  if (word == "full") return v1::RECOMPUTE_FULL;
  if (word == "selective" || word == "half") return v1::RECOMPUTE_SELECTIVE;
  return v1::RECOMPUTE_NONE;
}

std::optional<v1::Layout> LayoutOf(const PublishedRow& row, const Source& source) {
  v1::Layout layout;
  if (row.text("tp").empty() || row.text("pp").empty()) return std::nullopt;
  layout.set_tensor(row.integer("tp", 1));
  layout.set_pipeline(row.integer("pp", 1));
  layout.set_context_parallel(row.integer("cp", 1));
  layout.set_data(row.integer("dp", 1));
  layout.set_micro_batch(row.integer("micro_batch", source.micro_batch));
  const int batch = row.integer("global_batch", 0);
  const int unit = layout.micro_batch() * layout.data();
  if (batch < unit || layout.data() < 1) return std::nullopt;
  layout.set_micro_batches(batch / unit);
  int chunks = row.integer("vpp", 0);
  if (chunks == 0) {
    chunks = 1;
    const int of_stage = (row.integer("layers", 1) + layout.pipeline() - 1) / layout.pipeline();
    if (source.layers_of_chunk > 0 && layout.pipeline() > 1) {
      chunks = std::max(1, of_stage / source.layers_of_chunk);
    }
  }
  // The interleaved order wants whole groups.
  if (layout.pipeline() == 1 || layout.micro_batches() % layout.pipeline() != 0) chunks = 1;
  layout.set_virtual_pipeline(chunks);
  layout.set_schedule(chunks > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED : v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_zero_stage(row.integer("zero", source.zero_stage));
  layout.set_shard(row.integer("shard", 0));
  const std::string& recompute = row.text("recompute");
  layout.set_recompute(
      RecomputeOf(recompute.empty() ? source.recompute : std::string_view(recompute)));
  const std::string& sequence = row.text("seq_parallel");
  layout.set_sequence_parallel(layout.tensor() > 1 &&
                               (sequence.empty() ? source.sequence_parallel : sequence == "1"));
  return layout;
}

// What rows of one source say about software.
void RefineRecipe(const PublishedRow& row, Recipe* recipe) {
  const std::string& detail = row.text("detail");
  if (detail == "compile") *recipe = *FindRecipe("fsdp-compiled");
  if (detail == "async") {
    *recipe = *FindRecipe("fsdp-compiled");
    recipe->tensor_overlap = 0.6;
  }
}

// Seconds of a step from what the row prints.
double MeasuredSeconds(const PublishedRow& row, const Source& source, const PublishedCase& of) {
  const double devices = static_cast<double>(of.layout.tensor()) * of.layout.pipeline() *
                         of.layout.data() * of.layout.context_parallel();
  const double sequences =
      static_cast<double>(of.layout.micro_batch()) * of.layout.micro_batches() * of.layout.data();
  const double tokens = sequences * of.job.model().context();
  const v1::ModelSpec& model = of.job.model();
  const double flops =
      tokens * FlopsPerToken(model, source.causal_flops ? AttentionCount::kCausalHalf
                                                        : AttentionCount::kWhole);
  PipelineWalks walks;
  const StepCost cost = CostOfStep(
      {.job = of.job, .layout = of.layout, .cluster = of.cluster, .recipe = of.recipe}, &walks);
  const double hardware = tokens * FlopsPerToken(model, AttentionCount::kWhole) *
                          cost.hardware_flops / cost.model_flops;
  const double value = row.value();
  const double peak = of.cluster.accelerator.flops_16;
  const std::string& metric = row.metric();
  if (metric == "iter_time_s") return value;
  if (metric == "tokens_per_s_per_gpu") return tokens / devices / value;
  if (metric == "tokens_per_s_total") return tokens / value;
  if (metric == "samples_per_s_total") return sequences / value;
  if (metric == "samples_per_s_per_gpu") return sequences / devices / value;
  if (metric == "model_tflops_per_gpu") return flops / devices / (value * 1e12);
  if (metric == "hw_tflops_per_gpu") return hardware / devices / (value * 1e12);
  if (metric == "mfu_pct") return flops / devices / (value / 100 * peak);
  if (metric == "hfu_pct") return hardware / devices / (value / 100 * peak);
  return 0;
}

}  // namespace

double PublishedRow::number(const std::string& column, double otherwise) const {
  const std::string& value = fields.at(column);
  return value.empty() ? otherwise : std::strtod(value.c_str(), nullptr);
}

int PublishedRow::integer(const std::string& column, int otherwise) const {
  return static_cast<int>(number(column, otherwise));
}

std::vector<PublishedRow> ParseRows(const std::string& csv) {
  std::vector<PublishedRow> rows;
  std::vector<std::string> columns;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(csv, '\n'))) {
    if (line.empty()) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    PublishedRow& row = rows.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) {
      row.fields[columns[i]] = i < cells.size() ? cells[i] : "";
    }
  }
  return rows;
}

std::span<const Source> Sources() { return kSources; }

const Source* FindSource(std::string_view name) {
  for (const Source& source : Sources()) {
    if (source.name == name) return &source;
  }
  return nullptr;
}

std::optional<PublishedCase> CaseOf(const PublishedRow& row) {
  const Source* source = FindSource(row.source());
  if (source == nullptr) return std::nullopt;
  Source of_row = *source;
  // NeMo's table has GPT beside Llama: only GPT's MLP is 4 * hidden wide.
  if (absl::StartsWith(row.source(), "nemo-24")) {
    of_row.llama = row.integer("ffn", 0) != 4 * row.integer("hidden", 0);
    of_row.vocabulary = absl::StrContains(row.id(), "Nemotron") ? 256000 : 51200;
    of_row.sequence_parallel = true;
  }
  const std::optional<v1::Layout> layout = LayoutOf(row, of_row);
  if (!layout.has_value()) return std::nullopt;
  PublishedCase result;
  result.layout = *layout;
  result.job = JobOf(row, of_row);
  const absl::StatusOr<Accelerator> accelerator = AcceleratorOf(row.text("gpu"));
  if (!accelerator.ok()) return std::nullopt;
  const int node = row.integer("node", 8);
  const int devices =
      layout->tensor() * layout->pipeline() * layout->data() * layout->context_parallel();
  result.cluster = MakeCluster(*accelerator, std::min(node, devices), (devices + node - 1) / node,
                               of_row.interfaces, of_row.interface_gigabytes * kGiga);
  if (of_row.link_gigabytes > 0) {
    result.cluster.inside.bytes_per_second = of_row.link_gigabytes * kGiga;
  }
  result.recipe = *FindRecipe(of_row.recipe);
  RefineRecipe(row, &result.recipe);
  if (of_row.balances_stages) {
    result.layers = BalancedLayers({.job = result.job,
                                    .layout = result.layout,
                                    .cluster = result.cluster,
                                    .recipe = result.recipe});
  }
  result.measured_seconds = MeasuredSeconds(row, of_row, result);
  if (result.measured_seconds <= 0) return std::nullopt;
  return result;
}

}  // namespace tercio::plan::cost
