// What a step takes beside its arena: nothing. Every allocation of this process is counted, whoever
// makes it, while steps of the engine run on the CPU; and the process does not grow over many of
// them.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "plan/names.h"
#include "tests/parity/thread_ranks.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/step_guard.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TERCIO_COUNTS 0  // the sanitizer's allocator is not ours to count
#else
#define TERCIO_COUNTS 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
std::atomic<int64_t> largest{0};

void Count(size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto size = static_cast<int64_t>(bytes);
  int64_t most = largest.load(std::memory_order_relaxed);
  while (size > most && !largest.compare_exchange_weak(most, size)) {
  }
}

}  // namespace

#if TERCIO_COUNTS
// In the place of the library's, which operator new calls, too.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  Count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Count(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  Count(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  Count(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace tercio::testing {
namespace {

// Samples that are there before, so that what is counted is the engine's.
class ReadySource : public data::SampleSource {
 public:
  ReadySource(const v1::ModelSpec& model, data::SampleSource& source, int64_t batch) {
    for (int64_t i = 0; i < batch; ++i) {
      data::Sample sample(model.context(), model.decoder_context());
      source.TrainingSample(1, i, &sample);
      samples_.push_back(sample);
    }
  }
  void TrainingSample(int64_t, int64_t sequence, data::Sample* out) override {
    *out = samples_[static_cast<size_t>(sequence)];
  }
  int64_t held_out_samples(data::HeldOut) const override { return 1; }
  void HeldOutSample(data::HeldOut, int64_t, data::Sample* out) override {
    *out = samples_.front();
  }

 private:
  std::vector<data::Sample> samples_;
};

v1::JobSpec OnOneRank(v1::JobSpec spec) {
  spec.mutable_parallelism()->set_tensor(1);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_data(1);
  spec.mutable_training()->set_micro_batch(2);
  return spec;
}

struct Counted {
  int64_t allocations;
  int64_t largest;
};

// In steps 3 to 5 of one rank.
Counted CountInSteps(v1::JobSpec spec, int threads) {
  spec = OnOneRank(spec);
  const std::unique_ptr<data::SampleSource> synthetic = SyntheticSourceOf(spec.model());
  ReadySource source(spec.model(), *synthetic, spec.training().global_batch());
  RunOptions options;
  options.steps = 6;
  options.threads_per_rank = threads;
  options.source = &source;
  // Scales at which no step of fp16 is skipped: who describes why one was may allocate.
  std::map<std::string, std::vector<float>> state;
  if (spec.training().precision() == v1::PRECISION_FP16) {
    RunOptions none = options;
    none.steps = 0;
    const auto initial = TrainWithThreads(spec, none);
    EXPECT_TRUE(initial.ok()) << initial.status();
    if (initial.ok()) state = initial->state;
    state[engine::kGuardTensor] = {65536, 0, 2, 0, 0};
    options.state = &state;
  }
  options.after_step = [](int, int64_t step) {
    if (step == 2) {
      allocations = 0;
      largest = 0;
    }
    counting = step >= 2 && step < 5;
  };
  const auto result = TrainWithThreads(spec, options);
  counting = false;
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result.ok() && result->steps.back().skipped);
  return {allocations, largest};
}

TEST(Allocations, AreCounted) {
  if (!TERCIO_COUNTS) GTEST_SKIP() << "a sanitizer has its own allocator";
  allocations = 0;
  largest = 0;
  counting = true;
  std::vector<double> some(1000);
  std::string* text = new std::string(5000, 'x');
  counting = false;
  EXPECT_GE(allocations, 3);
  EXPECT_GE(largest, 8000);
  EXPECT_EQ(some.size() + text->size(), 6000u);
  delete text;
}

TEST(Allocations, AStepOfARankMakesNone) {
  if (!TERCIO_COUNTS) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre),
                                  SmallClassifier(), SmallT5()}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      for (const int threads : {1, 2}) {
        v1::JobSpec job = spec;
        job.mutable_training()->set_precision(precision);
        SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision) +
                     ", threads " + std::to_string(threads));
        const Counted counted = CountInSteps(job, threads);
        EXPECT_EQ(counted.allocations, 0) << "the largest has " << counted.largest << " bytes";
      }
    }
  }
}

// The kernel's own counts are exact to some pages of each processor.
TEST(Allocations, TwoHundredStepsDoNotGrowTheProcess) {
  if (!TERCIO_COUNTS) GTEST_SKIP() << "a sanitizer has its own allocator";
  constexpr int64_t kMost = int64_t{1} << 20;
  const auto device = device::CreateCpuDevice(1);
  int64_t after_20 = 0;
  int64_t after_220 = 0;
  RunOptions options;
  options.steps = 220;
  options.after_step = [&](int, int64_t step) {
    if (step == 20) after_20 = *device->BytesInUse();
    if (step == 220) after_220 = *device->BytesInUse();
  };
  const auto result = TrainWithThreads(OnOneRank(SmallJob()), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(after_20, 1 << 20);
  EXPECT_LE(after_220 - after_20, kMost);
}

// What the bound on growth is worth.
TEST(Allocations, MemoryThatIsTouchedIsInUse) {
  const auto device = device::CreateCpuDevice(1);
  const int64_t before = *device->BytesInUse();
  constexpr int64_t kBytes = int64_t{64} << 20;
  const auto memory = device->Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LT(*device->BytesInUse() - before, kBytes / 2);
  EXPECT_EQ((*memory)->ResidentBytes(0, kBytes), 0);
  (*memory)->data()[0] = std::byte{1};
  const int64_t one = (*memory)->ResidentBytes(0, kBytes).value();
  EXPECT_GE(one, 4096);
  EXPECT_LE(one, 2 << 20);  // a large page
  EXPECT_EQ((*memory)->ResidentBytes(1, 100), 100);
  EXPECT_EQ((*memory)->ResidentBytes(kBytes / 2, kBytes / 2), 0);
  std::fill_n((*memory)->data(), kBytes, std::byte{1});
  EXPECT_EQ((*memory)->ResidentBytes(0, kBytes), kBytes);
  EXPECT_EQ((*memory)->ResidentBytes(5000, 10000), 10000);
  EXPECT_GT(*device->BytesInUse() - before, kBytes / 2);
}

}  // namespace
}  // namespace tercio::testing
