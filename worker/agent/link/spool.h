// Messages that the coordinator must receive and has not acknowledged, in order and bounded.
//
// At the limit, log lines are dropped, the newest first, then traces; everything else is always
// accepted. Missing lines are counted by rank, and a line reports how many, once there is room
// again. Not thread-safe; knows no disk: changes are collected for the owner, which stores them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/tercio/v1/node_service.pb.h"

namespace tercio::agent {

class Spool {
 public:
  using RankKey = std::tuple<std::string, int, int>;  // job, attempt, rank

  struct Missing {
    int64_t lines = 0;
    v1::LogLine last;  // the last of them, without its text
  };

  // The changes that make a copy equal again: remove up to `acknowledged`, add, remove.
  struct Delta {
    uint64_t acknowledged = 0;
    std::map<uint64_t, std::string> added;
    std::set<uint64_t> removed;
    bool missing_changed = false;
    bool empty() const {
      return acknowledged == 0 && added.empty() && removed.empty() && !missing_changed;
    }
  };

  explicit Spool(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Restores messages of the copy, in any order, before anything else.
  void Restore(uint64_t sequence, std::string bytes);
  void RestoreMissing(const RankKey& rank, Missing missing) { missing_[rank] = std::move(missing); }

  // Sequence numbers start at `first` or higher.
  void StartAt(uint64_t first) { next_ = std::max(next_, first); }

  void Append(v1::AgentMessage message);
  // Treats all messages up to `sequence` as delivered. Returns whether any of them was not yet.
  bool Acknowledge(uint64_t sequence);

  // The oldest messages after `sequence`, ascending: at least one if there is any, then as many as
  // fit into `most_bytes`.
  std::vector<v1::AgentMessage> After(uint64_t sequence, int64_t most_bytes) const;

  uint64_t next() const { return next_; }
  uint64_t newest() const { return entries_.empty() ? 0 : entries_.rbegin()->first; }
  int64_t bytes() const { return bytes_; }
  bool empty() const { return entries_.empty(); }
  const std::map<RankKey, Missing>& missing() const { return missing_; }

  const Delta& delta() const { return delta_; }
  void ForgetDelta() { delta_ = {}; }

 private:
  void Insert(uint64_t sequence, std::string bytes, const v1::AgentMessage& message);
  void Remove(uint64_t sequence);
  bool MakeRoom(int64_t bytes, bool for_logs, bool for_traces);
  void CountMissing(const v1::RankLogs& logs);
  void SayMissing();

  const int64_t most_bytes_;
  uint64_t next_ = 1;
  int64_t bytes_ = 0;
  std::map<uint64_t, std::string> entries_;  // serialized
  std::set<uint64_t> logs_;
  std::set<uint64_t> traces_;
  std::map<RankKey, Missing> missing_;
  Delta delta_;
};

}  // namespace tercio::agent
