// Explains why a run makes no progress: follows which rank waits for which, to the one whose wait
// no other rank explains. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::coordinator {

enum class HangKind {
  kStopped,   // a trainer is frozen (SIGSTOP, a debugger)
  kGone,      // a trainer has ended, and the others wait for it
  kNoAnswer,  // a node did not say where its ranks are
  kStuck,     // a rank computes, or hangs outside a collective
  kMismatch,  // ranks of a group are at mismatched calls
  kSlowLink,  // two ranks are at the same call, and nothing arrives between them
  kDeadlock,  // all wait, in a cycle
};

struct Diagnosis {
  HangKind kind = HangKind::kDeadlock;
  std::vector<int> culprits;  // ascending
  // "rank 5 (node b) is at pipeline receive #812 of step 97; ranks 0-4, 6, 7 wait in all-reduce
  // #4410 of world; the trainer of rank 5 is stopped (state T)"
  std::string text;
};

// `positions` holds the ranks of the nodes that have answered. REQUIRES: plan.ranks() is not empty.
Diagnosis Diagnose(const v1::Plan& plan, const std::map<int, v1::RankPosition>& positions);

// "rank 5", "ranks 0-4, 6, 7"; ascending ranks.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace tercio::coordinator
