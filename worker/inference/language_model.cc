#include "worker/inference/language_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "worker/inference/cross_entropy.h"

namespace tercio::inference {
namespace {

class LoadedModel : public LanguageModel {
 public:
  explicit LoadedModel(std::unique_ptr<WholeModel> model)
      : model_(std::move(model)),
        inputs_(model_->arena().Get<int32_t>("tokens.inputs")),
        texts_(MakeTextBatch(*model_)) {}

  const tokenizer::Tokenizer* tokenizer() const override { return model_->tokenizer(); }
  int64_t context() const override { return model_->shape().streams.front().tokens; }
  int32_t vocab_size() const override { return model_->spec().vocab_size(); }

  TextBatch& texts() override { return *texts_; }
  absl::StatusOr<absl::Span<const float>> NextLogits(absl::Span<const int32_t> ids) override;
  absl::Status Generate(absl::Span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options, const OnToken& on_token) override;
  absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens, int64_t stride,
                                      const Progress& progress) override;
  absl::StatusOr<Prediction> Predict(absl::Span<const int32_t> given,
                                     absl::Span<const int32_t> wanted) override;

 private:
  engine::StageModel& stage() { return model_->stage(); }
  void Forward(int64_t rows, absl::Span<const blocks::SequencePart> parts);
  // Ids of one sequence from its begin, at most `context`.
  void ForwardIds(absl::Span<const int32_t> ids);
  // visit(row, its logits) for rows [begin, end) of the last pass, ascending. Rows that follow each
  // other read the head's weights once.
  void ForLogits(int64_t begin, int64_t end,
                 absl::FunctionRef<void(int64_t row, absl::Span<const float> logits)> visit);

