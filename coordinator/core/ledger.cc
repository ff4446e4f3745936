#include "coordinator/core/ledger.h"

#include <algorithm>
#include <cmath>

namespace tercio::coordinator {
namespace {

// Whole microseconds add up exactly, while the parts of a sum of doubles need not.
int64_t Micros(double seconds) { return std::llround(seconds * 1e6); }

void Add(v1::TimeLedger& ledger, v1::TimeKind kind, int64_t micros) {
  // The list grows on demand, since records of older versions know fewer kinds.
  while (ledger.micros_size() < v1::TimeKind_ARRAYSIZE) ledger.add_micros(0);
  ledger.set_micros(kind, ledger.micros(kind) + micros);
  if (kind == v1::TIME_KIND_PRODUCTIVE) {
    ledger.set_uncommitted_productive(ledger.uncommitted_productive() + micros);
  } else if (kind == v1::TIME_KIND_DEGRADED) {
    ledger.set_uncommitted_degraded(ledger.uncommitted_degraded() + micros);
  }
}

}  // namespace

void OpenLedger(v1::TimeLedger& ledger, v1::TimeKind kind, double now) {
  ledger.Clear();
  Add(ledger, kind, 0);
  ledger.set_present(kind);
  ledger.set_since_micros(Micros(now));
}

void CloseLedger(v1::TimeLedger& ledger, double now) {
  // A clock that was set back must not make time negative: the parts sum to the whole.
  const int64_t end = std::max(ledger.since_micros(), Micros(now));
  Add(ledger, ledger.present(), end - ledger.since_micros());
  ledger.set_since_micros(end);
}

void SwitchLedger(v1::TimeLedger& ledger, v1::TimeKind kind, double now) {
  CloseLedger(ledger, now);
  ledger.set_present(kind);
}

void ChargeStall(v1::TimeLedger& ledger, double seconds) {
  const bool degraded = ledger.present() == v1::TIME_KIND_DEGRADED;
  // A stall cannot be longer than the work it is taken from, whatever the
  // trainer has measured: that work may already be committed or lost.
  const int64_t there = degraded ? ledger.uncommitted_degraded() : ledger.uncommitted_productive();
  const int64_t stall = std::clamp<int64_t>(Micros(seconds), 0, there);
  Add(ledger, degraded ? v1::TIME_KIND_DEGRADED : v1::TIME_KIND_PRODUCTIVE, -stall);
  Add(ledger, v1::TIME_KIND_CHECKPOINT_STALL, stall);
}

void CommitWork(v1::TimeLedger& ledger, double share) {
  // What is committed leaves these counters only; its time stays in the kind where it was spent.
  const double left = 1 - std::clamp(share, 0.0, 1.0);
  const auto keep = [left](int64_t micros) {
    return static_cast<int64_t>(static_cast<double>(micros) * left);
  };
  ledger.set_uncommitted_productive(keep(ledger.uncommitted_productive()));
  ledger.set_uncommitted_degraded(keep(ledger.uncommitted_degraded()));
}

void LoseWork(v1::TimeLedger& ledger) {
  const int64_t productive = ledger.uncommitted_productive();
  const int64_t degraded = ledger.uncommitted_degraded();
  // Add lowers the uncommitted time by the same amount, so that nothing is lost twice.
  Add(ledger, v1::TIME_KIND_PRODUCTIVE, -productive);
  Add(ledger, v1::TIME_KIND_DEGRADED, -degraded);
  Add(ledger, v1::TIME_KIND_LOST_WORK, productive + degraded);
}

std::array<int64_t, v1::TimeKind_ARRAYSIZE> LedgerTotals(const v1::TimeLedger& ledger, double now) {
  // A query must not change the record, so the present span is closed in a copy.
  v1::TimeLedger closed = ledger;
  CloseLedger(closed, now);
  std::array<int64_t, v1::TimeKind_ARRAYSIZE> totals = {};
  std::copy(closed.micros().begin(), closed.micros().end(), totals.begin());
  return totals;
}

}  // namespace tercio::coordinator
