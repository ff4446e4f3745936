#include "tests/bench/kernels/cases.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/exact_sum.h"

namespace tercio::bench {
namespace {

using kernels::Format;
using kernels::Ops;
using kernels::Values;

constexpr int64_t kBytes = 2;          // bytes of a value
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
    NormsOfHeads();
    Residuals();
    Activations();
    Embeddings();
    Losses();
    Optimizer();
    Copies();
    Blocks();
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
    return {.x = States(),
            .weight = arena_.Values(hidden_),
            .bias = arena_.Values(hidden_),
            .y = States(),
            .mean = arena_.Floats(rows_),
            .rstd = arena_.Floats(rows_),
            .rows = rows_,
            .columns = hidden_};
  }

  void Norms() {
    const int64_t count = rows_ * hidden_;
    Moves("LayerNorm", 2 * kBytes * count, [a = NormArgs()](Ops& ops) { ops.LayerNorm(a); });
    const kernels::LayerNormBackwardArgs backward = {.dy = States(),
                                                     .x = States(),
                                                     .weight = arena_.Values(hidden_),
                                                     .mean = arena_.Floats(rows_),
                                                     .rstd = arena_.Floats(rows_),
                                                     .dx = States(),
                                                     .dweight = arena_.Floats(hidden_),
                                                     .dbias = arena_.Floats(hidden_),
                                                     .rows = rows_,
                                                     .columns = hidden_,
                                                     .rows_per_leaf = sizes_.context};
    Moves("LayerNormBackward", 3 * kBytes * count,
          [backward](Ops& ops) { ops.LayerNormBackward(backward); });
  }

  void NormsOfHeads() {
    const int64_t count = rows_ * hidden_;
    const int64_t head_dim = hidden_ / sizes_.heads;
    const kernels::HeadNormArgs forward = {.x = States(),
                                           .weight = arena_.Values(head_dim),
                                           .y = States(),
                                           .rstd = arena_.Floats(rows_ * sizes_.heads),
                                           .rows = rows_,
                                           .heads = sizes_.heads,
                                           .head_dim = head_dim,
                                           .stride = hidden_};
    Moves("HeadNorm", 2 * kBytes * count, [forward](Ops& ops) { ops.HeadNorm(forward); });
    const kernels::HeadNormBackwardArgs backward = {.dy = States(),
                                                    .x = States(),
                                                    .weight = arena_.Values(head_dim),
                                                    .rstd = arena_.Floats(rows_ * sizes_.heads),
                                                    .dx = States(),
                                                    .dweight = arena_.Floats(head_dim),
                                                    .rows = rows_,
                                                    .heads = sizes_.heads,
                                                    .head_dim = head_dim,
                                                    .stride = hidden_,
                                                    .rows_per_leaf = sizes_.context};
    Moves("HeadNormBackward", 3 * kBytes * count,
          [backward](Ops& ops) { ops.HeadNormBackward(backward); });
  }

  void Residuals() {
    const int64_t count = rows_ * hidden_;
    const auto residual = [this] {
      return kernels::ResidualArgs{.residual = States(),
                                   .branch = States(),
                                   .bias = arena_.Values(hidden_),
                                   .out = States(),
                                   .rows = rows_,
                                   .columns = hidden_};
    };
    Moves("Residual", 3 * kBytes * count, [a = residual()](Ops& ops) { ops.Residual(a); });
    const kernels::ResidualArgs first = residual();
    Moves("Residual, LayerNorm", 4 * kBytes * count, [first, norm = NormArgs()](Ops& ops) {
      ops.RunChain({.residual = first, .norm = norm});
    });
    const kernels::ResidualBackwardArgs backward = {.dout = States(),
                                                    .dbranch = nullptr,
                                                    .dbias = arena_.Floats(hidden_),
                                                    .rows = rows_,
                                                    .columns = hidden_,
                                                    .rows_per_leaf = sizes_.context};
    Moves("ResidualBackward", kBytes * count,
          [backward](Ops& ops) { ops.ResidualBackward(backward); });
  }

