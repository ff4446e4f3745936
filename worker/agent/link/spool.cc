#include "worker/agent/link/spool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tercio::agent {
namespace {

// Overhead of a message besides its text: a row of the database.
constexpr int64_t kRowBytes = 32;

}  // namespace

void Spool::Restore(uint64_t sequence, std::string bytes) {
  v1::AgentMessage message;
  if (!message.ParseFromString(bytes)) return;  // a damaged row has no meaning
  Insert(sequence, std::move(bytes), message);
  next_ = std::max(next_, sequence + 1);
}

void Spool::Insert(uint64_t sequence, std::string bytes, const v1::AgentMessage& message) {
  if (message.has_logs()) logs_.insert(sequence);
  // The kinds that may be dropped are indexed, so that room is found without reading every message.
  if (message.has_trace()) traces_.insert(sequence);
  bytes_ += static_cast<int64_t>(bytes.size()) + kRowBytes;
  entries_.emplace(sequence, std::move(bytes));
}

void Spool::Remove(uint64_t sequence) {
  const auto found = entries_.find(sequence);
  bytes_ -= static_cast<int64_t>(found->second.size()) + kRowBytes;
  entries_.erase(found);
  logs_.erase(sequence);
  traces_.erase(sequence);
}

void Spool::Append(v1::AgentMessage message) {
  message.set_sequence(next_);
  std::string bytes = message.SerializeAsString();
  const int64_t size = static_cast<int64_t>(bytes.size()) + kRowBytes;
  if (!MakeRoom(size, message.has_logs(), message.has_trace())) {
    if (message.has_logs()) CountMissing(message.logs());
    return;
  }
  delta_.added[next_] = bytes;
  Insert(next_++, std::move(bytes), message);
}

// Returns false if the message itself must be dropped.
bool Spool::MakeRoom(int64_t bytes, bool for_logs, bool for_traces) {
  if (bytes_ + bytes <= most_bytes_) return true;
  // Older lines tell how something began, so the newer ones give way.
  if (for_logs) return false;
  while (bytes_ + bytes > most_bytes_) {
    std::set<uint64_t>& giving = logs_.empty() ? traces_ : logs_;
    // One trace does not push out another.
    if (giving.empty() || (logs_.empty() && for_traces)) break;
    const uint64_t newest = *giving.rbegin();
    if (!logs_.empty()) {
      v1::AgentMessage message;
      // Messages are kept as bytes, which is what is stored and counted.
      message.ParseFromString(entries_.at(newest));
      CountMissing(message.logs());
    }
    Remove(newest);
    // What was never stored need not be removed from the disk.
    if (delta_.added.erase(newest) == 0) delta_.removed.insert(newest);
  }
  // All other messages are taken beyond the limit: without them a run's state would be lost.
  return !for_traces || bytes_ + bytes <= most_bytes_;
}

void Spool::CountMissing(const v1::RankLogs& logs) {
  for (const v1::LogLine& line : logs.lines()) {
    Missing& missing = missing_[{logs.run().job_id(), logs.run().attempt(), line.rank()}];
    ++missing.lines;
    missing.last = line;
    missing.last.clear_line();
  }
  delta_.missing_changed = true;
}

bool Spool::Acknowledge(uint64_t sequence) {
  if (entries_.empty() || entries_.begin()->first > sequence) return false;
  while (!entries_.empty() && entries_.begin()->first <= sequence) {
    Remove(entries_.begin()->first);
  }
  delta_.acknowledged = std::max(delta_.acknowledged, sequence);
  // Messages that could not be written until now need not be any more.
  std::erase_if(delta_.added, [&](const auto& entry) { return entry.first <= sequence; });
  std::erase_if(delta_.removed, [&](uint64_t removed) { return removed <= sequence; });
  // Some room is left to spare, so that markers and losses do not alternate.
  if (bytes_ < most_bytes_ / 4 * 3) SayMissing();
  return true;
}

void Spool::SayMissing() {
  if (missing_.empty()) return;
  // Append may have to count these lines as missing again, so the list is taken first.
  for (const auto& [rank, missing] : std::exchange(missing_, {})) {
    v1::AgentMessage message;
    v1::RankLogs* logs = message.mutable_logs();
    logs->mutable_run()->set_job_id(std::get<0>(rank));
    logs->mutable_run()->set_attempt(std::get<1>(rank));
    v1::LogLine* line = logs->add_lines();
    *line = missing.last;
    line->set_line(absl::StrCat("(", missing.lines,
                                " lines are missing before this one: the agent's spool was full; "
                                "its log directory may still have them)"));
    Append(std::move(message));
  }
  delta_.missing_changed = true;
}

std::vector<v1::AgentMessage> Spool::After(uint64_t sequence, int64_t most_bytes) const {
  std::vector<v1::AgentMessage> messages;
  int64_t bytes = 0;
  for (auto entry = entries_.upper_bound(sequence); entry != entries_.end(); ++entry) {
    bytes += static_cast<int64_t>(entry->second.size());
    if (!messages.empty() && bytes > most_bytes) break;
    messages.emplace_back().ParseFromString(entry->second);
  }
  return messages;
}

}  // namespace tercio::agent
