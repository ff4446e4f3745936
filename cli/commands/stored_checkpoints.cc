// checkpoint list, verify, prune and now, and delete: the stored data of a job.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/with_client.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

template <typename Checkpoints>
// Lists of the API and of this program have different types.
Json ToJson(const Checkpoints& checkpoints) {
  Json list = Json::array();
  for (const v1::CheckpointInfo& checkpoint : checkpoints) {
    list.push_back(CheckpointToJson(checkpoint));
  }
  return list;
}

}  // namespace

int CheckpointList(const CheckpointListOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const auto checkpoints, client.Checkpoints(options.job));
    if (options.format() != Output::kTable) {
      PrintJson(ToJson(checkpoints), options.format());
      return kExitOk;
    }
    std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "VERIFIED", "PATH"}};
    for (const v1::CheckpointInfo& checkpoint : checkpoints) {
      // Damage is known for good; a checkpoint without it may simply not have been read yet.
      const std::string verified = !checkpoint.problem().empty() ? "DAMAGED"
                                   : checkpoint.has_verified_at()
                                       ? TimeText(checkpoint.verified_at())
                                       : "not yet";
      // The mark stands behind the step, so that a job that keeps no best one has the same table.
      rows.push_back({absl::StrCat(checkpoint.step(), checkpoint.best() ? " (best)" : ""),
                      SizeText(checkpoint.bytes()), verified, checkpoint.path()});
    }
    std::cout << Table(rows);
    return kExitOk;
  });
}

namespace {

// Verifies one checkpoint at a time, to show the progress.
absl::StatusOr<std::vector<v1::CheckpointFinding>> Verify(Client& client,
                                                          const CheckpointVerifyOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto all, client.Checkpoints(options.job));
  std::vector<v1::CheckpointInfo> checkpoints;
  int64_t total = 0;
  // A step of 0 means all of them.
  for (const v1::CheckpointInfo& checkpoint : all) {
    if (options.step > 0 && checkpoint.step() != options.step) continue;
    checkpoints.push_back(checkpoint);
    // The bar counts bytes, since checkpoints differ in size and reading is what takes time.
    total += checkpoint.bytes();
  }
  if (checkpoints.empty()) return absl::NotFoundError("the job has no checkpoint of that step");
  ProgressBar bar("checkpoint verify");
  std::vector<v1::CheckpointFinding> findings;
  // Checkpoints that vanish meanwhile are part of the total, so that the bar may end early.
  int64_t done = 0;
  for (const v1::CheckpointInfo& checkpoint : checkpoints) {
    // The bar is shown before the call, which may take minutes.
    bar.Show(done, total, absl::StrCat("step ", checkpoint.step()));
    grpc::ClientContext context;
    v1::VerifyCheckpointRequest request;
    request.set_job(options.job);
    request.set_step(checkpoint.step());
    v1::VerifyCheckpointResponse response;
    const grpc::Status status = client.stub().VerifyCheckpoint(&context, request, &response);
    // A checkpoint counts as done whatever its result was.
    done += checkpoint.bytes();
    // A running job removes old checkpoints meanwhile.
    const bool gone = status.error_code() == grpc::StatusCode::NOT_FOUND;
    if (gone && checkpoints.size() > 1) continue;
    // Any other failure would also meet the next one.
    TERCIO_RETURN_IF_ERROR(CallStatus(status, client));
    findings.insert(findings.end(), response.findings().begin(), response.findings().end());
  }
  return findings;
}

}  // namespace

int CheckpointVerify(const CheckpointVerifyOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointFinding> all, Verify(client, options));
    Json findings = Json::array();
    // All findings are printed before the exit code says that one of them is bad.
    bool good = true;
    for (const v1::CheckpointFinding& finding : all) {
      good = good && finding.ok();
      findings.push_back({{"step", finding.step()},
                          {"path", finding.path()},
                          {"ok", finding.ok()},
                          {"problem", finding.ok() ? Json(nullptr) : Json(finding.problem())}});
      if (options.format() == Output::kTable) {
        std::cout << (finding.ok() ? "ok      " : "DAMAGED ") << finding.path()
                  << (finding.ok() ? "" : ": " + ForTerminal(finding.problem())) << "\n";
      }
    }
    if (options.format() != Output::kTable) PrintJson(findings, options.format());
    // 7 is the exit code of damage, which scripts distinguish from failures of the check itself.
    return good ? kExitOk : kExitConflict;
  });
}

int CheckpointNow(const CheckpointNowOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::SaveCheckpointRequest request;
    request.set_job(options.job);
    // Without a timeout the job's own applies (JobServiceImpl::SaveCheckpoint).
    if (options.timeout_seconds > 0) request.set_timeout_seconds(options.timeout_seconds);
    v1::CheckpointInfo saved;
    TERCIO_RETURN_IF_ERROR(
        CallStatus(client.stub().SaveCheckpoint(&context, request, &saved), client));
    if (options.format() != Output::kTable) {
      PrintJson(CheckpointToJson(saved), options.format());
    } else {
      std::cout << "step " << saved.step() << ", " << SizeText(saved.bytes()) << ", "
                << saved.path() << "\n";
    }
    return kExitOk;
  });
}

int Delete(const DeleteOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::DeleteRequest request;
    request.set_job(options.job);
    request.set_checkpoints(options.checkpoints);
    v1::DeleteResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Delete(&context, request, &response), client));
    if (options.format() != Output::kTable) {
      PrintJson({{"id", response.job_id()},
                 {"checkpoints", response.checkpoints()},
                 {"checkpoint_bytes", response.checkpoint_bytes()}},
                options.format());
    } else {
      std::cout << "deleted " << response.job_id();
      // The number is told only where checkpoints were asked to go.
      if (options.checkpoints) {
        std::cout << " and " << response.checkpoints() << " checkpoints, "
                  << SizeText(response.checkpoint_bytes());
      }
      std::cout << "\n";
    }
    return kExitOk;
  });
}

int CheckpointPrune(const CheckpointPruneOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::PruneCheckpointsRequest request;
    request.set_job(options.job);
    request.set_keep_last(options.keep_last);
    request.set_dry_run(options.dry_run);
    v1::PruneCheckpointsResponse response;
    TERCIO_RETURN_IF_ERROR(
        CallStatus(client.stub().PruneCheckpoints(&context, request, &response), client));
    if (options.format() != Output::kTable) {
      PrintJson({{"dry_run", options.dry_run},
                 {"removed", ToJson(response.removed())},
                 {"kept", ToJson(response.kept())}},
                options.format());
      return kExitOk;
    }
    // The sum answers why somebody prunes.
    int64_t bytes = 0;
    for (const v1::CheckpointInfo& checkpoint : response.removed()) {
      std::cout << (options.dry_run ? "would remove " : "removed ") << checkpoint.path() << "\n";
      bytes += checkpoint.bytes();
    }
    // A dry run says the same in the conditional, so that nobody takes it for done.
    std::cout << (options.dry_run ? "would remove " : "removed ") << response.removed_size()
              << " checkpoints, " << SizeText(bytes) << "; " << response.kept_size()
              << (options.dry_run ? " would be kept\n" : " kept\n");
    return kExitOk;
  });
}

}  // namespace tercio::cli