  std::unique_ptr<WholeModel> model_;
  int32_t* inputs_;
  std::unique_ptr<TextBatch> texts_;
};

void LoadedModel::Forward(int64_t rows, absl::Span<const blocks::SequencePart> parts) {
  TERCIO_CHECK_LE(rows, model_->shape().streams.front().rows);
  // Callers take turns: texts would wait for a pass that is not theirs.
  TERCIO_CHECK_EQ(texts_->free_slots(), texts_->slots());
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.parts = parts;
  stage().Forward(batch);
}

void LoadedModel::ForwardIds(absl::Span<const int32_t> ids) {
  std::copy(ids.begin(), ids.end(), inputs_);
  const auto rows = static_cast<int64_t>(ids.size());
  const blocks::SequencePart part{.sequence = 0, .first_position = 0, .rows = rows};
  Forward(rows, absl::MakeConstSpan(&part, 1));
}

void LoadedModel::ForLogits(
    int64_t begin, int64_t end,
    absl::FunctionRef<void(int64_t row, absl::Span<const float> logits)> visit) {
  const plan::StageShape& shape = model_->shape();
  for (int64_t first = begin; first < end; first += shape.chunk_rows) {
    const int64_t rows = std::min(shape.chunk_rows, end - first);
    const float* logits = stage().Logits({}, first, rows).floats();
    for (int64_t i = 0; i < rows; ++i, logits += shape.vocabulary) {
      visit(first + i, absl::MakeConstSpan(logits, static_cast<size_t>(vocab_size())));
    }
  }
}

absl::StatusOr<absl::Span<const float>> LoadedModel::NextLogits(absl::Span<const int32_t> ids) {
  if (ids.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(ids, vocab_size()));
  const size_t window = std::min(ids.size(), static_cast<size_t>(context()));
  ForwardIds(ids.subspan(ids.size() - window));
  absl::Span<const float> result;
  const auto rows = static_cast<int64_t>(window);
  ForLogits(rows - 1, rows, [&](int64_t, absl::Span<const float> logits) { result = logits; });
  return result;
}

absl::Status LoadedModel::Generate(absl::Span<const std::vector<int32_t>> prompts,
                                   const GenerateOptions& options, const OnToken& on_token) {
  TERCIO_RETURN_IF_ERROR(CheckPrompts(prompts, vocab_size()));
  struct Growing {
    size_t prompt = 0;
    int64_t made = 0;
  };
  std::map<TextBatch::Text, Growing> growing;
  absl::Status status;
  bool wanted = true;
  for (size_t next = 0; wanted && status.ok();) {
    // A text that has ended makes room for the next prompt.
    for (; texts_->free_slots() > 0 && next < prompts.size(); ++next) {
      TERCIO_ASSIGN_OR_RETURN(const TextBatch::Text text,
                              texts_->Add(prompts[next], {.sampling = options}));
      growing[text] = {.prompt = next};
    }
    if (growing.empty()) break;
    // Nobody waits for the others here: as much of the prompts is read as a pass has rows for.
    for (const TextBatch::News& news : texts_->Step(model_->shape().streams.front().rows)) {
      if (status.ok()) status = news.status;
      if (!status.ok() || !wanted) break;
      if (!news.id.has_value()) continue;
      Growing& text = growing.at(news.text);
      wanted = on_token(text.prompt, news.id->id);
      if (++text.made < options.tokens) continue;
      texts_->Remove(news.text);
      growing.erase(news.text);
    }
  }
  for (const auto& [text, unused] : growing) texts_->Remove(text);
  return status;
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
    TERCIO_RETURN_IF_ERROR(CheckIds(window, vocab_size()));
    ForwardIds(window.subspan(0, static_cast<size_t>(inputs)));
    // Earlier windows have counted the tokens before these.
    ForLogits(done - begin, inputs, [&](int64_t row, absl::Span<const float> logits) {
      sum += CrossEntropy(logits, window[static_cast<size_t>(row + 1)]);
    });
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
  TERCIO_RETURN_IF_ERROR(CheckIds(ids, vocab_size()));
  // The first wanted token also needs one in front of it, which fits: the last is no input.
  if (static_cast<int64_t>(wanted.size()) > context()) {
    return absl::InvalidArgumentError(absl::StrCat(wanted.size(), " tokens to predict are ",
                                                   "more than the context of ", context()));
  }
  // The last wanted id is not an input; a short context drops the first ids.
  const size_t inputs = std::min(ids.size() - 1, static_cast<size_t>(context()));
  const size_t begin = ids.size() - 1 - inputs;
  ForwardIds(absl::MakeConstSpan(ids).subspan(begin, inputs));
  Prediction result;
  result.likeliest = true;
  // The row of a token predicts the one after it.
  const auto end = static_cast<int64_t>(inputs);
  const int64_t first = end - static_cast<int64_t>(wanted.size());
  ForLogits(first, end, [&](int64_t row, absl::Span<const float> logits) {
    const int32_t target = wanted[static_cast<size_t>(row - first)];
    result.loss += CrossEntropy(logits, target);
    // Among equal logits the smaller id counts as the most likely, as in SampleId.
    const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    result.likeliest = result.likeliest && likeliest == target;
  });
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(
    const std::string& directory, int threads, PassSize pass,
    std::optional<tokenizer::Tokenizer> tokenizer) {
  TERCIO_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(directory, std::move(tokenizer)));
  return Load(opened, threads, pass);
}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(const OpenedModel& opened,
                                                                   int threads, PassSize pass) {
  const std::string& directory = opened.directory;
  if (model::ArchitectureOf(opened.spec()).streams.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, " answers prompts with a decoder, and is no model of running text; ",
        "use `tercio generate`, or `tercio evaluate --job`"));
  }
  TERCIO_ASSIGN_OR_RETURN(auto model, WholeModel::Load(opened, threads, pass));
  if (!model::ArchitectureOf(model->spec()).causal) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " is a bert, which looks both ways and cannot continue a text; ",
                     "evaluate one with labels using --metric accuracy"));
  }
  return std::unique_ptr<LanguageModel>(std::make_unique<LoadedModel>(std::move(model)));
}

}  // namespace tercio::inference
