#include "worker/trainer/operation_rates.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/exact_sum.h"
#include "kernels/ops.h"

namespace tercio::trainer {
namespace {

using kernels::Format;

constexpr int kLeastRepeats = 3;
// Shorter than this, calls are timed several at a time.
constexpr double kShort = 200e-6;
// Rows of a piece of a batch, whose gradients are summed apart.
constexpr int64_t kRowsPerLeaf = 256;

struct Size {
  int64_t m, n, k;
};
// From what a small model has on one of several ranks to a layer of GPT-2.
constexpr Size kSizes[] = {{64, 128, 128},  {256, 128, 128},  {256, 512, 128},   {768, 128, 512},
                           {128, 256, 256}, {512, 1024, 256}, {1024, 256, 1024}, {512, 3072, 768}};
// Sides of squares for GPUs, until a product and its gradients take long enough.
constexpr int64_t kLeastSide = 1024;
constexpr int64_t kMostSide = 8192;
constexpr double kEnough = 5e-3;
// No larger products are tried after one that takes longer than this.
constexpr double kLong = 0.5;

// Rows and columns of activations, as a micro-batch of a small model has them.
constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 256;
constexpr int64_t kVocabulary = 1024;
constexpr int64_t kParameters = int64_t{2} << 20;
// Next to nothing.
constexpr int64_t kFewRows = 8;
constexpr int64_t kFewColumns = 16;

struct AttentionCase {
  int64_t sequences, tokens, heads, head_dim;
};
constexpr AttentionCase kAttentionCases[] = {{8, 64, 4, 32}, {4, 256, 4, 64}};

const char* WordOf(Format format) {
  switch (format) {
    case Format::kFloat32:
      return "fp32";
    case Format::kBfloat16:
      return "bf16";
    case Format::kFloat16:
    case Format::kE4m3:
    case Format::kE5m2:
      break;
  }
  return "";
}

// The buffers of a measurement, which live until the next one.
class Buffers {
 public:
  Buffers(device::Device& device, device::Stream& stream, const RateOptions& options)
      : device_(device), stream_(stream), options_(options) {}

  absl::StatusOr<std::byte*> Bytes(int64_t bytes) {
    TERCIO_ASSIGN_OR_RETURN(auto memory, device_.Allocate(bytes));
    memory_.push_back(std::move(memory));
    return memory_.back()->data();
  }

  // `count` numbers near `middle`.
  absl::StatusOr<float*> Floats(int64_t count, float middle = 0.5f) {
    TERCIO_ASSIGN_OR_RETURN(std::byte* const data, Bytes(count * int64_t{sizeof(float)}));
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = middle + 0.001f * static_cast<float>(i % 97);
    }
    stream_.CopyFromHost(data, values.data(), count * int64_t{sizeof(float)});
    TERCIO_RETURN_IF_ERROR(stream_.Synchronize());
    return reinterpret_cast<float*>(data);
  }

  absl::StatusOr<kernels::Values> Values(int64_t count, Format format, float middle = 0.5f) {
    const Format stored = options_.stores_floats ? Format::kFloat32 : format;
    TERCIO_ASSIGN_OR_RETURN(float* const floats, Floats(count, middle));
    if (stored == Format::kFloat32 && format == Format::kFloat32) return kernels::Values(floats);
    TERCIO_ASSIGN_OR_RETURN(std::byte* const data, Bytes(count * BytesOf(stored)));
    const kernels::Values values(data, format, stored);
    stream_.ops().Copy(values, floats, count);
    TERCIO_RETURN_IF_ERROR(stream_.Synchronize());
    return values;
  }

  absl::StatusOr<int32_t*> Ids(int64_t count) {
    TERCIO_ASSIGN_OR_RETURN(std::byte* const data, Bytes(count * int64_t{sizeof(int32_t)}));
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(7 * i % static_cast<size_t>(kVocabulary));
    }
    stream_.CopyFromHost(data, ids.data(), count * int64_t{sizeof(int32_t)});
    TERCIO_RETURN_IF_ERROR(stream_.Synchronize());
    return reinterpret_cast<int32_t*>(data);
  }

