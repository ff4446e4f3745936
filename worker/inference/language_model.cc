#include "worker/inference/language_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/random.h"
#include "worker/inference/cross_entropy.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {
namespace {

class LoadedModel : public LanguageModel {
 public:
  explicit LoadedModel(std::unique_ptr<WholeModel> model)
      : model_(std::move(model)), inputs_(model_->arena().Get<int32_t>("tokens.inputs")) {}

  const tokenizer::Tokenizer* tokenizer() const override { return model_->tokenizer(); }
  int64_t context() const override { return model_->shape().tokens; }
  int32_t vocab_size() const override { return model_->spec().vocab_size(); }

  absl::StatusOr<absl::Span<const float>> NextLogits(absl::Span<const int32_t> ids) override;
  absl::Status Generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(int32_t)>& on_token) override;
  absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens, int64_t stride,
                                      const Progress& progress) override;
  absl::StatusOr<Prediction> Predict(absl::Span<const int32_t> given,
                                     absl::Span<const int32_t> wanted) override;

 private:
  engine::StageModel& stage() { return model_->stage(); }
  engine::MicroBatch Forward(absl::Span<const int32_t> ids);
  // Processes ids [first, size): the activations still hold those before.
  engine::MicroBatch Extend(absl::Span<const int32_t> ids, size_t first);
  // Logits of the id after `ids`; the activations already hold the first `known` of them.
  const float* LogitsAfter(absl::Span<const int32_t> ids, size_t known);
  // Loss of the id after a row, in nats, and whether it is the most likely.
  double LossOf(const engine::MicroBatch& batch, int64_t row, int32_t target, bool* likeliest);
  absl::Status CheckIds(absl::Span<const int32_t> ids) const;
  int32_t Sample(const float* logits, const GenerateOptions& options, double uniform) const;

  std::unique_ptr<WholeModel> model_;
  int32_t* inputs_;
};

// The ids are followed by padding: attention only looks back, so it changes nothing before it.
engine::MicroBatch LoadedModel::Forward(absl::Span<const int32_t> ids) {
  std::fill(inputs_, inputs_ + context(), 0);
  std::copy(ids.begin(), ids.end(), inputs_);
  engine::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  stage().Forward(batch);
  return batch;
}

engine::MicroBatch LoadedModel::Extend(absl::Span<const int32_t> ids, size_t first) {
  // The buffer still has the ids before these, whose keys and values the slot holds.
  std::copy(ids.begin() + static_cast<ptrdiff_t>(first), ids.end(), inputs_ + first);
  engine::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.first_row = static_cast<int64_t>(first);
  batch.rows = static_cast<int64_t>(ids.size() - first);
  stage().Forward(batch);
  return batch;
}

absl::Status LoadedModel::CheckIds(absl::Span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the model's vocabulary of ", vocab_size()));
    }
  }
  return absl::OkStatus();
}

int32_t LoadedModel::Sample(const float* logits, const GenerateOptions& options,
                            double uniform) const {
  const float* end = logits + vocab_size();
  const float* best = std::max_element(logits, end);
  if (options.temperature <= 0) return static_cast<int32_t>(best - logits);
  std::vector<int32_t> order(static_cast<size_t>(vocab_size()));
  std::iota(order.begin(), order.end(), 0);
  // Among equal logits the smaller id comes first. Ids that are cut off need no order.
  const auto likelier = [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
  } else if (options.top_p < 1) {
    std::sort(order.begin(), order.end(), likelier);
  }
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t id : order) {
    // Relative to the largest logit exp cannot overflow.
    weights.push_back(std::exp((static_cast<double>(logits[id]) - *best) / options.temperature));
    sum += weights.back();
  }
  if (options.top_p < 1) {
    // The most likely ids that together have the probability top_p, at least one.
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && kept < options.top_p * sum) kept += weights[count++];
    weights.resize(std::max<size_t>(1, count));
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double left = uniform * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  // Rounding may leave a little when all weights have been taken away.
  return order[weights.size() - 1];
}

const float* LoadedModel::LogitsAfter(absl::Span<const int32_t> ids, size_t known) {
  const size_t window = std::min(ids.size(), static_cast<size_t>(context()));
  // Once the window slides every id has a new position, and no known activation can be used.
  const engine::MicroBatch batch =
      Extend(ids.subspan(ids.size() - window, window), window == ids.size() ? known : 0);
  // Only the last row predicts a token that is not known yet.
  return stage().Logits(batch, static_cast<int64_t>(window) - 1, 1);
}

absl::StatusOr<absl::Span<const float>> LoadedModel::NextLogits(absl::Span<const int32_t> ids) {
  if (ids.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(ids));
  return absl::MakeConstSpan(LogitsAfter(ids, 0), static_cast<size_t>(vocab_size()));
}

