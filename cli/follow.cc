#include "cli/follow.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/format.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

// The tries and their pauses are about as long as a restart of a coordinator takes.
constexpr int kMostFailures = 20;  // in a row
// A terminal is redrawn, while each line in a file stays.
constexpr absl::Duration kTerminalInterval = absl::Milliseconds(200);
constexpr absl::Duration kPlainInterval = absl::Seconds(5);

class ProgressPrinter {
 public:
  explicit ProgressPrinter(const FollowOptions& options)
      : show_(options.show_progress),
        title_(options.title.empty() ? "" : ForTerminal(options.title) + "  "),
        terminal_(isatty(STDERR_FILENO) != 0 && CanDraw()) {}

  void Show(const v1::JobStatus& job) {
    if (!show_) return;
    const absl::Time now = absl::Now();
    const bool ended = IsTerminal(job.state());
    // A change of state is shown at once, whatever the interval.
    const bool changed = job.state() != state_ || job.error() != error_;
    if (!ended && !changed && now - last_ < (terminal_ ? kTerminalInterval : kPlainInterval))
      return;
    last_ = now;
    state_ = job.state();
    error_ = job.error();
    std::string line = title_ + ProgressLine(job, absl::ToDoubleSeconds(now - absl::UnixEpoch()));
    if (!job.error().empty()) absl::StrAppend(&line, "  (", ForTerminal(job.error()), ")");
    if (!terminal_ || ended) {  // whole
      // The carriage return overwrites the last line of progress.
      std::fprintf(stderr, "%s%s\n", terminal_ ? "\r\x1b[K" : "", line.c_str());
    } else {  // a line that wraps could not be overwritten
      const auto width = static_cast<size_t>(GetScreen().width);
      std::fprintf(stderr, "\r\x1b[K%s", Clip(line, width - 1).c_str());
    }
    std::fflush(stderr);
  }

 private:
  const bool show_;
  const std::string title_;
  const bool terminal_;
  absl::Time last_ = absl::InfinitePast();
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string error_;
};

}  // namespace

std::string StillRunsNotice(const std::string& job) {
  return absl::StrCat("the job continues; follow it with: tercio watch ", ForTerminal(job), "\n");
}

absl::Status NotInTime(const std::string& job) {
  return absl::DeadlineExceededError(absl::StrCat("job ", job, " did not end in time"));
}

absl::StatusOr<v1::JobStatus> FollowJob(Client& client, const std::string& job,
                                        const FollowOptions& options) {
  ProgressPrinter printer(options);
  // The deadline is one for all tries.
  const absl::Time deadline = absl::Now() + options.timeout;
  int failures = 0;
  grpc::Status unreachable;  // error of the last try if the coordinator was unreachable
  while (true) {
    grpc::ClientContext context;
    // gRPC ends the stream at the deadline, so that nothing else has to look at the clock.
    if (options.timeout != absl::InfiniteDuration()) {
      context.set_deadline(absl::ToChronoTime(deadline));
    }
    v1::WatchRequest request;
    request.set_job(job);
    request.set_ranks(options.ranks);
    const auto reader = client.stub().Watch(&context, request);
    v1::JobStatus status;
    bool ended = false;
    while (reader->Read(&status)) {
      // The coordinator is back: earlier failures do not count any more.
      failures = 0;
      unreachable = grpc::Status::OK;
      printer.Show(status);
      if (options.on_status) options.on_status(status);
      ended = IsTerminal(status.state());
    }
    const grpc::Status finish = reader->Finish();
    // A stream that ends behind the last status has said everything.
    if (ended) return status;
    if (finish.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      // An unreachable coordinator explains more than the time that has passed.
      return unreachable.ok() ? NotInTime(job) : CallStatus(unreachable, client);
    }
    const bool broken = finish.ok() || finish.error_code() == grpc::StatusCode::UNAVAILABLE;
    // A caller that restarts the coordinator itself knows better when to give up.
    const bool hope = options.hope ? options.hope() : ++failures <= kMostFailures;
    if (!broken || !hope) return CallStatus(finish, client);
    unreachable = finish;
    absl::SleepFor(absl::Milliseconds(250));
  }
}

}  // namespace tercio::cli
