// Jobs on this machine, with a coordinator and an agent of their own for as long as they run: what
// `run`, `resume`, `compare` and `evaluate --job` have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/follow.h"
#include "cli/private_pair.h"
#include "cli/terminal.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::cli {

// Gives a job for `auto` the device of this machine. INVALID_ARGUMENT for a GPU that is not there.
absl::Status ChooseDevice(v1::JobSpec* spec);

// Whether a verb reports what it does beside its output: the name of a job and its state directory,
// where predictions come from.
enum class Announce { kNo, kYes };

struct PrivateCluster {
  std::unique_ptr<PrivatePair> pair;
  std::unique_ptr<Client> client;
};

// Starts a coordinator and an agent for the ranks of a job, and connects to them. Predictions of
// the coordinator are made with the figures that are kept of this machine, if any.
absl::StatusOr<PrivateCluster> StartPrivateCluster(const v1::JobSpec& spec,
                                                   const std::string& state_dir, Announce announce);

struct PrivateEnd {
  v1::JobStatus status;
  int signal = 0;            // that ended it; 0: none
  int64_t test_samples = 0;  // of data.test, where RunPrivately has prepared it
};

// Whether the status at the end has the figures of ranks.
enum class EndRanks { kNo, kYes };

// Follows the job to its end. The first SIGINT or SIGTERM meanwhile saves and stops it, the second
// stops it immediately, and a process of the pair that dies is restarted. `pair` is null for a job
// of a coordinator that is not this program's. REQUIRES: BlockStopSignals() was called before
// threads were started.
absl::StatusOr<PrivateEnd> FollowToEnd(PrivatePair* pair, Client& client, const std::string& job,
                                       FollowOptions follow);

// Asks for the job to be resumed, and returns its id.
absl::StatusOr<std::string> SendResume(Client& client, const v1::ResumeRequest& request);

struct PreparedJob {
  v1::JobSpec spec;  // with its vocabulary
  int64_t test_samples = 0;
};
// Prepares the job's data where the agent in `state_dir` looks for it, so that it is done once, and
// checks the weights that it starts from. Prints notices about the data. INVALID_ARGUMENT: a fault
// of the job or its files.
absl::StatusOr<PreparedJob> PrepareHere(const v1::JobSpec& spec, const std::string& state_dir);

// Whether the job fits into the memory of this machine, which its ranks share: INVALID_ARGUMENT
// with its memory table.
absl::Status CheckMemoryHere(const v1::JobSpec& spec);

// During its lifetime SIGINT and SIGTERM, which are blocked otherwise, end the program immediately,
// with these words: for what takes a while and has nothing to save. Signals that are pending count.
class MayEnd {
 public:
  explicit MayEnd(const std::string& words);
  ~MayEnd();
  MayEnd(const MayEnd&) = delete;
  MayEnd& operator=(const MayEnd&) = delete;

 private:
  const LastWords words_;
};

// Finds every error that can be found before a job exists (exit code 2), then runs the job in the
// state directory, and returns the result of `at_end`, which may ask the coordinator.
absl::StatusOr<int> RunPrivately(
    const v1::JobSpec& spec, const std::string& state_dir, Announce announce, EndRanks ranks,
    absl::FunctionRef<absl::StatusOr<int>(Client& client, const PrivateEnd& end)> at_end);

}  // namespace tercio::cli