  device::Stream& stream() { return stream_; }
  kernels::Ops& ops() { return stream_.ops(); }
  const RateOptions& options() const { return options_; }
  Format format() const { return options_.formats.front(); }
  int64_t value_bytes() const {
    return options_.stores_floats ? int64_t{sizeof(float)} : BytesOf(format());
  }
  absl::StatusOr<double> Seconds(const std::function<void()>& call) {
    return SecondsOf(stream_, options_, call);
  }
  void Clear() { memory_.clear(); }

 private:
  device::Device& device_;
  device::Stream& stream_;
  const RateOptions& options_;
  std::vector<std::unique_ptr<device::DeviceMemory>> memory_;
};

// Seconds of a product and its two gradients.
absl::StatusOr<double> SecondsOfProduct(Buffers& buffers, Format format, const Size& size) {
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values x, buffers.Values(size.m * size.k, format));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values w, buffers.Values(size.n * size.k, format));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values y, buffers.Values(size.m * size.n, format));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values dx, buffers.Values(size.m * size.k, format));
  TERCIO_ASSIGN_OR_RETURN(float* const dw, buffers.Floats(size.n * size.k));
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().Matmul(
        {.x = x, .w = w, .bias = nullptr, .y = y, .m = size.m, .n = size.n, .k = size.k});
    buffers.ops().MatmulBackwardWeight({.dy = y,
                                        .x = x,
                                        .dw = dw,
                                        .m = size.m,
                                        .n = size.n,
                                        .k = size.k,
                                        .rows_per_leaf = std::min(size.m, kRowsPerLeaf),
                                        .accumulate = false});
    buffers.ops().MatmulBackwardInput(
        {.dy = y, .w = w, .dx = dx, .m = size.m, .n = size.n, .k = size.k});
  }));
  buffers.Clear();
  return seconds;
}

// Seconds of one product.
absl::StatusOr<double> AddProduct(Buffers& buffers, Format format, const Size& size,
                                  v1::MachineFigures* figures) {
  TERCIO_ASSIGN_OR_RETURN(const double seconds, SecondsOfProduct(buffers, format, size));
  v1::ProductRate* rate = figures->add_products();
  rate->set_m(static_cast<int32_t>(size.m));
  rate->set_n(static_cast<int32_t>(size.n));
  rate->set_k(static_cast<int32_t>(size.k));
  rate->set_format(WordOf(format));
  rate->set_flops_per_second(6.0 * static_cast<double>(size.m * size.n * size.k) / seconds);
  return seconds;
}

// Sizes that suit a GPU would take long on a slow device.
absl::Status AddProducts(Buffers& buffers, Format format, v1::MachineFigures* figures) {
  for (const Size& size : kSizes) {
    TERCIO_ASSIGN_OR_RETURN(const double seconds, AddProduct(buffers, format, size, figures));
    if (seconds > kLong) return absl::OkStatus();
  }
  // Values in 16 bits are those of a GPU, which is too fast for the sizes above.
  if (buffers.options().stores_floats) return absl::OkStatus();
  for (int64_t side = kLeastSide; side <= kMostSide; side *= 2) {
    TERCIO_ASSIGN_OR_RETURN(const double seconds,
                            AddProduct(buffers, format, {side, side, side}, figures));
    if (seconds > kEnough) break;
  }
  return absl::OkStatus();
}

struct AttentionSeconds {
  double forward = 0;
  double backward = 0;
};

