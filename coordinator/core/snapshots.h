// Which copies of snapshots the nodes hold in memory, and from which an attempt can start. Pure.
//
// A snapshot is what all ranks of an attempt were after one step; it is of use only as a whole. The
// nodes report what they hold; it is volatile here, as it is there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tercio::coordinator {

struct SnapshotId {
  int attempt = 0;  // that has taken it
  int64_t step = 0;
  auto operator<=>(const SnapshotId&) const = default;
};

// Snapshots that one node holds in memory.
class HeldSnapshots {
 public:
  // Keeps the two newest of a rank, as nodes do.
  void Add(const std::string& job, int rank, SnapshotId id);
  void Forget(const std::string& job) { jobs_.erase(job); }
  void Clear() { jobs_.clear(); }
  bool HasAny(const std::string& job) const { return jobs_.contains(job); }

  // Snapshots of each rank of the job.
  using Ranks = std::map<int, std::set<SnapshotId>>;
  const Ranks& Of(const std::string& job) const;

 private:
  std::map<std::string, Ranks> jobs_;
};

struct SnapshotChoice {
  SnapshotId id;
  std::vector<std::string> sources;  // for each rank, the node that has its copy
};

// The one of the latest step of which every rank has a copy on one of the nodes; the node that the
// rank is placed on goes before others. `placed`: the node of each rank. `counts`: whether a
// snapshot may be used at all.
std::optional<SnapshotChoice> NewestComplete(
    const std::string& job, const std::vector<std::string>& placed,
    const std::map<std::string, const HeldSnapshots*>& nodes,
    const std::function<bool(const SnapshotId&)>& counts);

}  // namespace tercio::coordinator
