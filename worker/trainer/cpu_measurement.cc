// MeasureDevices for CPUs: ranks with a core each, all at the same time as in training; one rank
// with all cores; messages between two ranks.
#include <sched.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "plan/planner/cost/measured.h"
#include "worker/collective/communicator.h"
#include "worker/collective/gloo_transport.h"
#include "worker/collective/memory_rendezvous.h"
#include "worker/device/cpu_device.h"
#include "worker/trainer/device_report.h"
#include "worker/trainer/memory_trial.h"
#include "worker/trainer/operation_rates.h"

namespace tercio::trainer {
namespace {

constexpr int64_t kMessageFloats = int64_t{256} << 10;
constexpr int64_t kSmallFloats = 64;
constexpr absl::Duration kPeerPatience = absl::Seconds(60);
constexpr int kMessages = 101;
constexpr int kPrimes = 5;  // calls that do not count
constexpr double kLeastPartOfBytes = 0.1;

RateOptions OptionsFor(int threads) {
  return {.formats = {kernels::Format::kFloat32, kernels::Format::kBfloat16},
          .threads = threads,
          .now = SteadyNow};
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The calling thread stays on the index-th of the cores that this process may use: what is measured
// at the same time must not take turns on one core while another one is idle.
void StayOnCore(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int before = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || before++ != index) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    // A figure is worse without it, not wrong.
    (void)sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// body(index) in a thread each; the first error.
absl::Status OnThreads(int threads, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> results(static_cast<size_t>(threads));
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] { results[static_cast<size_t>(i)] = body(i); });
  }
  for (std::thread& thread : all) thread.join();
  for (const absl::Status& result : results) TERCIO_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

// Each figure is the median over the cores.
v1::MachineFigures MedianFigures(const std::vector<v1::MachineFigures>& all) {
  v1::MachineFigures result = all.front();
  const auto median = [&](const std::function<double(const v1::MachineFigures&)>& get) {
    std::vector<double> values;
    for (const v1::MachineFigures& one : all) values.push_back(get(one));
    return MedianOf(std::move(values));
  };
  using Figures = const v1::MachineFigures&;
  for (int i = 0; i < result.products_size(); ++i) {
    result.mutable_products(i)->set_flops_per_second(
        median([&](Figures one) { return one.products(i).flops_per_second(); }));
  }
  for (int i = 0; i < result.attention_size(); ++i) {
    v1::AttentionRate* rate = result.mutable_attention(i);
    rate->set_forward_flops_per_second(
        median([&](Figures one) { return one.attention(i).forward_flops_per_second(); }));
    rate->set_backward_flops_per_second(
        median([&](Figures one) { return one.attention(i).backward_flops_per_second(); }));
  }
  result.set_memory_bytes_per_second(
      median([](Figures one) { return one.memory_bytes_per_second(); }));
  result.set_norm_bytes_per_second(median([](Figures one) { return one.norm_bytes_per_second(); }));
  result.set_activation_bytes_per_second(
      median([](Figures one) { return one.activation_bytes_per_second(); }));
  result.set_loss_bytes_per_second(median([](Figures one) { return one.loss_bytes_per_second(); }));
  result.set_update_bytes_per_second(
      median([](Figures one) { return one.update_bytes_per_second(); }));
  result.set_operation_seconds(median([](Figures one) { return one.operation_seconds(); }));
  return result;
}

// Ranks with one core each, which compute at the same time.
absl::StatusOr<v1::MachineFigures> MeasureCores(int cores) {
  std::vector<v1::MachineFigures> all(static_cast<size_t>(cores));
  TERCIO_RETURN_IF_ERROR(OnThreads(cores, [&](int core) {
    StayOnCore(core);
    const auto device = device::CreateCpuDevice(1);
    return MeasureOperations(*device, OptionsFor(1), &all[static_cast<size_t>(core)]);
  }));
  return MedianFigures(all);
}

// Steps of a known model: ranks with one core, all at the same time, and one rank with all cores.
absl::Status MeasureSteps(int cores, v1::MachineFigures* figures) {
  std::vector<double> steps(static_cast<size_t>(cores));
  std::vector<double> small(static_cast<size_t>(cores));
  const v1::JobSpec job = plan::cost::ReferenceJob();
  TERCIO_RETURN_IF_ERROR(OnThreads(cores, [&](int core) -> absl::Status {
    StayOnCore(core);
    const auto device = device::CreateCpuDevice(1);
    TERCIO_ASSIGN_OR_RETURN(small[static_cast<size_t>(core)],
                            SecondsOfTrialStep(*device, TrialJob(v1::DEVICE_KIND_CPU), nullptr,
                                               /*threads=*/1, SteadyNow));
    TERCIO_ASSIGN_OR_RETURN(steps[static_cast<size_t>(core)],
                            SecondsOfTrialStep(*device, job, nullptr, /*threads=*/1, SteadyNow));
    return absl::OkStatus();
  }));
  figures->set_step_seconds(MedianOf(small));
  figures->set_reference_step_seconds(MedianOf(steps));
  figures->set_threads(cores);
  figures->set_thread_share(1);
  if (cores == 1) return absl::OkStatus();
  const auto device = device::CreateCpuDevice(cores);
  TERCIO_ASSIGN_OR_RETURN(const double together,
                          SecondsOfTrialStep(*device, job, nullptr, cores, SteadyNow));
  figures->set_thread_share(figures->reference_step_seconds() / cores / together);
  return absl::OkStatus();
}

// Median seconds of a sum of so many floats over two ranks.
absl::StatusOr<double> SecondsOfSum(collective::Communicator& group, device::Stream& stream,
                                    int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  std::vector<float> scratch(static_cast<size_t>(group.ScratchElements(count)));
  std::vector<double> seconds;
  for (int i = 0; i < kPrimes + kMessages; ++i) {
    const absl::Time begin = SteadyNow();
    group.AllReduceSum(stream, data.data(), count, collective::SumOrder::kRanks, scratch.data());
    TERCIO_RETURN_IF_ERROR(stream.Synchronize());
    if (i >= kPrimes) seconds.push_back(absl::ToDoubleSeconds(SteadyNow() - begin));
  }
  return MedianOf(std::move(seconds));
}

// A sum over two ranks takes two messages' latencies, and sends all of its bytes once.
absl::Status MeasureLink(v1::MachineFigures* figures) {
  collective::MemoryRendezvous store;
  double small = 0;
  double large = 0;
  TERCIO_RETURN_IF_ERROR(OnThreads(2, [&](int rank) -> absl::Status {
    TERCIO_ASSIGN_OR_RETURN(
        auto transport,
        collective::CreateGlooTransport(rank, 2, "measure", store, "127.0.0.1", kPeerPatience));
    const auto device = device::CreateCpuDevice(1);
    TERCIO_ASSIGN_OR_RETURN(const auto stream,
                            device->CreateStream(device::Device::StreamKind::kCompute));
    const auto group =
        collective::CreateCommunicator({"measure", kPeerPatience}, std::move(transport));
    TERCIO_ASSIGN_OR_RETURN(const double few, SecondsOfSum(*group, *stream, kSmallFloats));
    TERCIO_ASSIGN_OR_RETURN(const double many, SecondsOfSum(*group, *stream, kMessageFloats));
    if (rank == 0) {
      small = few;
      large = many;
    }
    return absl::OkStatus();
  }));
  constexpr double kBytes = static_cast<double>(kMessageFloats) * sizeof(float);
  figures->set_link_seconds(small / 2);
  // Where others have the cores, latency is almost all of either: some of it must be the bytes.
  figures->set_link_bytes_per_second(kBytes / std::max(large - small, kLeastPartOfBytes * large));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::MachineFigures> MeasureDevices(int threads) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (threads < 0 || threads > cores) {
    return absl::InvalidArgumentError(absl::StrCat("cannot measure ", threads, " cores: there are ",
                                                   cores, "; give a number between 1 and ", cores));
  }
  const int used = threads == 0 ? cores : threads;
  TERCIO_ASSIGN_OR_RETURN(v1::MachineFigures figures, MeasureCores(used));
  figures.set_device("cpu");
  figures.set_devices(used);
  TERCIO_RETURN_IF_ERROR(MeasureSteps(used, &figures));
  TERCIO_RETURN_IF_ERROR(MeasureLink(&figures));
  return figures;
}

}  // namespace tercio::trainer
