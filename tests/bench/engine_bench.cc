// Times the training engine and the matrix product without the service around them; prints one JSON
// line.
//   engine_bench gemm THREADS
//   engine_bench nanogpt|gpt2-124m STEPS THREADS TENSOR PIPELINE DATA [PRECISION]
// Ranks are threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/random.h"
#include "plan/data_position.h"
#include "plan/names.h"
#include "tests/parity/thread_ranks.h"
#include "worker/device/cpu_device.h"

namespace tercio::testing {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Remembers when the first sequence of each step was asked for.
class TimedSource : public data::CausalSource {
 public:
  explicit TimedSource(const v1::ModelSpec& model) : model_(model) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (static_cast<size_t>(step) > begin_.size()) begin_.push_back(Now());
    }
    for (int i = 0; i <= model_.context(); ++i) {
      const auto word =
          kernels::SplitMix64(static_cast<uint64_t>((step * 64 + sequence) * 4096 + i));
      out[i] = static_cast<int32_t>(word % static_cast<uint64_t>(model_.vocab_size()));
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void ReadHeldOut(data::HeldOut, int64_t, int32_t*) override {}

  // The first fifth warms up.
  double MedianStepSeconds() const {
    std::vector<double> seconds;
    for (size_t i = std::max<size_t>(1, begin_.size() / 5); i + 1 < begin_.size(); ++i) {
      seconds.push_back(begin_[i + 1] - begin_[i]);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  const v1::ModelSpec model_;
  std::mutex mutex_;
  std::vector<double> begin_;
};

v1::JobSpec JobOf(const std::string& name) {
  v1::JobSpec spec = SmallJob();
  const bool small = name == "nanogpt";
  v1::ModelSpec* model = spec.mutable_model();
  model->set_layers(small ? 4 : 12);
  model->set_hidden(small ? 128 : 768);
  model->set_heads(small ? 4 : 12);
  model->set_ffn_hidden(4 * model->hidden());
  model->set_context(small ? 64 : 256);
  model->set_vocab_size(small ? 65 : 50257);
  model->set_bias(!small);
  model->set_dropout(0);
  spec.mutable_training()->set_global_batch(small ? 12 : 4);
  spec.mutable_training()->set_clip_grad_norm(1.0);
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(1e-3);
  return spec;
}

// Batches of 0 are the model's own, and as the planner likes them.
struct Sizes {
  int tensor, pipeline, data;
  v1::Precision precision;
  int batch, micro_batch;
};

int BenchTraining(const std::string& name, int64_t steps, int threads, const Sizes& sizes) {
  // The first step is not timed, and a step ends where the next begins.
  if (steps < 3) {
    std::fprintf(stderr, "error: STEPS is %d, but a time needs at least 3\n",
                 static_cast<int>(steps));
    return 2;
  }
  v1::JobSpec spec = JobOf(name);
  spec.mutable_training()->set_precision(sizes.precision);
  if (sizes.batch > 0) spec.mutable_training()->set_global_batch(sizes.batch);
  spec.mutable_training()->set_micro_batch(sizes.micro_batch);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_parallelism()->set_tensor(sizes.tensor);
  spec.mutable_parallelism()->set_pipeline(sizes.pipeline);
  spec.mutable_parallelism()->set_data(sizes.data);
  spec.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  spec.mutable_resources()->set_ranks(sizes.tensor * sizes.pipeline * sizes.data);
  TimedSource source(spec.model());
  RunOptions options;
  options.steps = steps;
  options.threads_per_rank = threads;
  options.source = &source;
  const absl::StatusOr<RunResult> result = TrainWithThreads(spec, options);
  if (!result.ok()) {
    std::fprintf(stderr, "error: %s\n", result.status().ToString().c_str());
    return 1;
  }
  const double seconds = source.MedianStepSeconds();
  const double tokens = static_cast<double>(spec.training().global_batch()) *
                        static_cast<double>(plan::TokensOfSequence(spec.model()));
  std::printf("%s\n", absl::StrFormat(
                          "{\"step_seconds\": %.6g, \"tokens_per_second\": %.6g, \"loss\": %.6f}",
                          seconds, tokens / seconds, result->steps.back().loss)
                          .c_str());
  return 0;
}

int BenchGemm(int threads) {
  constexpr int64_t kSize = 2048;
  const std::unique_ptr<device::Device> device = device::CreateCpuDevice(threads);
  const std::unique_ptr<device::Stream> stream =
      *device->CreateStream(device::Device::StreamKind::kCompute);
  std::vector<float> a(kSize * kSize, 0.5f);
  std::vector<float> b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  const std::string way = device->DescribeProducts(kernels::Format::kBfloat16);
  double best[] = {1e30, 1e30};
  for (int i = 0; i < 12; ++i) {
    const auto format = i % 2 == 0 ? kernels::Format::kFloat32 : kernels::Format::kBfloat16;
    const double begin = Now();
    stream->ops().Matmul({.x = {a.data(), format},
                          .w = {b.data(), format},
                          .bias = nullptr,
                          .y = {c.data(), format},
                          .m = kSize,
                          .n = kSize,
                          .k = kSize,
                          .accumulate = false});
    if (!stream->Synchronize().ok()) return 1;
    best[i % 2] = std::min(best[i % 2], Now() - begin);
  }
  constexpr double kGigaOperations = 2.0 * kSize * kSize * kSize / 1e9;
  std::printf("{\"gemm_gflops\": %.1f, \"bf16_gflops\": %.1f, \"bf16_products\": \"%s\"}\n",
              kGigaOperations / best[0], kGigaOperations / best[1], way.c_str());
  return 0;
}

}  // namespace
}  // namespace tercio::testing

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto number = [&](size_t i) { return std::atoi(arguments[i].c_str()); };
  if (arguments.size() == 2 && arguments[0] == "gemm") {
    return tercio::testing::BenchGemm(number(1));
  }
  if (arguments.size() >= 6 && arguments.size() <= 9) {
    const auto optional = [&](size_t i) { return i < arguments.size() ? number(i) : 0; };
    const auto precision =
        tercio::plan::Named<tercio::v1::Precision>(arguments.size() > 6 ? arguments[6] : "fp32");
    if (precision.has_value()) {
      return tercio::testing::BenchTraining(
          arguments[0], number(1), number(2),
          {number(3), number(4), number(5), *precision, optional(7), optional(8)});
    }
  }
  std::fprintf(stderr,
               "usage: engine_bench gemm THREADS\n"
               "       engine_bench MODEL STEPS THREADS TENSOR PIPELINE DATA [PRECISION [BATCH "
               "[MICRO_BATCH]]]\n");
  return 2;
}
