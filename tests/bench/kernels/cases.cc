#include "tests/bench/kernels/cases.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tercio::bench {
namespace {

using kernels::Format;
using kernels::Ops;
using kernels::Values;

constexpr int64_t kBytes = 2;          // of a value
constexpr int64_t kTensorsOfStep = 8;  // AdamW and sums of squares take many at once

// Collects the cases of one kind of model and micro-batch.
class Cases {
 public:
  Cases(const Sizes& sizes, const int32_t* indices, int64_t distinct, Arena& arena)
      : rows_(sizes.tokens),
        hidden_(sizes.hidden),
        inner_(4 * sizes.hidden),
        vocabulary_(sizes.vocabulary),
        // The head works in parts of a micro-batch.
        head_rows_(std::max<int64_t>(1, sizes.tokens / 8)),
        sizes_(sizes),
        indices_(indices),
        distinct_(distinct),
        arena_(arena) {}

  std::vector<Case> Make() && {
    Norms();
    Residuals();
    Activations();
    Embeddings();
    Losses();
    Optimizer();
    Copies();
    Products();
    Gradients();
    Attention();
    return std::move(cases_);
  }

 private:
  template <typename Call>
  void Moves(const std::string& operation, int64_t bytes, Call call) {
    cases_.push_back({operation, bytes, 0, std::move(call)});
    arena_.Reuse();
  }
  template <typename Call>
  void Computes(const std::string& operation, double flops, Call call, bool own = false) {
    cases_.push_back({operation, 0, flops, std::move(call), own});
    arena_.Reuse();
  }

  // (rows, hidden)
  Values States() { return arena_.Values(rows_ * hidden_); }
  // (rows, inner)
  Values Inner() { return arena_.Values(rows_ * inner_); }

  kernels::LayerNormArgs NormArgs() {
    return {States(),
            arena_.Values(hidden_),
            arena_.Values(hidden_),
            States(),
            arena_.Floats(rows_),
            arena_.Floats(rows_),
            rows_,
            hidden_};
  }

  void Norms() {
    const int64_t count = rows_ * hidden_;
    Moves("LayerNorm", 2 * kBytes * count, [a = NormArgs()](Ops& ops) { ops.LayerNorm(a); });
    const kernels::LayerNormBackwardArgs backward = {States(),
                                                     States(),
                                                     arena_.Values(hidden_),
                                                     arena_.Floats(rows_),
                                                     arena_.Floats(rows_),
                                                     States(),
                                                     arena_.Floats(hidden_),
                                                     arena_.Floats(hidden_),
                                                     rows_,
                                                     hidden_,
                                                     sizes_.context};
    Moves("LayerNormBackward", 3 * kBytes * count,
          [backward](Ops& ops) { ops.LayerNormBackward(backward); });
  }

  void Residuals() {
    const int64_t count = rows_ * hidden_;
    const auto residual = [this] {
      return kernels::ResidualArgs{States(), States(), arena_.Values(hidden_),
                                   States(), rows_,    hidden_};
    };
    Moves("Residual", 3 * kBytes * count, [a = residual()](Ops& ops) { ops.Residual(a); });
    const kernels::ResidualArgs first = residual();
    Moves("ResidualLayerNorm", 4 * kBytes * count,
          [first, norm = NormArgs()](Ops& ops) { ops.ResidualLayerNorm(first, norm); });
    const kernels::ResidualBackwardArgs backward = {States(), nullptr, arena_.Floats(hidden_),
                                                    rows_,    hidden_, sizes_.context};
    Moves("ResidualBackward", kBytes * count,
          [backward](Ops& ops) { ops.ResidualBackward(backward); });
  }

  void Activations() {
    const int64_t count = rows_ * inner_;
    const kernels::GeluArgs gelu = {Inner(), Inner(), rows_, inner_};
    Moves("Gelu", 2 * kBytes * count, [gelu](Ops& ops) { ops.Gelu(gelu); });
    const kernels::GeluBackwardArgs gelu_backward = {Inner(), Inner(), Inner(), rows_, inner_};
    Moves("GeluBackward", 3 * kBytes * count,
          [gelu_backward](Ops& ops) { ops.GeluBackward(gelu_backward); });
    const kernels::SwigluArgs swiglu = {arena_.Values(2 * count), Inner(), rows_, inner_};
    Moves("Swiglu", 3 * kBytes * count, [swiglu](Ops& ops) { ops.Swiglu(swiglu); });
    const kernels::SwigluBackwardArgs swiglu_backward = {Inner(), arena_.Values(2 * count),
                                                         arena_.Values(2 * count), rows_, inner_};
    Moves("SwigluBackward", 5 * kBytes * count,
          [swiglu_backward](Ops& ops) { ops.SwigluBackward(swiglu_backward); });
    const int64_t head_dim = hidden_ / sizes_.heads;
    const kernels::RotaryArgs rotary = {States(), arena_.Floats(sizes_.context * head_dim),
                                        rows_,    sizes_.context,
                                        hidden_,  sizes_.heads,
                                        head_dim};
    Moves("Rotary", 2 * kBytes * rows_ * hidden_, [rotary](Ops& ops) { ops.Rotary(rotary); });
  }

