#include "plan/token_buffers.h"

#include <algorithm>

namespace tercio::plan {
namespace {

bool HasRotary(const model::Architecture& architecture) {
  const auto all = model::AttentionsOf(architecture);
  return std::any_of(all.begin(), all.end(), [](const auto* at) { return at->rotary.has_value(); });
}

}  // namespace

bool ReadsStoredLogits(const v1::TrainingSpec& training) {
  return !training.distillation().logits().empty();
}

std::vector<TokenBuffer> TokenBuffersOf(const v1::JobSpec& job, const StageShape& shape,
                                        const model::Architecture& architecture) {
  std::vector<TokenBuffer> buffers;
  const auto add = [&](const char* name, bool needed, int64_t elements) {
    buffers.push_back({name, needed ? elements : 0});
  };
  const model::Head& head = architecture.head;
  const bool chooses_targets = ChoosesTargets(job);
  const bool packs = PacksDocuments(job);
  const bool reads_positions =
      HasRotary(architecture) || (shape.first && architecture.embedding.positions > 0);
  const bool has_classes = shape.last && head.classes.has_value();
  const int64_t inputs = shape.streams.front().tokens;
  const int64_t predicted = shape.head_stream().tokens;
  add("tokens.inputs", shape.first, inputs);
  add("tokens.decoder_inputs", shape.first && shape.streams.size() > 1, predicted);
  add("tokens.targets", shape.last && head.predicts_tokens(), predicted);
  add("tokens.types", shape.first && architecture.embedding.types > 0, inputs);
  add("tokens.predicted", shape.last && (head.masked.has_value() || chooses_targets), predicted);
  add("tokens.document_starts", packs, inputs);
  add("tokens.positions", packs && reads_positions, inputs);
  add("tokens.lengths", !architecture.causal, 1);
  add("tokens.labels", has_classes, 1);
  add("tokens.first_rows", has_classes, 1);
  if (!ReadsStoredLogits(job.training())) return buffers;
  const int64_t pairs = predicted * job.training().distillation().top_k();
  add("tokens.teacher_ids", shape.last, pairs);
  add("tokens.teacher_logits", shape.last, pairs);
  return buffers;
}

}  // namespace tercio::plan
