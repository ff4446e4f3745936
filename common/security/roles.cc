#include "common/security/roles.h"

#include <algorithm>

namespace tercio {

Role RoleNamed(std::string_view name) {
  // `none` is no role that a certificate could have.
  for (const Role role : {Role::kViewer, Role::kUser, Role::kAdmin, Role::kAgent}) {
    if (NameOf(role) == name) return role;
  }
  return Role::kNone;
}

std::string_view NameOf(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kUser:
      return "user";
    case Role::kAdmin:
      return "admin";
    case Role::kAgent:
      return "agent";
    case Role::kNone:
      // There is no default, so that a new role has to be named here.
      break;
  }
  return "none";
}

const std::vector<Rule>& Rules() {
  // A call that is not in this table is refused (Gate::Judge).
  static const std::vector<Rule> rules = {
      {"AccessService/Renew", Least::kAnybody, true},
      // Everybody who has a role may know which one it is.
      {"AccessService/WhoAmI", Least::kAnybody},
      {"CheckpointService/ReadTensor", Least::kAgent},
      // The token of the attempt says which job's checkpoint it is.
      {"CheckpointService/Upload", Least::kAgent},
      {"EnrollService/Enroll", Least::kToken, true},
      // Owners change their own jobs; the service checks whose they are.
      {"JobService/Cancel", Least::kUser, true},
      // Nodes belong to the operators, whoever's jobs are on them.
      {"JobService/ChangeNode", Least::kAdmin, true},
      {"JobService/Checkpoints", Least::kViewer},
      {"JobService/Delete", Least::kUser, true},
      // A drill harms the job on purpose.
      {"JobService/Drill", Least::kAdmin, true},
      {"JobService/Events", Least::kViewer},
      {"JobService/Get", Least::kViewer},
      {"JobService/History", Least::kViewer},
      {"JobService/List", Least::kViewer},
      {"JobService/Logs", Least::kViewer},
      {"JobService/Nodes", Least::kViewer},
      {"JobService/PruneCheckpoints", Least::kUser, true},
      // Plans for a node rest on them.
      {"JobService/RecordFigures", Least::kAdmin, true},
      {"JobService/Resume", Least::kUser, true},
      {"JobService/SaveCheckpoint", Least::kUser, true},
      {"JobService/Submit", Least::kUser, true},
      {"JobService/Trace", Least::kViewer},
      {"JobService/VerifyCheckpoint", Least::kViewer},
      {"JobService/Version", Least::kAnybody},
      {"JobService/Watch", Least::kViewer},
      {"NodeService/Attach", Least::kAgent, true},
      {"NodeService/RendezvousGet", Least::kAgent},
      {"NodeService/RendezvousPut", Least::kAgent},
      // Called by agents, for trainers of other nodes.
      {"SnapshotService/Get", Least::kAgent},
      {"SnapshotService/Put", Least::kAgent},
      // Called through agents, on a Unix socket: the token is that of the attempt.
      {"TrainerService/Attach", Least::kToken},
      {"TrainerService/Get", Least::kToken},
      {"TrainerService/Put", Least::kToken},
  };
  return rules;
}

const Rule* RuleOf(std::string_view call) {
  const std::vector<Rule>& rules = Rules();
  const auto found =
      std::find_if(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.call == call; });
  return found == rules.end() ? nullptr : &*found;
}

bool Allows(Least least, Role role) {
  switch (least) {
    case Least::kAnybody:
      // Without a role not even this is allowed.
      return role != Role::kNone;
    case Least::kViewer:
      return role == Role::kViewer || role == Role::kUser || role == Role::kAdmin;
    case Least::kUser:
      return role == Role::kUser || role == Role::kAdmin;
    case Least::kAdmin:
      return role == Role::kAdmin;
    case Least::kAgent:
      // Admins may do what agents do, for repairs.
      return role == Role::kAgent || role == Role::kAdmin;
    case Least::kToken:
      // A token is no role: such calls are judged elsewhere.
      return false;
  }
  return false;
}

std::string_view Needed(Least least) {
  switch (least) {
    case Least::kAnybody:
      return "a role";
    case Least::kViewer:
      return "the role viewer, user or admin";
    case Least::kUser:
      return "the role user or admin";
    case Least::kAdmin:
      return "the role admin";
    case Least::kAgent:
      return "the role agent";
    case Least::kToken:
      return "a token";
  }
  return "";
}

}  // namespace tercio
