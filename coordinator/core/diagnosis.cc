#include "coordinator/core/diagnosis.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

constexpr size_t kMostPlaces = 4;  // in a text

enum class Condition { kWaiting, kBusy, kSilent, kGone, kStopped };

class Inspector {
 public:
  Inspector(const v1::Plan& plan, const std::map<int, v1::RankPosition>& positions)
      : positions_(positions) {
    for (const v1::RankPlacement& placement : plan.ranks())
      nodes_[placement.rank()] = placement.node();
    for (const v1::ProcessGroup& group : plan.groups()) groups_[group.name()] = &group;
  }

  Diagnosis Run() {
    // Mismatched calls explain every wait that follows from them, so they are looked for first.
    if (auto pair = FindMismatch(); pair.has_value()) {
      return Make(
          HangKind::kMismatch, {pair->first, pair->second},
          absl::StrCat(NameRanks(Sorted({pair->first, pair->second})),
                       " are at mismatched calls: rank ", pair->first, " at ", Exactly(pair->first),
                       ", rank ", pair->second, " at ", Exactly(pair->second)));
    }
    const std::set<int> roots = Roots();
    // A process that is stopped or gone is a proven cause; silence and work may be consequences.
    for (const auto& [condition, kind] : {std::pair{Condition::kStopped, HangKind::kStopped},
                                          {Condition::kGone, HangKind::kGone},
                                          {Condition::kSilent, HangKind::kNoAnswer},
                                          {Condition::kBusy, HangKind::kStuck}}) {
      std::vector<int> culprits;
      for (const int rank : roots) {
        if (ConditionOf(rank) == condition) culprits.push_back(rank);
      }
      if (!culprits.empty()) return Blame(kind, culprits);
    }
    return ExplainCircle();
  }