  void Activations() {
    const int64_t count = rows_ * inner_;
    const kernels::ActivationArgs gelu = {
        .h = Inner(), .g = Inner(), .rows = rows_, .columns = inner_};
    Moves("Activate, GELU", 2 * kBytes * count, [gelu](Ops& ops) { ops.Activate(gelu); });
    const kernels::ActivationBackwardArgs gelu_backward = {
        .dg = Inner(), .h = Inner(), .dh = Inner(), .rows = rows_, .columns = inner_};
    Moves("ActivateBackward, GELU", 3 * kBytes * count,
          [gelu_backward](Ops& ops) { ops.ActivateBackward(gelu_backward); });
    const kernels::GatedArgs gated = {
        .h = arena_.Values(2 * count), .g = Inner(), .rows = rows_, .columns = inner_};
    Moves("Gated, SiLU", 3 * kBytes * count, [gated](Ops& ops) { ops.Gated(gated); });
    const kernels::GatedBackwardArgs gated_backward = {.dg = Inner(),
                                                       .h = arena_.Values(2 * count),
                                                       .dh = arena_.Values(2 * count),
                                                       .rows = rows_,
                                                       .columns = inner_};
    Moves("GatedBackward, SiLU", 5 * kBytes * count,
          [gated_backward](Ops& ops) { ops.GatedBackward(gated_backward); });
    const int64_t head_dim = hidden_ / sizes_.heads;
    const kernels::RotaryArgs rotary = {.x = States(),
                                        .table = arena_.Floats(sizes_.context * head_dim),
                                        .rows = rows_,
                                        .tokens = sizes_.context,
                                        .stride = hidden_,
                                        .heads = sizes_.heads,
                                        .head_dim = head_dim};
    Moves("Rotary", 2 * kBytes * rows_ * hidden_, [rotary](Ops& ops) { ops.Rotary(rotary); });
  }

  void Embeddings() {
    const int64_t count = rows_ * hidden_;
    const kernels::EmbeddingArgs rows = {.tokens = indices_,
                                         .weight = arena_.Values(vocabulary_ * hidden_),
                                         .out = States(),
                                         .count = rows_,
                                         .columns = hidden_,
                                         .vocabulary_begin = 0,
                                         .vocabulary_rows = vocabulary_};
    Moves("Embedding", 2 * kBytes * count, [rows](Ops& ops) { ops.Embedding(rows); });
    const kernels::EmbeddingBackwardArgs sums = {.tokens = indices_,
                                                 .dx = States(),
                                                 .dweight = arena_.Floats(vocabulary_ * hidden_),
                                                 .count = rows_,
                                                 .columns = hidden_,
                                                 .vocabulary_begin = 0,
                                                 .vocabulary_rows = vocabulary_};
    Moves("EmbeddingBackward", kBytes * count + 8 * distinct_ * hidden_,
          [sums](Ops& ops) { ops.EmbeddingBackward(sums); });
    const kernels::PositionEmbeddingArgs positions = {
        .x = States(),
        .weight = arena_.Values(sizes_.context * hidden_),
        .rows = rows_,
        .columns = hidden_,
        .tokens = sizes_.context};
    Moves("PositionEmbedding", 2 * kBytes * count,
          [positions](Ops& ops) { ops.PositionEmbedding(positions); });
    const kernels::PositionEmbeddingBackwardArgs backward = {
        .dx = States(),
        .dweight = arena_.Floats(sizes_.context * hidden_),
        .rows = rows_,
        .columns = hidden_,
        .tokens = sizes_.context};
    Moves("PositionEmbeddingBackward", kBytes * count,
          [backward](Ops& ops) { ops.PositionEmbeddingBackward(backward); });
  }

