#include "worker/inference/teacher_pass.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/ordered_parts.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "worker/blocks/micro_batch.h"

namespace tercio::inference {
namespace {

// Tokens of a pass: enough for products of full speed, with activations of moderate size.
constexpr int64_t kTokensOfPass = 1024;

struct Candidate {
  float logit;
  int32_t id;
};

// The better of two is the larger one.
bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace

absl::Status FindLargest(absl::Span<const float> row, int64_t k, int32_t* ids, float* logits) {
  TERCIO_CHECK(k >= 1 && k <= static_cast<int64_t>(row.size()));
  const auto wanted = static_cast<size_t>(k);
  // A heap with the worst of the best on top: most logits are compared with that one only.
  std::vector<Candidate> best;
  best.reserve(wanted);
  for (size_t i = 0; i < row.size(); ++i) {
    const Candidate here{row[i], static_cast<int32_t>(i)};
    // No comparison finds what is not a number.
    if (std::isnan(here.logit)) return absl::DataLossError("a logit is not a number");
    if (best.size() == wanted) {
      if (!IsBetter(here, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), IsBetter);
      best.pop_back();
    }
    best.push_back(here);
    std::push_heap(best.begin(), best.end(), IsBetter);
  }
  std::sort(best.begin(), best.end(), IsBetter);
  for (size_t i = 0; i < wanted; ++i) {
    if (!std::isfinite(best[i].logit)) return absl::DataLossError("a logit is infinite");
    ids[i] = best[i].id;
    logits[i] = best[i].logit;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TeacherPass>> TeacherPass::Load(const OpenedModel& opened,
                                                               int threads, int64_t context,
                                                               int64_t k) {
  const v1::ModelSpec& model = opened.spec();
  const model::Architecture architecture = model::ArchitectureOf(model);
  if (!architecture.causal || architecture.streams.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        opened.directory, " does not predict each token from those before it; a teacher of logits ",
        "is a model of running text"));
  }
  if (k > model.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat("--top-k ", k, " is above the vocabulary of ",
                                                   model.vocab_size(), " of ", opened.directory));
  }
  const PassSize pass = {.sequences = std::max<int64_t>(1, kTokensOfPass / context),
                         .context = context};
  TERCIO_ASSIGN_OR_RETURN(auto whole, WholeModel::Load(opened, threads, pass));
  return std::unique_ptr<TeacherPass>(new TeacherPass(std::move(whole), threads, k));
}

TeacherPass::TeacherPass(std::unique_ptr<WholeModel> model, int threads, int64_t k)
    : model_(std::move(model)),
      threads_(threads),
      k_(k),
      inputs_(model_->arena().Get<int32_t>("tokens.inputs")) {}

std::vector<TeacherPass::Row> TeacherPass::Forward(absl::Span<const data::Sample> samples) {
  TERCIO_CHECK_LE(static_cast<int64_t>(samples.size()), samples_at_once());
  std::vector<Row> predicted;
  std::vector<blocks::SequencePart> parts;
  int64_t rows = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<int32_t>& targets = samples[i].targets;
    TERCIO_CHECK(samples[i].document_starts.empty());
    int64_t end = 0;  // behind the last predicted row: no row depends on those after it
    int64_t count = 0;
    for (size_t at = 0; at < targets.size(); ++at) {
      if (targets[at] == data::kNoTarget) continue;
      predicted.push_back({rows + static_cast<int64_t>(at), i, count++});
      end = static_cast<int64_t>(at) + 1;
    }
    if (end == 0) continue;
    parts.push_back(
        {.sequence = static_cast<int64_t>(parts.size()), .first_position = 0, .rows = end});
    std::copy_n(samples[i].inputs.begin(), end, inputs_ + rows);
    rows += end;
  }
  if (parts.empty()) return predicted;
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.parts = parts;
  model_->stage().Forward(batch);
  return predicted;
}

absl::Status TeacherPass::Keep(absl::Span<const Row> rows, std::vector<LargestLogits>* out) {
  const auto count = static_cast<int64_t>(rows.size());
  const float* logits = model_->stage().Logits({}, rows.front().of_pass, count).floats();
  std::vector<absl::Status> outcomes(rows.size());
  ForEachOnThreads(count, threads_, [&](int64_t i) {
    const Row& row = rows[static_cast<size_t>(i)];
    LargestLogits& of_sample = (*out)[row.sample];
    const auto all = absl::MakeConstSpan(logits + i * model_->shape().vocabulary,
                                         static_cast<size_t>(model().vocab_size()));
    outcomes[static_cast<size_t>(i)] =
        FindLargest(all, k_, of_sample.ids.data() + row.of_sample * k_,
                    of_sample.logits.data() + row.of_sample * k_);
  });
  for (absl::Status& outcome : outcomes) TERCIO_RETURN_IF_ERROR(std::move(outcome));
  return absl::OkStatus();
}

absl::Status TeacherPass::Run(absl::Span<const data::Sample> samples,
                              std::vector<LargestLogits>* out) {
  const std::vector<Row> rows = Forward(samples);
  out->resize(samples.size());
  for (LargestLogits& of_sample : *out) of_sample.ids.clear();
  for (const Row& row : rows) {
    LargestLogits& of_sample = (*out)[row.sample];
    of_sample.ids.resize(static_cast<size_t>((row.of_sample + 1) * k_));
  }
  for (LargestLogits& of_sample : *out) of_sample.logits.resize(of_sample.ids.size());
  const auto most = static_cast<size_t>(model_->shape().chunk_rows);
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && end - begin < most &&
           rows[end].of_pass == rows[end - 1].of_pass + 1) {
      ++end;
    }
    TERCIO_RETURN_IF_ERROR(Keep(absl::MakeConstSpan(rows).subspan(begin, end - begin), out));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace tercio::inference