absl::StatusOr<AttentionSeconds> SecondsOfAttention(Buffers& buffers, const AttentionCase& of) {
  const int64_t rows = of.sequences * of.tokens;
  const int64_t width = of.heads * of.head_dim;
  const Format format = buffers.format();
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values qkv, buffers.Values(rows * 3 * width, format, 0));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values dqkv, buffers.Values(rows * 3 * width, format));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values out, buffers.Values(rows * width, format));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values dout, buffers.Values(rows * width, format));
  TERCIO_ASSIGN_OR_RETURN(float* const lse, buffers.Floats(rows * of.heads));
  TERCIO_ASSIGN_OR_RETURN(float* const scratch, buffers.Floats(kernels::AttentionScratch(
                                                    {.tokens = of.tokens, .head_dim = of.head_dim},
                                                    buffers.options().threads)));
  const kernels::AttentionArgs forward = {.q = qkv,
                                          .k = qkv + width,
                                          .v = qkv + 2 * width,
                                          .stride = 3 * width,
                                          .out = out,
                                          .lse = lse,
                                          .sequences = of.sequences,
                                          .tokens = of.tokens,
                                          .heads = of.heads,
                                          .head_dim = of.head_dim,
                                          .scratch = scratch};
  const kernels::AttentionBackwardArgs backward = {.dout = dout,
                                                   .out = out,
                                                   .lse = lse,
                                                   .q = qkv,
                                                   .k = qkv + width,
                                                   .v = qkv + 2 * width,
                                                   .dq = dqkv,
                                                   .dk = dqkv + width,
                                                   .dv = dqkv + 2 * width,
                                                   .stride = 3 * width,
                                                   .sequences = of.sequences,
                                                   .tokens = of.tokens,
                                                   .heads = of.heads,
                                                   .head_dim = of.head_dim,
                                                   .scratch = scratch};
  AttentionSeconds seconds;
  TERCIO_ASSIGN_OR_RETURN(seconds.forward,
                          buffers.Seconds([&] { buffers.ops().Attention(forward); }));
  TERCIO_ASSIGN_OR_RETURN(seconds.backward,
                          buffers.Seconds([&] { buffers.ops().AttentionBackward(backward); }));
  buffers.Clear();
  return seconds;
}

absl::Status AddAttention(Buffers& buffers, const AttentionCase& of, v1::MachineFigures* figures) {
  TERCIO_ASSIGN_OR_RETURN(const AttentionSeconds seconds, SecondsOfAttention(buffers, of));
  v1::AttentionRate* rate = figures->add_attention();
  rate->set_tokens(static_cast<int32_t>(of.tokens));
  rate->set_heads(static_cast<int32_t>(of.heads));
  rate->set_head_dim(static_cast<int32_t>(of.head_dim));
  // A causal mask leaves half of the pairs.
  const double pairs =
      0.5 * static_cast<double>(of.sequences * of.tokens * of.tokens * of.heads * of.head_dim);
  rate->set_forward_flops_per_second(4 * pairs / seconds.forward);
  rate->set_backward_flops_per_second(10 * pairs / seconds.backward);
  return absl::OkStatus();
}

// Bytes a second of the norm, its gradient and the residual's sum, in values that are moved: 2, 3
// and 3 for each element.
absl::StatusOr<double> RateOfNorms(Buffers& buffers) {
  constexpr int64_t kCount = kRows * kColumns;
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values x, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values y, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values dx, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values weight, buffers.Values(kColumns, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(float* const mean, buffers.Floats(kRows));
  TERCIO_ASSIGN_OR_RETURN(float* const rstd, buffers.Floats(kRows));
  TERCIO_ASSIGN_OR_RETURN(float* const gradient, buffers.Floats(2 * kColumns));
  const kernels::LayerNormArgs norm = {.x = x,
                                       .weight = weight,
                                       .bias = weight,
                                       .y = y,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .rows = kRows,
                                       .columns = kColumns};
  kernels::Chain chain;
  chain.residual = kernels::ResidualArgs{.residual = x,
                                         .branch = dx,
                                         .bias = nullptr,
                                         .out = x,
                                         .rows = kRows,
                                         .columns = kColumns,
                                         .dropout = {}};
  chain.norm = norm;
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().RunChain(chain);
    buffers.ops().LayerNormBackward({.dy = y,
                                     .x = x,
                                     .weight = weight,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .dx = dx,
                                     .dweight = gradient,
                                     .dbias = gradient + kColumns,
                                     .rows = kRows,
                                     .columns = kColumns,
                                     .rows_per_leaf = kRowsPerLeaf,
                                     .accumulate = true});
  }));
  buffers.Clear();
  return 8.0 * static_cast<double>(kCount * buffers.value_bytes()) / seconds;
}