 private:
  static std::vector<int> Sorted(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  const v1::RankPosition* Position(int rank) const {
    const auto found = positions_.find(rank);
    return found == positions_.end() ? nullptr : &found->second;
  }

  Condition ConditionOf(int rank) const {
    const v1::RankPosition* position = Position(rank);
    if (position == nullptr) return Condition::kSilent;
    const std::string& state = position->process_state();
    // Z and X are a zombie and a dead process as /proc names them; no
    // state at all means that the agent found no process.
    if (state.empty() || state == "Z" || state == "X") return Condition::kGone;
    if (state == "T" || state == "t") return Condition::kStopped;
    // Ranks sleep (S) while they wait for others; this one waits for a disk or a device.
    if (state == "D") return Condition::kBusy;
    return position->waiting().operation().empty() ? Condition::kBusy : Condition::kWaiting;
  }

  bool Waits(int rank) const { return ConditionOf(rank) == Condition::kWaiting; }
  const v1::CollectiveIdentity& WaitOf(int rank) const { return Position(rank)->waiting(); }

  static bool IsMessage(const v1::CollectiveIdentity& wait) {
    // Messages between stages are matched by peer and sequence, not by the group as a whole.
    return wait.operation().starts_with("pipeline");
  }

  // The ranks without which this one cannot continue.
  std::vector<int> WaitsFor(int rank) const {
    // A message has one sender; a collective waits for every member that is not at the same call.
    const v1::CollectiveIdentity& wait = WaitOf(rank);
    if (nodes_.contains(wait.peer())) return {wait.peer()};
    std::vector<int> missing;
    const auto group = groups_.find(wait.group());
    if (group == groups_.end()) return missing;
    for (const int other : plan::RanksOf(*group->second)) {
      const bool here = Waits(other) && WaitOf(other).group() == wait.group() &&
                        // The sequence is compared as well: a rank at an
                        // earlier call of the group is not there yet.
                        WaitOf(other).sequence() == wait.sequence();
      if (other != rank && !here) missing.push_back(other);
    }
    return missing;
  }

  // The ranks that do not wait and that others wait for, directly or not; all that do not wait when
  // none of them is waited for.
  std::set<int> Roots() const {
    std::set<int> wanted;
    std::set<int> idle;
    // The ranks of a group that are at the same call wait for the same others.
    std::set<std::pair<std::string, int64_t>> asked;
    for (const auto& [rank, node] : nodes_) {
      if (!Waits(rank)) {
        idle.insert(rank);
        continue;
      }
      const v1::CollectiveIdentity& wait = WaitOf(rank);
      if (!nodes_.contains(wait.peer()) && !asked.emplace(wait.group(), wait.sequence()).second) {
        continue;
      }
      for (const int other : WaitsFor(rank)) {
        if (!Waits(other)) wanted.insert(other);
      }
    }
    // Where no wait leads to a rank that does not wait, all of those are suspects.
    return wanted.empty() ? idle : wanted;
  }

  // Two ranks of a group that are at calls of the same number but of another kind.
  std::optional<std::pair<int, int>> FindMismatch() const {
    std::map<std::pair<std::string, int64_t>, int> first;
    for (const auto& [rank, node] : nodes_) {
      // The two ends of a message have different operations by nature: send and receive.
      if (!Waits(rank) || IsMessage(WaitOf(rank))) continue;
      const v1::CollectiveIdentity& wait = WaitOf(rank);
      const auto [entry, inserted] = first.emplace(std::pair{wait.group(), wait.sequence()}, rank);
      if (inserted) continue;
      const v1::CollectiveIdentity& other = WaitOf(entry->second);
      if (wait.operation() != other.operation() || wait.dtype() != other.dtype() ||
          wait.count() != other.count()) {
        return std::pair{entry->second, rank};
      }
    }
    return std::nullopt;
  }

  // All wait. Follows the first rank's wait until the cycle is closed.
  Diagnosis ExplainCircle() const {
    std::vector<int> path = {nodes_.begin()->first};
    while (true) {
      // One missing rank is enough to follow: every rank waits, so each path ends in a cycle.
      const std::vector<int> next = WaitsFor(path.back());
      if (next.empty()) break;
      const auto seen = std::find(path.begin(), path.end(), next.front());
      if (seen != path.end()) {
        // Ranks that lead to the cycle are not part of it.
        path.erase(path.begin(), seen);
        break;
      }
      path.push_back(next.front());
    }
    for (size_t i = 0; i < path.size(); ++i) {
      const int rank = path[i];
      const int other = path[(i + 1) % path.size()];
      if (rank != other && LostBetween(rank, other)) return SlowLink(rank, other);
    }
    return Make(HangKind::kDeadlock, Sorted(path),
                absl::StrCat("all ranks wait, ", NameRanks(Sorted(path)), " in a cycle"));
  }

  // Whether `rank` waits for something that `other` is sending or has sent.
  bool LostBetween(int rank, int other) const {
    const v1::CollectiveIdentity& mine = WaitOf(rank);
    const v1::CollectiveIdentity& theirs = WaitOf(other);
    // A rank that is a step ahead has sent everything that this one could wait for.
    if (Position(other)->step() > Position(rank)->step()) return true;
    if (mine.group() != theirs.group() || IsMessage(mine) != IsMessage(theirs)) return false;
    if (!IsMessage(mine)) return theirs.sequence() >= mine.sequence();
    // Both ends are at the same message, one sending and one receiving: only the link is left.
    return theirs.peer() == rank && theirs.sequence() == mine.sequence() &&
           theirs.operation() != mine.operation();
  }

  Diagnosis SlowLink(int rank, int other) const {
    return Make(HangKind::kSlowLink, Sorted({rank, other}),
                absl::StrCat("rank ", rank, " (node ", nodes_.at(rank), ") waits in ", Place(rank),
                             " for data that rank ", other, " (node ", nodes_.at(other),
                             ") has sent or is sending: nothing arrives on the link between them"));
  }

  Diagnosis Blame(HangKind kind, const std::vector<int>& culprits) const {
    const std::string who = NameRanks(culprits);
    std::string ending;
    switch (kind) {
      case HangKind::kStopped:
        ending = absl::StrCat("the trainer of ", who, " is stopped (state ",
                              Position(culprits.front())->process_state(), ")");
        break;
      case HangKind::kGone:
        ending = absl::StrCat("the trainer of ", who, " has ended");
        break;
      case HangKind::kNoAnswer:
        ending = absl::StrCat("nothing is known about ", who, ": no answer from ", Nodes(culprits));
        break;
      case HangKind::kStuck:
      case HangKind::kMismatch:
      case HangKind::kSlowLink:
      case HangKind::kDeadlock: {
        // Only kStuck gets here: its ranks have answered, so that the position is known.
        const v1::RankPosition& position = *Position(culprits.front());
        ending = absl::StrCat(who, culprits.size() == 1 ? " waits" : " wait",
                              " for no other rank and has made no progress for ",
                              static_cast<int64_t>(position.seconds()), " s (state ",
                              position.process_state(), ")");
      }
    }
    std::string text;
    if (const v1::RankPosition* first = Position(culprits.front()); first != nullptr) {
      text = absl::StrCat("rank ", culprits.front(), " (node ", nodes_.at(culprits.front()),
                          ") is at ", Place(culprits.front()), "; ");
    }
    return Make(kind, culprits, text, ending);
  }

  Diagnosis Make(HangKind kind, std::vector<int> culprits, std::string begin,
                 const std::string& ending) const {
    const std::string others = Others(culprits);
    return {kind, std::move(culprits),
            absl::StrCat(begin, others, others.empty() ? "" : "; ", ending)};
  }
  Diagnosis Make(HangKind kind, std::vector<int> culprits, const std::string& begin) const {
    const std::string others = Others(culprits);
    return {kind, Sorted(std::move(culprits)),
            absl::StrCat(begin, others.empty() ? "" : "; ", others)};
  }

  std::string Nodes(const std::vector<int>& ranks) const {
    std::set<std::string> names;
    for (const int rank : ranks) names.insert(nodes_.at(rank));
    return absl::StrCat(names.size() == 1 ? "node " : "nodes ", absl::StrJoin(names, ", "));
  }

  // "pipeline receive #812 of step 97"; "forward 3 of step 97".
  std::string Place(int rank) const {
    const v1::RankPosition& position = *Position(rank);
    const v1::CollectiveIdentity& wait = position.waiting();
    std::string place = position.action();
    if (!wait.operation().empty()) {
      place = absl::StrCat(wait.operation(), " #", wait.sequence());
    } else if (place.empty()) {
      place = PhaseName(position.phase());
    }
    return position.step() > 0 ? absl::StrCat(place, " of step ", position.step()) : place;
  }

  static std::string PhaseName(v1::TrainerPhase phase) {
    switch (phase) {
      case v1::TRAINER_PHASE_CONNECTING:
        return "connecting to the other ranks";
      case v1::TRAINER_PHASE_LOADING:
        return "loading";
      case v1::TRAINER_PHASE_RUNNING:
        return "training";
      case v1::TRAINER_PHASE_FINISHED:
        return "shutdown";
      default:
        return "startup";
    }
  }

  // The call with every property that must agree.
  std::string Exactly(int rank) const {
    const v1::CollectiveIdentity& wait = WaitOf(rank);
    return absl::StrCat(wait.operation(), " #", wait.sequence(), " of ", wait.dtype(), " x ",
                        wait.count(), " in group ", wait.group());
  }

  // "ranks 0-4, 6, 7 wait in all-reduce #4410 of world".
  std::string Others(const std::vector<int>& culprits) const {
    const std::set<int> excluded(culprits.begin(), culprits.end());
    std::map<std::string, std::vector<int>> places;
    for (const auto& [rank, node] : nodes_) {
      if (excluded.contains(rank)) continue;
      if (!Waits(rank)) continue;
      const v1::CollectiveIdentity& wait = WaitOf(rank);
      // The text is the key, so that ranks at the same place become one phrase.
      places[absl::StrCat(wait.operation(), " #", wait.sequence(), " of ", wait.group())].push_back(
          rank);
    }
    std::vector<std::pair<std::string, std::vector<int>>> sorted(places.begin(), places.end());
    // Most ranks wait in one place, the consequence; it says most and comes first. The sort is
    // stable, so that equal groups keep an order that does not change between reports.
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    std::vector<std::string> texts;
    size_t rest = 0;
    for (const auto& [place, ranks] : sorted) {
      if (texts.size() == kMostPlaces) {
        rest += ranks.size();
        continue;
      }
      texts.push_back(
          absl::StrCat(NameRanks(ranks), ranks.size() == 1 ? " waits" : " wait", " in ", place));
    }
    if (rest > 0) texts.push_back(absl::StrCat(rest, " more wait elsewhere"));
    return absl::StrJoin(texts, ", ");
  }

  const std::map<int, v1::RankPosition>& positions_;
  std::map<int, std::string> nodes_;  // node of every rank
  std::map<std::string, const v1::ProcessGroup*> groups_;
};

}  // namespace

std::string NameRanks(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    // Two in a row are not shown as a range.
    if (end - begin < 3) end = begin + 1;
    runs.push_back(end - begin == 1 ? absl::StrCat(ranks[begin])
                                    : absl::StrCat(ranks[begin], "-", ranks[end - 1]));
    begin = end;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

Diagnosis Diagnose(const v1::Plan& plan, const std::map<int, v1::RankPosition>& positions) {
  return Inspector(plan, positions).Run();
}

}  // namespace tercio::coordinator
