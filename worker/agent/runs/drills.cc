#include "worker/agent/runs/drills.h"

#include <csignal>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tercio::agent {

absl::Status Drills::Inject(const v1::InjectFault& fault, const Target& target, double now) {
  if (!target.signal) {
    return absl::NotFoundError(absl::StrCat("rank ", fault.rank(), " is not running on this node"));
  }
  if (fault.fault() == "kill-trainer") {
    target.signal(SIGKILL);
  } else if (fault.fault() == "freeze-trainer") {
    target.signal(SIGSTOP);
  } else if (fault.fault() == "flip-bit") {
    if (!target.write) {
      return absl::UnavailableError(
          absl::StrCat("rank ", fault.rank(), " is not connected to its agent"));
    }
    v1::TrainerCommand command;
    command.mutable_flip_bit();
    target.write(command);
  } else if (fault.fault() == "slow-rank") {
    slow_.push_back({ToRunKey(fault.run()), fault.rank(), now + fault.seconds(), false});
  } else {
    return absl::UnimplementedError(
        absl::StrCat("this agent does not support the fault ", fault.fault()));
  }
  return absl::OkStatus();
}

std::vector<Drills::Pulse> Drills::Pulses(double now) {
  std::vector<Pulse> pulses;
  for (auto slow = slow_.begin(); slow != slow_.end();) {
    const bool over = now >= slow->until;
    slow->stopped = !over && !slow->stopped;
    pulses.push_back({slow->run, slow->rank, slow->stopped ? SIGSTOP : SIGCONT});
    slow = over ? slow_.erase(slow) : std::next(slow);
  }
  return pulses;
}

}  // namespace tercio::agent