// The function and its gradient: 2 and 3 values for each element.
absl::StatusOr<double> RateOfActivations(Buffers& buffers) {
  constexpr int64_t kCount = kRows * 4 * kColumns;
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values h, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values g, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().Activate({.h = h, .g = g, .rows = kRows, .columns = 4 * kColumns});
    buffers.ops().ActivateBackward(
        {.dg = g, .h = h, .dh = g, .rows = kRows, .columns = 4 * kColumns});
  }));
  buffers.Clear();
  return 5.0 * static_cast<double>(kCount * buffers.value_bytes()) / seconds;
}

// The loss and its gradient: 8 and 6 bytes for each logit.
absl::StatusOr<double> RateOfLoss(Buffers& buffers) {
  constexpr int64_t kCount = kRows / 4 * kVocabulary;
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values logits, buffers.Values(kCount, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(int32_t* const targets, buffers.Ids(kRows));
  TERCIO_ASSIGN_OR_RETURN(float* const stats, buffers.Floats(kRows * kernels::kCrossEntropyStats));
  TERCIO_ASSIGN_OR_RETURN(float* const rows, buffers.Floats(2 * kRows));
  TERCIO_ASSIGN_OR_RETURN(std::byte* const sums, buffers.Bytes(kRows * int64_t{sizeof(double)}));
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().CrossEntropy({.logits = logits,
                                .targets = targets,
                                .stats = stats,
                                .lse = rows,
                                .loss = rows + kRows,
                                .sums = reinterpret_cast<double*>(sums),
                                .rows = kRows / 4,
                                .valid = kVocabulary,
                                .stride = kVocabulary,
                                .scale = 1,
                                .smoothing = {},
                                .first_row = 0,
                                .rows_per_sum = kRowsPerLeaf});
  }));
  buffers.Clear();
  return 14.0 * static_cast<double>(kCount) / seconds;
}

// AdamW and the norm of the gradients: 42 bytes for each weight.
absl::StatusOr<double> RateOfUpdate(Buffers& buffers) {
  TERCIO_ASSIGN_OR_RETURN(float* const weight, buffers.Floats(kParameters));
  TERCIO_ASSIGN_OR_RETURN(float* const gradient, buffers.Floats(kParameters, 1e-3f));
  TERCIO_ASSIGN_OR_RETURN(float* const m, buffers.Floats(kParameters));
  TERCIO_ASSIGN_OR_RETURN(float* const v, buffers.Floats(kParameters));
  TERCIO_ASSIGN_OR_RETURN(std::byte* const sums,
                          buffers.Bytes((kernels::kSumLimbs + 1) * int64_t{sizeof(double)}));
  auto* const limbs = reinterpret_cast<double*>(sums);
  const kernels::AdamWTensor tensor = {.parameter = weight,
                                       .gradient = gradient,
                                       .m = m,
                                       .v = v,
                                       .rounded = nullptr,
                                       .count = kParameters,
                                       .weight_decay = 0.1f};
  const kernels::SquaredTensor squares = {
      .values = gradient, .count = kParameters, .not_finite = limbs + kernels::kSumLimbs};
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().SumsOfSquares({.tensors = &squares, .tensor_count = 1, .limbs = limbs});
    buffers.ops().AdamW({.tensors = &tensor,
                         .tensor_count = 1,
                         .learning_rate = 1e-6f,
                         .beta1 = 0.9f,
                         .beta2 = 0.99f,
                         .eps = 1e-8f,
                         .bias_correction1 = 0.1,
                         .bias_correction2 = 0.01});
  }));
  buffers.Clear();
  return 42.0 * static_cast<double>(kParameters) / seconds;
}

