#include <iostream>
#include <optional>

#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/with_client.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/log_text.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

// How often, and at which interval, a coordinator that restarts is waited for.
constexpr absl::Duration kLogRetryInterval = absl::Milliseconds(250);
constexpr int kMostRetries = 60;

absl::StatusOr<v1::LogsRequest> RequestOf(const LogsOptions& options) {
  v1::LogsRequest request;
  request.set_job(options.job);
  request.set_follow(options.follow);
  request.set_tail(options.tail);
  for (const int rank : options.ranks) request.add_ranks(rank);
  request.set_level(options.level);
  // Zero means all attempts.
  if (options.attempt > 0) request.set_attempt(options.attempt);
  if (options.since.empty()) return request;
  // The time is made absolute here, so that a retry does not move it.
  TERCIO_ASSIGN_OR_RETURN(const absl::Time since, SinceTime(options.since, absl::Now()));
  const int64_t nanos = absl::ToUnixNanos(since);
  request.mutable_since()->set_seconds(nanos / 1'000'000'000);
  request.mutable_since()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return request;
}

}  // namespace

// A followed stream continues where it was when the coordinator comes back.
int Logs(const LogsOptions& options) {
  absl::StatusOr<v1::LogsRequest> request = RequestOf(options);
  if (!request.ok()) return Fail(request.status());
  std::optional<LastWords> words;
  if (options.follow) words.emplace(StillRunsNotice(options.job));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    JsonStream json(options.format());
    for (int failures = 0;; ++failures) {
      grpc::ClientContext context;
      const auto reader = client.stub().Logs(&context, *request);
      v1::LogLine line;
      while (reader->Read(&line)) {
        // A line that arrives proves that the coordinator is back.
        failures = 0;
        // A retry continues behind this line instead of repeating it.
        request->set_after(line.sequence());
        // The tail was counted once, before the first line.
        request->clear_tail();
        if (options.format() == Output::kTable) {
          std::cout << LogText(line) << std::endl;
        } else {
          json.Add(LogToJson(line));
        }
        if (std::cout) continue;
        context.TryCancel();  // output cannot be written; the program reports it when it exits
        reader->Finish();
        return kExitOk;
      }
      const grpc::Status finish = reader->Finish();
      // Only a coordinator that cannot be reached may come back with more.
      const bool gone = finish.error_code() == grpc::StatusCode::UNAVAILABLE;
      if (!options.follow || !gone || failures >= kMostRetries) {
        TERCIO_RETURN_IF_ERROR(CallStatus(finish, client));
        json.Finish();
        return kExitOk;
      }
      absl::SleepFor(kLogRetryInterval);
    }
  });
}

}  // namespace tercio::cli
