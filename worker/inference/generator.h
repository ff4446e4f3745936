// A loaded model that continues prompts, or answers them.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tokenizer/tokenizer.h"
#include "worker/inference/sampling.h"

namespace tercio::inference {

class Generator {
 public:
  virtual ~Generator() = default;

  // Null if none was given and the directory holds none that this version can read.
  virtual const tokenizer::Tokenizer* tokenizer() const = 0;
  virtual int64_t context() const = 0;
  virtual int32_t vocab_size() const = 0;
  // Whether the new ids follow the prompt in one text; else they answer it.
  virtual bool continues_prompts() const = 0;

  // Gives each prompt (at least one id; of a longer one the last `context` ids count) new ids and
  // calls `on_token` for each of them with the prompt's index; false ends the generation of all of
  // them. As many texts grow at once as the model was loaded for; a prompt's ids depend on the
  // options alone, not on the prompts beside it. INVALID_ARGUMENT | FAILED_PRECONDITION for outputs
  // that are not finite.
  using OnToken = std::function<bool(size_t prompt, int32_t id)>;
  virtual absl::Status Generate(absl::Span<const std::vector<int32_t>> prompts,
                                const GenerateOptions& options, const OnToken& on_token) = 0;
};

// INVALID_ARGUMENT for an empty prompt, or for ids outside the vocabulary.
absl::Status CheckPrompts(absl::Span<const std::vector<int32_t>> prompts, int32_t vocab_size);
absl::Status CheckIds(absl::Span<const int32_t> ids, int32_t vocab_size);
// FAILED_PRECONDITION if one is not finite: the likeliest id would hide that something is wrong.
absl::Status CheckFinite(absl::Span<const float> logits);

}  // namespace tercio::inference
