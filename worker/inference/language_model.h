// A trained model, loaded from a checkpoint of any layout, for generation and evaluation on this
// machine.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/token_dataset.h"
#include "worker/data/tokenizer.h"

namespace tercio {

struct GenerateOptions {
  int64_t tokens = 100;
  double temperature = 1.0;  // 0: always the likeliest
  int64_t top_k = 0;         // 0: all
  double top_p = 1;          // the likeliest that together have this probability; 1: all
  uint64_t seed = 1337;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  // From a checkpoint, whose digests are checked, or a Hugging Face directory. `context` makes the
  // model's shorter, and its memory smaller; 0: as it is. NOT_FOUND | DATA_LOSS | INVALID_ARGUMENT
  // from the directory; INVALID_ARGUMENT for a longer context.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(const std::string& directory,
                                                             int threads, int64_t context = 0);

  // Null where the directory holds none that this version reads.
  virtual const data::Tokenizer* tokenizer() const = 0;
  virtual int64_t context() const = 0;
  virtual int32_t vocab_size() const = 0;

  // One number for each id of the vocabulary: what follows `ids` (at least one, the last `context`
  // of them count). Valid until the next call.
  virtual absl::StatusOr<absl::Span<const float>> NextLogits(absl::Span<const int32_t> ids) = 0;

  // Continues the prompt (at least one id; of a longer one the last `context` ids count) and calls
  // `on_token` for each new id; false ends the generation. The same options give the same ids.
  virtual absl::Status Generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                                const std::function<bool(int32_t)>& on_token) = 0;

  struct Evaluation {
    double loss = 0;     // mean over predicted tokens, nats
    int64_t tokens = 0;  // predicted
  };
  // Windows of `context` tokens that do not overlap, the last one may be short: every token but the
  // first is predicted once. INVALID_ARGUMENT for fewer than two tokens or ids outside the
  // vocabulary.
  virtual absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens) = 0;
};

}  // namespace tercio
