#include "worker/inference/encoder_decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architecture.h"

namespace tercio::inference {
namespace {

// The answer to a prompt.
struct Answer {
  size_t prompt = 0;
  int64_t sequence = 0;  // of the micro-batch
  int32_t last = 0;      // id that the next one follows
  int64_t made = 0;
};

class EncoderDecoder : public Generator {
 public:
  explicit EncoderDecoder(std::unique_ptr<WholeModel> model)
      : model_(std::move(model)),
        inputs_(model_->arena().Get<int32_t>("tokens.inputs")),
        decoder_inputs_(model_->arena().Get<int32_t>("tokens.decoder_inputs")),
        lengths_(static_cast<size_t>(model_->shape().sequences), 1) {}

  const tokenizer::Tokenizer* tokenizer() const override { return model_->tokenizer(); }
  int64_t context() const override { return model_->shape().streams.front().tokens; }
  int32_t vocab_size() const override { return model_->spec().vocab_size(); }
  bool continues_prompts() const override { return false; }

  absl::Status Generate(absl::Span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options, const OnToken& on_token) override;

 private:
  // Prompts that are answered at the same time; false: no more tokens are wanted.
  absl::StatusOr<bool> AnswerGroup(absl::Span<const std::vector<int32_t>> prompts, size_t first,
                                   const GenerateOptions& options, const OnToken& on_token);
  blocks::MicroBatch Batch(int stream) const;
  void Encode(absl::Span<const std::vector<int32_t>> prompts);
  // One more row of each answer.
  void Decode(absl::Span<const Answer> answers);
  absl::Span<const float> LogitsOf(int64_t row);

  std::unique_ptr<WholeModel> model_;
  int32_t* inputs_;
  int32_t* decoder_inputs_;
  std::vector<int32_t> lengths_;  // of the prompts
};

blocks::MicroBatch EncoderDecoder::Batch(int stream) const {
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.decoder_inputs = decoder_inputs_;
  batch.lengths = lengths_.data();
  batch.only_stream = stream;
  return batch;
}

void EncoderDecoder::Encode(absl::Span<const std::vector<int32_t>> prompts) {
  std::fill_n(inputs_, model_->shape().streams.front().rows, 0);
  std::fill(lengths_.begin(), lengths_.end(), 1);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = std::min(static_cast<int64_t>(prompts[i].size()), context());
    std::copy(prompts[i].end() - length, prompts[i].end(),
              inputs_ + static_cast<int64_t>(i) * context());
    lengths_[i] = static_cast<int32_t>(length);
  }
  model_->stage().Forward(Batch(0));
}

void EncoderDecoder::Decode(absl::Span<const Answer> answers) {
  std::vector<blocks::SequencePart> parts;
  for (size_t i = 0; i < answers.size(); ++i) {
    decoder_inputs_[i] = answers[i].last;
    parts.push_back(
        {.sequence = answers[i].sequence, .first_position = answers[i].made, .rows = 1});
  }
  blocks::MicroBatch batch = Batch(1);
  batch.parts = parts;
  // All answers of a group begin together.
  batch.memory_known = answers.front().made > 0;
  model_->stage().Forward(batch);
}

absl::Span<const float> EncoderDecoder::LogitsOf(int64_t row) {
  const float* logits = model_->stage().Logits({}, row, 1).floats();
  return absl::MakeConstSpan(logits, static_cast<size_t>(vocab_size()));
}

absl::StatusOr<bool> EncoderDecoder::AnswerGroup(absl::Span<const std::vector<int32_t>> prompts,
                                                 size_t first, const GenerateOptions& options,
                                                 const OnToken& on_token) {
  Encode(prompts);
  std::vector<Answer> answers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    answers.push_back({first + i, static_cast<int64_t>(i), options.start, 0});
  }
  while (!answers.empty()) {
    Decode(answers);
    std::vector<Answer> growing;
    for (size_t i = 0; i < answers.size(); ++i) {
      Answer answer = answers[i];
      const absl::Span<const float> logits = LogitsOf(static_cast<int64_t>(i));
      TERCIO_RETURN_IF_ERROR(CheckFinite(logits));
      answer.last = SampleId(logits, options, answer.made++);
      if (answer.last == options.end) continue;
      if (!on_token(answer.prompt, answer.last)) return false;
      if (answer.made < options.tokens) growing.push_back(answer);
    }
    answers = std::move(growing);
  }
  return true;
}

absl::Status EncoderDecoder::Generate(absl::Span<const std::vector<int32_t>> prompts,
                                      const GenerateOptions& options, const OnToken& on_token) {
  TERCIO_RETURN_IF_ERROR(CheckPrompts(prompts, vocab_size()));
  TERCIO_RETURN_IF_ERROR(CheckIds({options.start}, vocab_size()));
  if (options.tokens > model_->shape().head_stream().tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model was loaded for answers of ", model_->shape().head_stream().tokens,
                     " tokens, but ", options.tokens, " are asked for"));
  }
  const size_t group = lengths_.size();
  for (size_t first = 0; first < prompts.size(); first += group) {
    TERCIO_ASSIGN_OR_RETURN(const bool wanted,
                            AnswerGroup(prompts.subspan(first, group), first, options, on_token));
    if (!wanted) break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> LoadEncoderDecoder(const OpenedModel& opened,
                                                              int threads, PassSize pass) {
  if (model::ArchitectureOf(opened.spec()).streams.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(opened.directory, " has no decoder"));
  }
  TERCIO_ASSIGN_OR_RETURN(auto model, WholeModel::Load(opened, threads, pass));
  return std::unique_ptr<Generator>(std::make_unique<EncoderDecoder>(std::move(model)));
}

}  // namespace tercio::inference
