#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/with_client.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/log_text.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/watch_view.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

// Faster than this nobody reads, and slower looks stuck.
constexpr auto kDrawInterval = std::chrono::milliseconds(200);
constexpr auto kWatchRetryInterval = std::chrono::milliseconds(500);
// Steps fetched from the past, and losses kept while following.
constexpr int64_t kStepsBefore = 500;
constexpr size_t kMostLosses = 100'000;
constexpr size_t kMostEvents = 100;

// Draws a job until it is stopped. Losses and events come by streams of their own, beside the job's
// status.
//
// Threads: one draws, one follows the history, one the events; Show from any.
class FullView {
 public:
  FullView(Client& client, const v1::JobStatus& job) : client_(client), job_(job.id()) {
    state_.job = job;
    // The view begins near the present.
    step_ = std::max<int64_t>(0, job.step() - kStepsBefore);
    threads_.emplace_back([this] { DrawUntilStopped(); });
    threads_.emplace_back([this] { FollowHistory(); });
    threads_.emplace_back([this] { FollowEvents(); });
  }

  ~FullView() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      // The threads wait in reads without an end, so that their calls are cancelled first.
      for (grpc::ClientContext* context : calls_) context->TryCancel();
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // Ranks, plan and last lines are not part of every status.
  void Show(const v1::JobStatus& job) {
    MutexLock lock(mutex_);
    // What a brief status leaves out is kept from the last complete one.
    const v1::JobStatus before = std::move(state_.job);
    state_.job = job;
    if (job.ranks().empty()) *state_.job.mutable_ranks() = before.ranks();
    if (job.last_lines().empty()) *state_.job.mutable_last_lines() = before.last_lines();
  }

 private:
  void DrawUntilStopped() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      state_.now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
      const std::string text = WatchView(state_, GetScreen());
      // Writing may block on a slow terminal, while streams go on filling the state.
      lock.Unlock();
      terminal_.Draw(text);
      lock.Lock();
      changed_.WaitFor(mutex_, kDrawInterval,
                       [this]() TERCIO_REQUIRES(mutex_) { return stopping_; });
    }
  }

  void FollowHistory() {
    Follow([this](grpc::ClientContext* context) {
      v1::HistoryRequest request;
      request.set_job(job_);
      request.set_follow(true);
      request.set_after_step(step_);
      const auto reader = client_.stub().History(context, request);
      v1::StepRecord record;
      while (reader->Read(&record)) {
        MutexLock lock(mutex_);
        // A stream that breaks continues behind the last step that was seen.
        step_ = record.step();
        state_.losses.push_back(record.loss());
        if (state_.losses.size() > kMostLosses) state_.losses.erase(state_.losses.begin());
      }
    });
  }

  void FollowEvents() {
    Follow([this](grpc::ClientContext* context) {
      v1::EventsRequest request;
      request.set_job(job_);
      request.set_follow(true);
      const auto reader = client_.stub().Events(context, request);
      v1::JobEvent event;
      while (reader->Read(&event)) {
        MutexLock lock(mutex_);
        // Events are sent again from the beginning after a reconnection.
        if (event.sequence() <= event_) continue;  // received before the stream broke
        event_ = event.sequence();
        state_.events.push_back(event);
        if (state_.events.size() > kMostEvents) state_.events.erase(state_.events.begin());
      }
    });
  }

  // A stream that ends is reopened: the coordinator may come back.
  template <typename Read>
  void Follow(const Read& read) {
    while (true) {
      grpc::ClientContext context;
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        // The destructor cancels what it finds here, so that the entry comes before the call.
        calls_.push_back(&context);
      }
      read(&context);
      MutexLock lock(mutex_);
      std::erase(calls_, &context);
      changed_.WaitFor(mutex_, kWatchRetryInterval,
                       [this]() TERCIO_REQUIRES(mutex_) { return stopping_; });
    }
  }

  Client& client_;
  const std::string job_;
  TerminalView terminal_;
  Mutex mutex_;
  ConditionVariable changed_;
  WatchState state_ TERCIO_GUARDED_BY(mutex_);
  int64_t step_ = 0;  // step of the last loss; of the thread that follows the history
  int64_t event_ TERCIO_GUARDED_BY(mutex_) = 0;  // sequence of the last event
  std::vector<grpc::ClientContext*> calls_ TERCIO_GUARDED_BY(mutex_);
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Prints the lines that remain on the screen after the view is closed.
void Conclude(const v1::JobStatus& job) {
  std::string line = ProgressLine(job, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  if (!job.error().empty()) absl::StrAppend(&line, "  (", ForTerminal(job.error()), ")");
  std::cerr << line << std::endl;
  if (job.state() != v1::JOB_STATE_FAILED) return;
  for (const v1::LogLine& word : job.last_lines()) std::cerr << LogText(word) << "\n";
}

}  // namespace

int Watch(const WatchOptions& options) {
  const LastWords words(StillRunsNotice(options.job));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    FollowOptions follow;
    follow.ranks = true;
    const bool full = !options.plain && options.format() == Output::kTable && CanDraw() &&
                      // The view is for a person at a terminal:
                      // neither stream may be a file or a pipe.
                      isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
    if (!full) {
      TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FollowJob(client, options.job, follow));
      if (options.format() != Output::kTable) PrintJson(JobToJson(job), options.format());
      return ExitCodeOfState(job.state());
    }
    follow.show_progress = false;
    v1::JobStatus job;
    // The view is closed before the last lines are printed, which stay on the screen.
    {
      TERCIO_ASSIGN_OR_RETURN(job, client.Get(options.job, Client::Ranks::kInclude));
      FullView view(client, job);
      follow.on_status = [&view](const v1::JobStatus& status) { view.Show(status); };
      TERCIO_ASSIGN_OR_RETURN(job, FollowJob(client, job.id(), follow));
    }
    Conclude(job);
    return ExitCodeOfState(job.state());
  });
}

}  // namespace tercio::cli
