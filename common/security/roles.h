// The table of roles and calls: which role may make which call of which service.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tercio {

// Each role of a person includes the ones before it; an agent's role is separate, and an admin has
// it too.
enum class Role { kNone, kViewer, kUser, kAdmin, kAgent };

// "admin", "user", "viewer", "agent"; kNone for any other word.
Role RoleNamed(std::string_view name);
std::string_view NameOf(Role role);

enum class Least { kAnybody, kViewer, kUser, kAdmin, kAgent, kToken };

struct Rule {
  std::string_view call;  // "JobService/Submit"
  Least least;            // kAnybody: every certificate; kToken: a token instead of one
  bool changes = false;   // changes state: it is audited and its rate is limited
};

const std::vector<Rule>& Rules();
// Null for a call that is not in the table, which is always refused.
const Rule* RuleOf(std::string_view call);

bool Allows(Least least, Role role);
// For messages: "the role admin", "the role user or admin", ...
std::string_view Needed(Least least);

}  // namespace tercio