  void Losses() {
    const int64_t count = head_rows_ * vocabulary_;
    const kernels::SoftCapArgs cap = {.x = arena_.Values(count), .count = count, .cap = 30};
    Moves("SoftCap", 2 * kBytes * count, [cap](Ops& ops) { ops.SoftCap(cap); });
    const kernels::CrossEntropyLocalArgs local = {
        .logits = arena_.Values(count),
        .targets = indices_,
        .stats = arena_.Floats(head_rows_ * kernels::kCrossEntropyStats),
        .rows = head_rows_,
        .valid = vocabulary_,
        .stride = vocabulary_,
        .vocabulary_begin = 0};
    Moves("CrossEntropyLocal", kBytes * count, [local](Ops& ops) { ops.CrossEntropyLocal(local); });
    const kernels::CrossEntropyBackwardArgs backward = {.logits = arena_.Values(count),
                                                        .lse = arena_.Floats(head_rows_),
                                                        .targets = indices_,
                                                        .rows = head_rows_,
                                                        .valid = vocabulary_,
                                                        .stride = vocabulary_,
                                                        .vocabulary_begin = 0,
                                                        .scale = 1.0f / 32};
    Moves("CrossEntropyBackward", 2 * kBytes * count,
          [backward](Ops& ops) { ops.CrossEntropyBackward(backward); });
  }

  void Optimizer() {
    const int64_t each = inner_ * hidden_;
    const auto tensors = std::make_shared<std::vector<kernels::AdamWTensor>>();
    for (int64_t i = 0; i < kTensorsOfStep; ++i) {
      tensors->push_back({.parameter = arena_.Floats(each),
                          .gradient = arena_.Floats(each),
                          .m = arena_.Floats(each),
                          .v = arena_.Floats(each),
                          .rounded = arena_.Values(each),
                          .count = each,
                          .weight_decay = 0.1f});
    }
    Moves("AdamW", kTensorsOfStep * each * (28 + kBytes), [tensors](Ops& ops) {
      ops.AdamW({.tensors = tensors->data(),
                 .tensor_count = kTensorsOfStep,
                 .learning_rate = 1e-4f,
                 .beta1 = 0.9f,
                 .beta2 = 0.95f,
                 .eps = 1e-8f,
                 .bias_correction1 = 0.1,
                 .bias_correction2 = 0.05,
                 .clip = 1.0f});
    });
    const auto sums = std::make_shared<std::vector<kernels::SquaredTensor>>();
    for (int64_t i = 0; i < kTensorsOfStep; ++i) {
      sums->push_back({.values = arena_.Floats(each),
                       .count = each,
                       .not_finite = reinterpret_cast<double*>(arena_.Take(8))});
    }
    auto* limbs = reinterpret_cast<double*>(arena_.Take(8 * kernels::kSumLimbs));
    Moves("SumsOfSquares", kTensorsOfStep * each * 4, [sums, limbs](Ops& ops) {
      ops.SumsOfSquares({.tensors = sums->data(), .tensor_count = kTensorsOfStep, .limbs = limbs});
    });
  }

  void Copies() {
    const int64_t count = rows_ * inner_;
    const Values to = Inner();
    const Values from = Inner();
    Moves("Copy", 2 * kBytes * count, [=](Ops& ops) { ops.Copy(to, from, count); });
    Moves("Add", 3 * kBytes * count, [=](Ops& ops) { ops.Add(to, from, count); });
    Moves("Scale", 2 * kBytes * count, [=](Ops& ops) { ops.Scale(to, 0.5f, count); });
    const kernels::DigestArgs digest = {.values = arena_.Floats(count),
                                        .columns = inner_,
                                        .rows = rows_,
                                        .stride = inner_,
                                        .digest = reinterpret_cast<uint64_t*>(arena_.Take(8))};
    Moves("Digest", 4 * count, [digest](Ops& ops) { ops.Digest(digest); });
    const kernels::QuantizeArgs quantize = {
        .x = Inner(),
        .plain = Values(arena_.Take(count), Format::kE4m3, Format::kE4m3),
        .transposed = Values(arena_.Take(count), Format::kE4m3, Format::kE4m3),
        .scale = reinterpret_cast<const kernels::Scale*>(arena_.Take(sizeof(kernels::Scale))),
        .largest = arena_.Floats(1),
        .rows = rows_,
        .columns = inner_};
    Moves("Quantize", (kBytes + 2) * count, [quantize](Ops& ops) { ops.Quantize(quantize); });
  }