absl::StatusOr<double> RateOfMemory(Buffers& buffers) {
  const int64_t bytes = buffers.options().copy_bytes;
  const int64_t count = bytes / int64_t{sizeof(float)};
  TERCIO_ASSIGN_OR_RETURN(std::byte* const from, buffers.Bytes(bytes));
  TERCIO_ASSIGN_OR_RETURN(std::byte* const to, buffers.Bytes(bytes));
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().Copy(kernels::Values(reinterpret_cast<float*>(to)),
                       kernels::ConstValues(reinterpret_cast<const float*>(from)), count);
  }));
  buffers.Clear();
  return 2.0 * static_cast<double>(bytes) / seconds;
}

absl::StatusOr<double> SecondsOfAnOperation(Buffers& buffers) {
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values h,
                          buffers.Values(kFewRows * kFewColumns, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const kernels::Values g,
                          buffers.Values(kFewRows * kFewColumns, buffers.format()));
  TERCIO_ASSIGN_OR_RETURN(const double seconds, buffers.Seconds([&] {
    buffers.ops().Activate({.h = h, .g = g, .rows = kFewRows, .columns = kFewColumns});
  }));
  buffers.Clear();
  return seconds;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<double> SecondsOf(device::Stream& stream, const RateOptions& options,
                                 const std::function<void()>& call) {
  const auto time = [&](int calls) -> absl::StatusOr<double> {
    const absl::Time begin = options.now();
    for (int i = 0; i < calls; ++i) call();
    TERCIO_RETURN_IF_ERROR(stream.Synchronize());
    return absl::ToDoubleSeconds(options.now() - begin);
  };
  // The first call touches memory, loads kernels and chooses algorithms.
  TERCIO_RETURN_IF_ERROR(time(1).status());
  TERCIO_ASSIGN_OR_RETURN(const double first, time(1));
  const int calls = std::clamp(static_cast<int>(kShort / std::max(first, 1e-9)), 1, 1000);
  std::vector<double> seconds;
  const absl::Time end = options.now() + options.patience;
  while (static_cast<int>(seconds.size()) < kLeastRepeats || options.now() < end) {
    TERCIO_ASSIGN_OR_RETURN(const double all, time(calls));
    seconds.push_back(std::max(all / calls, 1e-10));
  }
  return Median(std::move(seconds));
}

absl::Status MeasureOperations(device::Device& device, const RateOptions& options,
                               v1::MachineFigures* figures) {
  TERCIO_ASSIGN_OR_RETURN(const auto workspace, device.Allocate(options.workspace_bytes));
  TERCIO_ASSIGN_OR_RETURN(const auto stream,
                          device.CreateStream(device::Device::StreamKind::kCompute,
                                              {workspace->data(), workspace->size_bytes()}));
  Buffers buffers(device, *stream, options);
  for (const Format format : options.formats) {
    TERCIO_RETURN_IF_ERROR(AddProducts(buffers, format, figures));
  }
  for (const AttentionCase& of : kAttentionCases) {
    TERCIO_RETURN_IF_ERROR(AddAttention(buffers, of, figures));
  }
  TERCIO_ASSIGN_OR_RETURN(const double memory, RateOfMemory(buffers));
  figures->set_memory_bytes_per_second(memory);
  TERCIO_ASSIGN_OR_RETURN(const double norms, RateOfNorms(buffers));
  figures->set_norm_bytes_per_second(norms);
  TERCIO_ASSIGN_OR_RETURN(const double activations, RateOfActivations(buffers));
  figures->set_activation_bytes_per_second(activations);
  TERCIO_ASSIGN_OR_RETURN(const double loss, RateOfLoss(buffers));
  figures->set_loss_bytes_per_second(loss);
  TERCIO_ASSIGN_OR_RETURN(const double update, RateOfUpdate(buffers));
  figures->set_update_bytes_per_second(update);
  TERCIO_ASSIGN_OR_RETURN(const double operation, SecondsOfAnOperation(buffers));
  figures->set_operation_seconds(operation);
  return absl::OkStatus();
}

}  // namespace tercio::trainer
