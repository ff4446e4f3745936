#include "worker/trainer/host_group.h"

#include <utility>

#include "absl/time/time.h"
#include "common/status_macros.h"
#include "plan/rank_layout.h"
#include "worker/collective/thread_transport.h"

namespace tercio::trainer {
namespace {

// Trainers of an attempt start together, so one that is missing for so long has failed.
constexpr absl::Duration kConnectTimeout = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::unique_ptr<collective::Communicator>> JoinHostGroup(
    const v1::TrainerAssignment& assignment, const v1::ProcessGroup& group,
    collective::CommunicatorOptions options, collective::RendezvousStore& rendezvous) {
  // The order in a group is the plan's, which every rank knows.
  const int index = plan::IndexInGroup(group, assignment.plan().placement().rank());
  std::unique_ptr<collective::Transport> transport;
  // A group of one needs no sockets.
  if (group.size() == 1) {
    transport = std::move(collective::CreateThreadTransports(1).front());
  } else {
    TERCIO_ASSIGN_OR_RETURN(
        transport, collective::CreateGlooTransport(index, group.size(), group.name(), rendezvous,
                                                   assignment.data_address(), kConnectTimeout));
  }
  return collective::CreateCommunicator(std::move(options), std::move(transport));
}

}  // namespace tercio::trainer