  void Blocks() {
    constexpr auto kFormat = kernels::BlockFormat::kInt8;
    const int64_t count = rows_ * inner_;
    const int64_t bytes = kernels::PackedBytes(kFormat, count);
    const float* from = arena_.Floats(count);
    const Values to = Inner();
    Moves("RoundBlocks, int8", (4 + kBytes) * count,
          [=](Ops& ops) { ops.RoundBlocks(to, from, count, kFormat); });
    const float* packed_from = arena_.Floats(count);
    std::byte* packed = arena_.Take(bytes);
    Moves("PackBlocks, int8", 4 * count + bytes,
          [=](Ops& ops) { ops.PackBlocks(packed, packed_from, count, kFormat); });
    const std::byte* unpacked_from = arena_.Take(bytes);
    const Values unpacked = Inner();
    Moves("UnpackBlocks, int8", kBytes * count + bytes,
          [=](Ops& ops) { ops.UnpackBlocks(unpacked, unpacked_from, count, kFormat); });
  }

  static double Flops(int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }

  // x (m, k), w (n, k), y (m, n)
  kernels::MatmulArgs Product(int64_t m, int64_t n, int64_t k, bool bias) {
    return {.x = arena_.Values(m * k),
            .w = arena_.Values(n * k),
            .bias = bias ? arena_.Values(n) : nullptr,
            .y = arena_.Values(m * n),
            .m = m,
            .n = n,
            .k = k};
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
    const kernels::ActivationArgs gelu = {
        .h = up.y, .g = Inner(), .rows = rows_, .columns = inner_};
    Computes("Matmul, Activate, first of feed-forward", Flops(rows_, inner_, hidden_),
             [up, gelu](Ops& ops) { ops.RunChain({.product = up, .activation = gelu}); });
  }

  // dy (m, n), w (n, k), dx (m, k)
  kernels::MatmulBackwardInputArgs InputGradient(int64_t m, int64_t n, int64_t k) {
    return {.dy = arena_.Values(m * n),
            .w = arena_.Values(n * k),
            .dx = arena_.Values(m * k),
            .m = m,
            .n = n,
            .k = k};
  }

  void Gradients() {
    Computes("MatmulBackwardInput, first of feed-forward", Flops(rows_, inner_, hidden_),
             [a = InputGradient(rows_, inner_, hidden_)](Ops& ops) { ops.MatmulBackwardInput(a); });
    const kernels::MatmulBackwardInputArgs down = InputGradient(rows_, hidden_, inner_);
    const kernels::ActivationBackwardArgs gelu = {
        .dg = down.dx, .h = Inner(), .dh = down.dx, .rows = rows_, .columns = inner_};
    Computes("MatmulBackwardInput, ActivateBackward, second of feed-forward",
             Flops(rows_, inner_, hidden_), [down, gelu](Ops& ops) {
               ops.RunChain({.input_gradient = down, .activation_gradient = gelu});
             });
    const kernels::MatmulBackwardWeightArgs weight = {.dy = Inner(),
                                                      .x = States(),
                                                      .dw = arena_.Floats(inner_ * hidden_),
                                                      .dbias = arena_.Floats(inner_),
                                                      .m = rows_,
                                                      .n = inner_,
                                                      .k = hidden_,
                                                      .rows_per_leaf = sizes_.context};
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
      const kernels::AttentionArgs forward = {.q = qkv,
                                              .k = qkv + hidden_,
                                              .v = qkv + 2 * hidden_,
                                              .stride = 3 * hidden_,
                                              .out = out,
                                              .lse = lse,
                                              .sequences = sequences,
                                              .tokens = sizes_.context,
                                              .heads = sizes_.heads,
                                              .head_dim = head_dim};
      const Values dout = States();
      const Values dqkv = arena_.Values(3 * rows_ * hidden_);
      const kernels::AttentionBackwardArgs backward = {.dout = dout,
                                                       .out = out,
                                                       .lse = lse,
                                                       .q = qkv,
                                                       .k = qkv + hidden_,
                                                       .v = qkv + 2 * hidden_,
                                                       .dq = dqkv,
                                                       .dk = dqkv + hidden_,
                                                       .dv = dqkv + 2 * hidden_,
                                                       .stride = 3 * hidden_,
                                                       .sequences = sequences,
                                                       .tokens = sizes_.context,
                                                       .heads = sizes_.heads,
                                                       .head_dim = head_dim};
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
