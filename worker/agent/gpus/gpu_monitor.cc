#include "worker/agent/gpus/gpu_monitor.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/steady_time.h"

namespace tercio::agent {
namespace {

// A look takes milliseconds, unless the driver hangs.
constexpr auto kStopPatience = std::chrono::seconds(1);
// A broken GPU may report errors without end.
constexpr size_t kMostXidsKept = 256;

struct HeardXid {
  int xid;
  absl::Time at;
};

struct Watched {
  std::optional<GpuSample> sample;
  std::optional<GpuFault> fault;
  std::vector<HeardXid> heard;  // the newest
  std::map<int, int64_t> counts;
  std::vector<int> kinds;  // each XID that it has reported, in order of appearance
  absl::Time last_in_use = absl::InfinitePast();
};

// Only what people or the coordinator would see makes two faults different.
bool Same(const std::optional<GpuFault>& a, const std::optional<GpuFault>& b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || (a->text == b->text && a->ends_runs == b->ends_runs));
}

}  // namespace

// Shared with the thread, which may outlive the monitor.
struct GpuMonitor::State {
  explicit State(Options given) : options(std::move(given)), watched(options.gpus.list.size()) {}

  bool Silent() const TERCIO_REQUIRES(mutex) { return SteadyNow() - answered > options.silence; }
  // Records the results of a look. Returns whether any fault has changed.
  bool Take(const std::vector<GpuSample>& samples, const std::vector<GpuXid>& xids,
            const std::set<int>& in_use, const absl::Status& status) TERCIO_REQUIRES(mutex);

  const Options options;
  Callbacks callbacks;  // set before the thread begins
  mutable Mutex mutex;
  ConditionVariable changed;
  std::vector<Watched> watched TERCIO_GUARDED_BY(mutex);
  absl::Time answered TERCIO_GUARDED_BY(mutex) = SteadyNow();
  // Looks that were requested, and looks that are done.
  uint64_t wanted TERCIO_GUARDED_BY(mutex) = 0;
  uint64_t looked TERCIO_GUARDED_BY(mutex) = 0;
  bool in_driver TERCIO_GUARDED_BY(mutex) = false;
  bool stopped TERCIO_GUARDED_BY(mutex) = false;
  bool done TERCIO_GUARDED_BY(mutex) = false;
  std::thread thread TERCIO_GUARDED_BY(mutex);
};

bool GpuMonitor::State::Take(const std::vector<GpuSample>& samples, const std::vector<GpuXid>& xids,
                             const std::set<int>& in_use, const absl::Status& status) {
  const absl::Time now = SteadyNow();
  answered = now;
  bool another = false;
  for (size_t i = 0; i < watched.size(); ++i) {
    Watched& gpu = watched[i];
    // Samples are in the driver's order, of whose GPUs this node may use only some.
    const auto place = static_cast<size_t>(options.gpus.list[i].index);
    if (in_use.contains(static_cast<int>(i))) gpu.last_in_use = now;
    for (const GpuXid& heard : xids) {
      if (heard.gpu != place) continue;
      if (gpu.heard.size() >= kMostXidsKept) gpu.heard.erase(gpu.heard.begin());
      gpu.heard.push_back({heard.xid, now});
      if (++gpu.counts[heard.xid] == 1) gpu.kinds.push_back(heard.xid);
    }
    GpuCircumstances circumstances;
    circumstances.xids = gpu.kinds;
    circumstances.shared = options.shared;
    circumstances.others_bytes = options.others_bytes;
    // The memory of a process is given back some time after its end.
    circumstances.in_use = now - gpu.last_in_use < options.release;
    std::optional<GpuFault> fault;
    gpu.sample = std::nullopt;
    if (place < samples.size()) {
      gpu.sample = samples[place];
      fault = FaultOf(options.gpus.list[i], samples[place], circumstances);
    } else if (!status.ok()) {
      fault = GpuFault{std::string(status.message()), false};
    }
    // A fault of the GPU itself says more.
    if (!fault.has_value() && !options.unusable.empty()) fault = GpuFault{options.unusable, false};
    another |= !Same(gpu.fault, fault);
    gpu.fault = std::move(fault);
  }
  return another;
}

GpuMonitor::GpuMonitor(Options options) : state_(std::make_shared<State>(std::move(options))) {}

void GpuMonitor::Start(Callbacks callbacks) {
  MutexLock lock(state_->mutex);
  state_->callbacks = std::move(callbacks);
  // The driver's silence counts from here, however long ago the monitor was made.
  state_->answered = SteadyNow();
  state_->thread = std::thread([state = state_] { Run(state); });
}