absl::Status LoadedModel::Generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                                   const std::function<bool(int32_t)>& on_token) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(prompt));
  std::vector<int32_t> ids = std::move(prompt);
  size_t known = 0;  // ids whose keys and values are in the activations
  for (int64_t i = 0; i < options.tokens; ++i) {
    const float* logits = LogitsAfter(ids, known);
    // A NaN would give some id, and no hint that anything is wrong.
    if (!std::all_of(logits, logits + vocab_size(), [](float x) { return std::isfinite(x); })) {
      return absl::FailedPreconditionError(
          "the model's outputs are not finite; its weights are damaged or have diverged");
    }
    // The id that is sampled below has not been through the model.
    known = ids.size();
    // The draw depends on the seed and the number of the token alone, so a text can be made again.
    const uint64_t word =
        kernels::SplitMix64(kernels::SplitMix64(options.seed) ^ static_cast<uint64_t>(i));
    // A double has 53 bits: all multiples of 2^-53 below 1 are equally likely.
    const double uniform = static_cast<double>(word >> 11) * 0x1.0p-53;
    ids.push_back(Sample(logits, options, uniform));
    if (!on_token(ids.back())) break;
  }
  return absl::OkStatus();
}

double LoadedModel::LossOf(const engine::MicroBatch& batch, int64_t row, int32_t target,
                           bool* likeliest) {
  const auto logits = absl::MakeConstSpan(stage().Logits(batch, row, 1).floats(),
                                          static_cast<size_t>(vocab_size()));
  // Among equal logits the smaller id counts as the most likely, as in Sample.
  *likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin() == target;
  return CrossEntropy(logits, target);
}

absl::StatusOr<LanguageModel::Evaluation> LoadedModel::Evaluate(const data::TokenDataset& tokens,
                                                                int64_t stride,
                                                                const Progress& progress) {
  if (tokens.tokens() < 2) return absl::InvalidArgumentError("the data has fewer than two tokens");
  const int64_t last = tokens.tokens() - 1;  // the last id is only predicted
  Evaluation result;
  double sum = 0;
  // The last token of a window is only predicted.
  std::vector<int32_t> ids(static_cast<size_t>(context() + 1));
  for (int64_t begin = 0, done = 0; done < last; begin += stride) {
    const int64_t inputs = std::min(context(), last - begin);
    tokens.Read(begin, inputs + 1, ids.data());
    const auto window = absl::MakeConstSpan(ids.data(), static_cast<size_t>(inputs + 1));
    TERCIO_RETURN_IF_ERROR(CheckIds(window));
    const engine::MicroBatch batch = Forward(window.subspan(0, static_cast<size_t>(inputs)));
    // Earlier windows have counted the tokens before these.
    for (int64_t row = done - begin; row < inputs; ++row) {
      bool likeliest = false;
      sum += LossOf(batch, row, window[static_cast<size_t>(row + 1)], &likeliest);
    }
    done = begin + inputs;
    if (progress) progress(done, last);
  }
  result.tokens = last;
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

absl::StatusOr<LanguageModel::Prediction> LoadedModel::Predict(absl::Span<const int32_t> given,
                                                               absl::Span<const int32_t> wanted) {
  if (given.empty() || wanted.empty()) {
    return absl::InvalidArgumentError("there is nothing to predict, or nothing to predict it from");
  }
  std::vector<int32_t> ids(given.begin(), given.end());
  ids.insert(ids.end(), wanted.begin(), wanted.end());
  TERCIO_RETURN_IF_ERROR(CheckIds(ids));
  // The first wanted token also needs one in front of it, which fits: the last is no input.
  if (static_cast<int64_t>(wanted.size()) > context()) {
    return absl::InvalidArgumentError(absl::StrCat(wanted.size(), " tokens to predict are ",
                                                   "more than the context of ", context()));
  }
  // The last wanted id is not an input; a short context drops the first ids.
  const size_t inputs = std::min(ids.size() - 1, static_cast<size_t>(context()));
  const size_t begin = ids.size() - 1 - inputs;
  const engine::MicroBatch batch = Forward(absl::MakeConstSpan(ids).subspan(begin, inputs));
  Prediction result;
  result.likeliest = true;
  for (size_t i = 0; i < wanted.size(); ++i) {
    bool likeliest = false;
    // The row of a token predicts the one after it.
    const auto row = static_cast<int64_t>(inputs - wanted.size() + i);
    result.loss += LossOf(batch, row, wanted[i], &likeliest);
    result.likeliest = result.likeliest && likeliest;
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(
    const std::string& directory, int threads, int64_t context,
    std::optional<tokenizer::Tokenizer> tokenizer) {
  TERCIO_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(directory, std::move(tokenizer)));
  TERCIO_ASSIGN_OR_RETURN(auto model, WholeModel::Load(opened, threads, {.context = context}));
  if (!model->shape().causal) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " is a bert, which looks both ways and cannot continue a text; ",
                     "evaluate one with labels using --metric accuracy"));
  }
  return std::unique_ptr<LanguageModel>(std::make_unique<LoadedModel>(std::move(model)));
}

}  // namespace tercio::inference
