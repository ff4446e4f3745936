#include "worker/trainer/host_group.h"

#include <utility>

#include "absl/time/time.h"
#include "common/status_macros.h"
#include "plan/rank_layout.h"
#include "worker/collective/thread_transport.h"

namespace tercio {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const v1::TrainerAssignment& assignment,
                                                            const v1::ProcessGroup& group,
                                                            CommunicatorOptions options,
                                                            RendezvousStore& rendezvous) {
  const int index = plan::IndexInGroup(group, assignment.plan().placement().rank());
  std::unique_ptr<Transport> transport;
  if (group.size() == 1) {
    transport = std::move(CreateThreadTransports(1).front());
  } else {
    TERCIO_ASSIGN_OR_RETURN(transport,
                            CreateGlooTransport(index, group.size(), group.name(), rendezvous,
                                                assignment.data_address(), kConnectTimeout));
  }
  return CreateCommunicator(std::move(options), std::move(transport));
}

}  // namespace tercio
