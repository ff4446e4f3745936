#include "coordinator/service/stream_hub.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace tercio::coordinator {
namespace {

// Changes come faster than people read: streams check for them at this interval.
constexpr auto kRound = std::chrono::milliseconds(50);

}  // namespace

StreamHub::StreamHub(StreamLimits limits, std::function<uint64_t()> version)
    : version_(std::move(version)), limits_(limits), thread_([this] { Run(); }) {}

StreamHub::~StreamHub() {
  // The thread calls into the streams, so it ends before anything that they use.
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    woken_.NotifyAll();
  }
  thread_.join();
}

absl::Status StreamHub::Reserve(Kind kind) {
  MutexLock lock(mutex_);
  // It is counted even where it is refused: Remove counts every stream down.
  ++figures_.open;
  if (open_[kind]++ < limits_.streams) return absl::OkStatus();
  ++figures_.refused;
  return absl::ResourceExhaustedError(absl::StrCat(
      "this coordinator already serves ", limits_.streams,
      " clients that follow jobs, its limit (--max-streams); end some of them, or retry later"));
}

void StreamHub::Add(std::shared_ptr<HubStream> stream) {
  MutexLock lock(mutex_);
  HubStream* const raw = stream.get();
  streams_[raw] = std::move(stream);
  // A new stream is read at once instead of after a round.
  wake_ = true;
  woken_.NotifyAll();
}

void StreamHub::Remove(HubStream* stream, Kind kind) {
  // Destroying the stream may take other locks, and its reader may be large.
  std::shared_ptr<HubStream> last;  // goes outside the lock
  MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  last = std::move(found->second);
  streams_.erase(found);
  --figures_.open;
  --open_[kind];
}

void StreamHub::Wake() {
  MutexLock lock(mutex_);
  wake_ = true;
  woken_.NotifyAll();
}

void StreamHub::CountCutOff() {
  MutexLock lock(mutex_);
  ++figures_.cut_off;
}

absl::Status StreamHub::CutOffStatus() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("this client has read nothing for ", absl::FormatDuration(limits().patience),
                   " and is disconnected; the job continues: reconnect to follow it"));
}

StreamHub::Figures StreamHub::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

void StreamHub::SetLimits(StreamLimits limits) {
  MutexLock lock(mutex_);
  // Streams that are open stay: the new limit holds for those that come.
  limits_ = limits;
}

StreamLimits StreamHub::limits() const {
  MutexLock lock(mutex_);
  return limits_;
}

void StreamHub::Run() {
  MutexLock lock(mutex_);
  while (true) {
    woken_.WaitFor(mutex_, kRound, [this]() TERCIO_REQUIRES(mutex_) { return stopping_ || wake_; });
    // Without streams the thread sleeps: an idle coordinator wakes nobody.
    while (streams_.empty() && !stopping_ && !wake_) woken_.Wait(mutex_);
    if (stopping_) return;
    wake_ = false;
    std::vector<std::shared_ptr<HubStream>> streams;
    // The copies keep the streams alive while they are read without the lock.
    for (const auto& [raw, stream] : streams_) streams.push_back(stream);
    lock.Unlock();
    // The version is taken before reading: what changes meanwhile is read in the next round.
    const uint64_t version = version_();
    for (const auto& stream : streams) stream->Advance(std::chrono::steady_clock::now(), version);
    streams.clear();
    lock.Lock();
  }
}

}  // namespace tercio::coordinator
