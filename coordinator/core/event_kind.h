// The kinds of events that people see; docs/operations.md says what each means. A kind is given as
// a literal that the compiler looks up here, so that counters of events know every kind.
//
// Pure.
#pragma once

#include <string_view>

namespace tercio::coordinator {

inline constexpr std::string_view kEventKinds[] = {
    "attempt_broken",
    "attempt_started",
    "best_checkpoint",
    "best_lost",
    "cancel_requested",
    "cancelled",
    "checkpoint_committed",
    "checkpoint_damaged",
    "checkpoint_failed",
    "checkpoint_unreadable",
    "data_refused",
    "device_faulty",
    "device_recovered",
    "drill",
    "drill_done",
    "drill_failed",
    "failed",
    "grown",
    "hang",
    "internal_error",
    "log_lines_lost",
    "moving",
    "no_progress",
    "node_drained",
    "node_leaves",
    "node_lost",
    "node_measured",
    "node_quarantined",
    "node_released",
    "node_undrained",
    "numerics_changed",
    "progress",
    "rank_exited",
    "replicas_differ",
    "restarting",
    "resumed",
    "resumed_from_memory",
    "rolled_back",
    "running",
    "shrunk",
    "spike",
    "step_skipped",
    "straggler",
    "straggler_kept",
    "straggler_recovered",
    "submitted",
    "succeeded",
    "test_evaluated",
};

class EventKind {
 public:
  // Does not compile for a kind that is not in the list.
  consteval EventKind(const char* name) : name_(Find(name)) {}  // NOLINT: meant to convert
  std::string_view name() const { return name_; }

 private:
  static consteval std::string_view Find(std::string_view name) {
    for (const std::string_view kind : kEventKinds) {
      if (kind == name) return kind;
    }
    throw "this kind of event is not in the list";
  }

  std::string_view name_;
};

}  // namespace tercio::coordinator