void GpuMonitor::Stop() {
  MutexLock lock(state_->mutex);
  if (!state_->thread.joinable()) return;
  state_->stopped = true;
  state_->changed.NotifyAll();
  state_->changed.WaitFor(state_->mutex, kStopPatience,
                          [this]() TERCIO_REQUIRES(state_->mutex) { return state_->done; });
  // Callbacks end by themselves; a call of the driver might not.
  while (!state_->done && !state_->in_driver) state_->changed.Wait(state_->mutex);
  // The thread is joined without the lock, which it needs to end.
  std::thread thread = std::move(state_->thread);
  const bool done = state_->done;
  lock.Unlock();
  if (done) {
    thread.join();
  } else {
    LogWarning("the NVIDIA driver does not answer: abandoning the thread that queries it");
    thread.detach();
  }
}

void GpuMonitor::Run(const std::shared_ptr<State>& state) {
  std::unique_ptr<GpuSession> session;
  MutexLock lock(state->mutex);
  while (!state->stopped) {
    // Only looks that were requested before this one begins are answered by it.
    const uint64_t wanted = state->wanted;
    lock.Unlock();
    // Callbacks take the locks of their owners, which may be waiting for ours.
    const std::set<int> in_use = state->callbacks.in_use();
    lock.Lock();
    if (state->stopped) break;
    // Only in the driver may this thread be abandoned:
    // elsewhere it uses objects that end with the agent.
    state->in_driver = true;
    lock.Unlock();
    absl::Status status;
    std::vector<GpuSample> samples;
    std::vector<GpuXid> xids;
    // The driver may come up later than the agent.
    if (session == nullptr) {
      auto opened = state->options.open();
      status = opened.status();
      if (opened.ok()) session = *std::move(opened);
    }
    if (session != nullptr) {
      xids = session->TakeXids();
      samples = session->Sample();
    }
    lock.Lock();
    state->in_driver = false;
    state->changed.NotifyAll();
    if (state->stopped) break;
    // Silence counts as a fault, so its end is a change.
    const bool was_silent = state->Silent();
    if (state->Take(samples, xids, in_use, status) || was_silent) {
      lock.Unlock();
      state->callbacks.on_change();
      lock.Lock();
    }
    state->looked = wanted;
    state->changed.NotifyAll();
    state->changed.WaitFor(state->mutex, absl::ToChronoNanoseconds(state->options.interval),
                           [&]() TERCIO_REQUIRES(state->mutex) {
                             return state->stopped || state->wanted > state->looked;
                           });
  }
  state->done = true;
  state->changed.NotifyAll();
}

void GpuMonitor::Look(absl::Duration patience) {
  MutexLock lock(state_->mutex);
  const uint64_t wanted = ++state_->wanted;
  state_->changed.NotifyAll();
  state_->changed.WaitFor(
      state_->mutex, absl::ToChronoNanoseconds(patience),
      [&]() TERCIO_REQUIRES(state_->mutex) { return state_->looked >= wanted || state_->stopped; });
}

std::vector<GpuReading> GpuMonitor::Readings() const {
  MutexLock lock(state_->mutex);
  std::vector<GpuReading> readings;
  const bool silent = state_->Silent();
  for (size_t i = 0; i < state_->watched.size(); ++i) {
    const Watched& gpu = state_->watched[i];
    GpuReading& reading = readings.emplace_back();
    reading.gpu = state_->options.gpus.list[i];
    // Old figures would pass for present ones.
    if (!silent) reading.sample = gpu.sample;
    reading.age_seconds = absl::ToDoubleSeconds(SteadyNow() - state_->answered);
    reading.fault = gpu.fault;
    if (silent && !reading.fault.has_value()) {
      reading.fault = GpuFault{
          "the NVIDIA driver does not answer: check the kernel log; restart the node if this "
          "persists",
          false};
    }
    reading.xids = gpu.counts;
  }
  return readings;
}

GpuMonitor::Trouble GpuMonitor::TroubleOf(int gpu, absl::Duration window, absl::Duration patience) {
  // The report that explains a failure may be younger than the last look.
  Look(patience);
  MutexLock lock(state_->mutex);
  Trouble trouble;
  const Watched& watched = state_->watched.at(static_cast<size_t>(gpu));
  std::set<int> named;
  for (const HeardXid& heard : watched.heard) {
    if (SteadyNow() - heard.at > window || !named.insert(heard.xid).second) continue;
    absl::StrAppend(&trouble.text, trouble.text.empty() ? "" : ", ", DescribeXid(heard.xid));
    trouble.of_device |= IsOfDevice(heard.xid);
  }
  if (trouble.text.empty() && watched.fault.has_value() && watched.fault->ends_runs) {
    trouble = {watched.fault->text, true};
  }
  return trouble;
}

}  // namespace tercio::agent