  void Embeddings() {
    const int64_t count = rows_ * hidden_;
    const kernels::EmbeddingArgs rows = {
        indices_, arena_.Values(vocabulary_ * hidden_), States(), rows_, hidden_, 0, vocabulary_};
    Moves("Embedding", 2 * kBytes * count, [rows](Ops& ops) { ops.Embedding(rows); });
    const kernels::EmbeddingBackwardArgs sums = {
        indices_, States(), arena_.Floats(vocabulary_ * hidden_), rows_, hidden_, 0, vocabulary_};
    Moves("EmbeddingBackward", kBytes * count + 8 * distinct_ * hidden_,
          [sums](Ops& ops) { ops.EmbeddingBackward(sums); });
    const kernels::PositionEmbeddingArgs positions = {
        States(), arena_.Values(sizes_.context * hidden_), rows_, hidden_, sizes_.context};
    Moves("PositionEmbedding", 2 * kBytes * count,
          [positions](Ops& ops) { ops.PositionEmbedding(positions); });
    const kernels::PositionEmbeddingBackwardArgs backward = {
        States(), arena_.Floats(sizes_.context * hidden_), rows_, hidden_, sizes_.context};
    Moves("PositionEmbeddingBackward", kBytes * count,
          [backward](Ops& ops) { ops.PositionEmbeddingBackward(backward); });
  }

  void Losses() {
    const int64_t count = head_rows_ * vocabulary_;
    const kernels::CrossEntropyLocalArgs local = {
        arena_.Values(count),
        indices_,
        arena_.Floats(head_rows_ * kernels::kCrossEntropyStats),
        head_rows_,
        vocabulary_,
        vocabulary_,
        0};
    Moves("CrossEntropyLocal", kBytes * count, [local](Ops& ops) { ops.CrossEntropyLocal(local); });
    const kernels::CrossEntropyBackwardArgs backward = {arena_.Values(count),
                                                        arena_.Floats(head_rows_),
                                                        indices_,
                                                        head_rows_,
                                                        vocabulary_,
                                                        vocabulary_,
                                                        0,
                                                        1.0f / 32};
    Moves("CrossEntropyBackward", 2 * kBytes * count,
          [backward](Ops& ops) { ops.CrossEntropyBackward(backward); });
  }

  void Optimizer() {
    const int64_t each = inner_ * hidden_;
    const auto tensors = std::make_shared<std::vector<kernels::AdamWTensor>>();
    for (int64_t i = 0; i < kTensorsOfStep; ++i) {
      tensors->push_back({arena_.Floats(each), arena_.Floats(each), arena_.Floats(each),
                          arena_.Floats(each), arena_.Values(each), each, 0.1f});
    }
    Moves("AdamW", kTensorsOfStep * each * (28 + kBytes), [tensors](Ops& ops) {
      ops.AdamW({tensors->data(), kTensorsOfStep, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1, 0.05, 1.0f});
    });
    const auto sums = std::make_shared<std::vector<kernels::SumOfSquares>>();
    for (int64_t i = 0; i < kTensorsOfStep; ++i) {
      sums->push_back({arena_.Floats(each), each, reinterpret_cast<double*>(arena_.Take(8))});
    }
    Moves("SumsOfSquares", kTensorsOfStep * each * 4,
          [sums](Ops& ops) { ops.SumsOfSquares(sums->data(), kTensorsOfStep); });
  }

  void Copies() {
    const int64_t count = rows_ * inner_;
    const Values to = Inner();
    const Values from = Inner();
    Moves("Copy", 2 * kBytes * count, [=](Ops& ops) { ops.Copy(to, from, count); });
    Moves("Add", 3 * kBytes * count, [=](Ops& ops) { ops.Add(to, from, count); });
    float* floats = arena_.Floats(count);
    auto* digest = reinterpret_cast<uint64_t*>(arena_.Take(8));
    Moves("Digest", 4 * count, [=](Ops& ops) { ops.Digest(floats, count, digest); });
    const kernels::QuantizeArgs quantize = {
        Inner(),
        Values(arena_.Take(count), Format::kE4m3, Format::kE4m3),
        Values(arena_.Take(count), Format::kE4m3, Format::kE4m3),
        reinterpret_cast<const kernels::Scale*>(arena_.Take(sizeof(kernels::Scale))),
        arena_.Floats(1),
        rows_,
        inner_};
    Moves("Quantize", (kBytes + 2) * count, [quantize](Ops& ops) { ops.Quantize(quantize); });
  }

  static double Flops(int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }

  // x (m, k), w (n, k), y (m, n)
  kernels::MatmulArgs Product(int64_t m, int64_t n, int64_t k, bool bias) {
    return {arena_.Values(m * k),
            arena_.Values(n * k),
            bias ? arena_.Values(n) : nullptr,
            arena_.Values(m * n),
            m,
            n,
            k};
  }

  void Products() {
    const auto plain = [this](const std::string& name, int64_t m, int64_t n, int64_t k, bool bias) {
      Computes(name, Flops(m, n, k), [a = Product(m, n, k, bias)](Ops& ops) { ops.Matmul(a); });
    };
    plain("Matmul, queries, keys, values", rows_, 3 * hidden_, hidden_, true);
    plain("Matmul, attention's output", rows_, hidden_, hidden_, true);
    plain("Matmul, second of feed-forward", rows_, hidden_, inner_, true);
    plain("Matmul, logits", head_rows_, vocabulary_, hidden_, false);
    const kernels::MatmulArgs up = Product(rows_, inner_, hidden_, true);
    const kernels::GeluArgs gelu = {up.y, Inner(), rows_, inner_};
    Computes("MatmulGelu, first of feed-forward", Flops(rows_, inner_, hidden_),
             [up, gelu](Ops& ops) { ops.MatmulGelu(up, gelu); });
  }

  // dy (m, n), w (n, k), dx (m, k)
  kernels::MatmulBackwardInputArgs InputGradient(int64_t m, int64_t n, int64_t k) {
    return {arena_.Values(m * n), arena_.Values(n * k), arena_.Values(m * k), m, n, k};
  }

  void Gradients() {
    Computes("MatmulBackwardInput, first of feed-forward", Flops(rows_, inner_, hidden_),
             [a = InputGradient(rows_, inner_, hidden_)](Ops& ops) { ops.MatmulBackwardInput(a); });
    const kernels::MatmulBackwardInputArgs down = InputGradient(rows_, hidden_, inner_);
    const kernels::GeluBackwardArgs gelu = {down.dx, Inner(), down.dx, rows_, inner_};
    Computes("MatmulGeluBackward, second of feed-forward", Flops(rows_, inner_, hidden_),
             [down, gelu](Ops& ops) { ops.MatmulGeluBackward(down, gelu); });
    const kernels::MatmulBackwardWeightArgs weight = {Inner(),
                                                      States(),
                                                      arena_.Floats(inner_ * hidden_),
                                                      arena_.Floats(inner_),
                                                      rows_,
                                                      inner_,
                                                      hidden_,
                                                      sizes_.context};
    Computes("MatmulBackwardWeight, first of feed-forward", Flops(rows_, inner_, hidden_),
             [weight](Ops& ops) { ops.MatmulBackwardWeight(weight); });
  }

  // Half of the scores are masked; a backward pass has five products where a forward pass has two.
  void Attention() {
    const double products = 2.0 * static_cast<double>(rows_ * sizes_.context * hidden_) / 2;
    const int64_t sequences = rows_ / sizes_.context;
    const int64_t head_dim = hidden_ / sizes_.heads;
    for (const bool own : {false, true}) {
      const std::string name = own ? ", our own kernel" : "";
      const Values qkv = arena_.Values(3 * rows_ * hidden_);
      const Values out = States();
      float* lse = arena_.Floats(rows_ * sizes_.heads);
      const kernels::AttentionArgs forward = {
          qkv, qkv + hidden_, qkv + 2 * hidden_, 3 * hidden_,  out,
          lse, sequences,     sizes_.context,    sizes_.heads, head_dim};
      const Values dout = States();
      const Values dqkv = arena_.Values(3 * rows_ * hidden_);
      const kernels::AttentionBackwardArgs backward = {dout,
                                                       out,
                                                       lse,
                                                       qkv,
                                                       qkv + hidden_,
                                                       qkv + 2 * hidden_,
                                                       dqkv,
                                                       dqkv + hidden_,
                                                       dqkv + 2 * hidden_,
                                                       3 * hidden_,
                                                       sequences,
                                                       sizes_.context,
                                                       sizes_.heads,
                                                       head_dim};
      Computes(
          "Attention" + name, 2 * products, [forward](Ops& ops) { ops.Attention(forward); }, own);
      // Reads what the forward pass has left in the same memory.
      Computes(
          "AttentionBackward" + name, 5 * products,
          [backward](Ops& ops) { ops.AttentionBackward(backward); }, own);
    }
  }

  const int64_t rows_, hidden_, inner_, vocabulary_, head_rows_;
  const Sizes& sizes_;
  const int32_t* const indices_;
  const int64_t distinct_;
  Arena& arena_;
  std::vector<Case> cases_;
};

}  // namespace

std::byte* Arena::Take(int64_t bytes) {
  std::byte* part = memory_ == nullptr ? nullptr : memory_ + at_;
  at_ += (bytes + 255) / 256 * 256;
  most_ = std::max(most_, at_);
  return part;
}

std::vector<Case> MakeCases(const Sizes& sizes, const int32_t* indices, int64_t distinct,
                            Arena& arena) {
  return Cases(sizes, indices, distinct, arena).Make();
}

}  // namespace tercio::bench
