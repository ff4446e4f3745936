#include "worker/engine/replica_check.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/random.h"
#include "plan/rank_layout.h"

namespace tercio::engine {
namespace {

// A sum of doubles carries half a digest exactly.
constexpr uint64_t kHalf = uint64_t{1} << 32;

constexpr auto kWord = static_cast<int64_t>(sizeof(float));

void FlipWord(std::byte* place, device::Stream& stream) {
  uint32_t bits = 0;
  stream.CopyToHost(&bits, place, sizeof(bits));
  stream.Synchronize().IgnoreError();  // reported by the next step
  bits ^= uint32_t{1} << 20;
  stream.CopyFromHost(place, &bits, sizeof(bits));
}

// The digest of the whole words of some values: two values of 16 bits fill one.
kernels::DigestArgs DigestOfWords(const std::byte* begin, int64_t bytes, uint64_t* digest) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto before = static_cast<int64_t>((kWord - address % kWord) % kWord);
  return {.values = reinterpret_cast<const float*>(begin + before),
          .columns = std::max<int64_t>(0, bytes - before) / kWord,
          .digest = digest};
}

// The order of the tensors counts, so two that have changed places do not cancel out.
uint64_t DigestOfAll(absl::Span<const uint64_t> digests) {
  uint64_t all = 0;
  for (const uint64_t digest : digests) all = kernels::SplitMix64(all ^ digest);
  return all;
}

// "rank 3", "one of ranks 1 and 3", "some of ranks 0, 2, 4"
std::string NameSuspects(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  if (ranks.size() == 2) return absl::StrCat("one of ranks ", ranks[0], " and ", ranks[1]);
  return absl::StrCat("some of ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

std::vector<int> OddMembers(absl::Span<const uint64_t> digests) {
  std::map<uint64_t, size_t> holders;
  for (const uint64_t digest : digests) ++holders[digest];
  std::vector<int> odd;
  for (size_t i = 0; i < digests.size(); ++i) {
    // Half of a group is no majority: of two members that differ, both are suspects.
    if (2 * holders[digests[i]] <= digests.size()) odd.push_back(static_cast<int>(i));
  }
  return odd;
}

ReplicaVerdict JudgeReplicas(absl::Span<const int> suspicions, const std::string& tensor) {
  const int most = *std::max_element(suspicions.begin(), suspicions.end());
  // A rank that two groups suspect outweighs the members that only one of them does.
  std::vector<int> suspects;
  for (size_t rank = 0; rank < suspicions.size(); ++rank) {
    if (suspicions[rank] == most) suspects.push_back(static_cast<int>(rank));
  }
  ReplicaVerdict verdict;
  verdict.equal = false;
  if (suspects.size() == 1) verdict.odd_rank = suspects.front();
  verdict.text =
      absl::StrCat("the weights of ", NameSuspects(suspects), " differ from those of its replicas",
                   tensor.empty() ? "" : absl::StrCat(" (", tensor, ")"));
  return verdict;
}

plan::StageTensors ComparedTensors(const plan::RankShards& shards) {
  plan::StageTensors compared = shards.of_model;
  for (const plan::StateUnit& unit : shards.units) {
    if (unit.stage_layer < 0) continue;
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      compared.tensors[i].own_parameter = false;
    }
  }
  return compared;
}

void FlipBit(const plan::StageTensors& tensors, std::byte* weights, int64_t element_bytes,
             device::Stream& stream) {
  const auto largest = std::max_element(tensors.tensors.begin(), tensors.tensors.end(),
                                        [](const auto& a, const auto& b) {
                                          const auto size = [](const plan::StageTensor& entry) {
                                            return entry.own_parameter ? entry.elements : 0;
                                          };
                                          return size(a) < size(b);
                                        });
  const int64_t middle = (largest->parameter_offset + largest->elements / 2) * element_bytes;
  // Two values of 16 bits are one word.
  FlipWord(weights + middle / kWord * kWord, stream);
}

void FlipBitOfShard(const StateStore& store, device::Stream& stream) {
  const auto largest = std::max_element(store.ranges().begin(), store.ranges().end(),
                                        [](const StateRange& a, const StateRange& b) {
                                          return a.part.elements() < b.part.elements();
                                        });
  const int64_t middle = largest->weights.BytesFor(largest->part.elements() / 2);
  FlipWord(largest->weights.data() + middle / kWord * kWord, stream);
}

ReplicaCheck::ReplicaCheck(const v1::RankPlan& plan, const plan::StageTensors& tensors,
                           double* exchange, const Communicators& communicators)
    : plan_(plan), tensors_(tensors), exchange_(exchange), world_(communicators.world()) {
  groups_.push_back({v1::GROUP_KIND_DATA, &communicators.data()});
  // Tensor ranks have copies of tensors that are not cut. This second group can tell which of two
  // data replicas is the faulty one.
  if (communicators.tensor().size() > 1) {
    groups_.push_back({v1::GROUP_KIND_TENSOR, &communicators.tensor()});
  }
  if (communicators.replicas() != nullptr) {
    groups_.push_back({v1::GROUP_KIND_REPLICA, communicators.replicas()});
  }
}

bool ReplicaCheck::HasReplicas() const { return plan_.layout().data() > 1; }

// The rounded copy that the model reads follows from the weights at every step, and gradients are
// the same on all replicas once they are added: neither is compared.
absl::StatusOr<std::vector<uint64_t>> ReplicaCheck::DigestsOf(kernels::ConstValues weights,
                                                              uint64_t* parts,
                                                              device::Stream& stream) const {
  stream.SetZero(parts, static_cast<int64_t>(tensors_.tensors.size() * sizeof(Parts)));
  for (size_t i = 0; i < tensors_.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors_.tensors[i];
    // The uses of a tied tensor on a stage are one parameter.
    if (!entry.own_parameter) continue;
    stream.ops().Digest(DigestOfWords((weights + entry.parameter_offset).data(),
                                      weights.BytesFor(entry.elements), parts + i * kMostParts));
  }
  return Joined(parts, stream);
}

absl::StatusOr<std::vector<uint64_t>> ReplicaCheck::DigestsOf(const StateStore& store,
                                                              uint64_t* parts,
                                                              device::Stream& stream) const {
  stream.SetZero(parts, static_cast<int64_t>(tensors_.tensors.size() * sizeof(Parts)));
  for (const StateRange& range : store.ranges()) {
    uint64_t* part = parts + range.tensor * kMostParts;
    const int64_t elements = range.part.elements();
    stream.ops().Digest(
        DigestOfWords(range.weights.data(), range.weights.BytesFor(elements), part++));
    if (range.frozen) continue;
    for (const float* values : {range.first_moment, range.second_moment}) {
      stream.ops().Digest({.values = values, .columns = elements, .digest = part++});
    }
  }
  return Joined(parts, stream);
}

absl::StatusOr<std::vector<uint64_t>> ReplicaCheck::Joined(uint64_t* parts,
                                                           device::Stream& stream) const {
  std::vector<Parts> known(tensors_.tensors.size());
  stream.CopyToHost(known.data(), parts, static_cast<int64_t>(known.size() * sizeof(Parts)));
  TERCIO_RETURN_IF_ERROR(stream.Synchronize());
  // Replicas differ or not as a whole, so the parts of a tensor's state become one number.
  std::vector<uint64_t> digests(known.size());
  for (size_t i = 0; i < known.size(); ++i) {
    for (const uint64_t part : known[i]) digests[i] = kernels::SplitMix64(digests[i] ^ part);
  }
  return digests;
}

int ReplicaCheck::RankOf(v1::GroupKind kind, int member) const {
  const v1::RankPlacement& at = plan_.placement();
  if (kind == v1::GROUP_KIND_REPLICA) {
    const int shards = plan::ShardRanks(plan_.layout());
    member = member * shards + at.data_index() % shards;
  }
  if (kind != v1::GROUP_KIND_TENSOR) {
    return plan::RankOfCoordinates(plan_.layout(),
                                   {at.tensor_index(), member, at.pipeline_index()});
  }
  return plan::RankOfCoordinates(plan_.layout(), {member, at.data_index(), at.pipeline_index()});
}

absl::Status ReplicaCheck::Sum(collective::Communicator& group, device::Stream& stream,
                               absl::Span<double> numbers) const {
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(double));
  stream.CopyFromHost(exchange_, numbers.data(), bytes);
  group.AllReduceSum(stream, exchange_, static_cast<int64_t>(numbers.size()));
  stream.CopyToHost(numbers.data(), exchange_, bytes);
  return stream.Synchronize();
}

absl::StatusOr<ReplicaCheck::Rows> ReplicaCheck::Exchange(collective::Communicator& group,
                                                          device::Stream& stream,
                                                          absl::Span<const uint64_t> mine) const {
  const size_t width = 2 * mine.size();
  std::vector<double> halves(width * static_cast<size_t>(group.size()));
  // Each rank leaves the other rows zero, so every number has one contributor and its sum is exact.
  double* own = halves.data() + width * static_cast<size_t>(group.rank());
  for (const uint64_t digest : mine) {
    // A digest has 64 bits, of which a double holds 53.
    const uint64_t high = digest / kHalf;
    *own++ = static_cast<double>(high);
    *own++ = static_cast<double>(digest % kHalf);
  }
  TERCIO_RETURN_IF_ERROR(Sum(group, stream, absl::MakeSpan(halves)));
  Rows rows(static_cast<size_t>(group.size()));
  for (size_t i = 0; i < halves.size(); i += 2) {
    rows[i / width].push_back(static_cast<uint64_t>(halves[i]) * kHalf +
                              static_cast<uint64_t>(halves[i + 1]));
  }
  return rows;
}

absl::StatusOr<std::vector<int>> ReplicaCheck::CompareGroup(
    collective::Communicator& group, device::Stream& stream,
    absl::Span<const uint64_t> digests) const {
  const uint64_t mine = DigestOfAll(digests);
  TERCIO_ASSIGN_OR_RETURN(const Rows rows, Exchange(group, stream, {&mine, 1}));
  std::vector<uint64_t> all;
  for (const std::vector<uint64_t>& row : rows) all.push_back(row.front());
  return OddMembers(all);
}

absl::StatusOr<ReplicaVerdict> ReplicaCheck::Compare(device::Stream& stream,
                                                     absl::Span<const uint64_t> digests,
                                                     absl::Span<const uint64_t> of_shard) {
  std::vector<uint64_t> whole;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (tensors_.tensors[i].tensor.shard == plan::Shard::kWhole) whole.push_back(digests[i]);
  }
  double differing = 0;
  for (Group& group : groups_) {
    const absl::Span<const uint64_t> compared = group.kind == v1::GROUP_KIND_TENSOR    ? whole
                                                : group.kind == v1::GROUP_KIND_REPLICA ? of_shard
                                                                                       : digests;
    TERCIO_ASSIGN_OR_RETURN(group.odd, CompareGroup(*group.ranks, stream, compared));
    differing += group.odd.empty() ? 0 : 1;
  }
  // Locate is collective, so ranks whose own groups agree must learn that others do not.
  TERCIO_RETURN_IF_ERROR(Sum(world_, stream, {&differing, 1}));
  if (differing == 0) return ReplicaVerdict{};
  return Locate(stream, digests, of_shard);
}

std::vector<size_t> ReplicaCheck::ComparedBy(const Group& group) const {
  std::vector<size_t> compared;
  for (size_t i = 0; i < tensors_.tensors.size(); ++i) {
    // A rank has its shard only of a layer that is gathered and forgotten.
    const bool has = tensors_.tensors[i].own_parameter || group.kind == v1::GROUP_KIND_REPLICA;
    if (has) compared.push_back(i);
  }
  return compared;
}

absl::StatusOr<int> ReplicaCheck::FirstDifference(const Group& group, device::Stream& stream,
                                                  absl::Span<const uint64_t> digests) const {
  const std::vector<size_t> compared = ComparedBy(group);
  std::vector<uint64_t> mine;
  for (const size_t tensor : compared) mine.push_back(digests[tensor]);
  TERCIO_ASSIGN_OR_RETURN(const Rows rows, Exchange(*group.ranks, stream, mine));
  for (size_t i = 0; i < compared.size(); ++i) {
    const bool same = std::all_of(rows.begin(), rows.end(),
                                  [&](const auto& row) { return row[i] == rows.front()[i]; });
    if (!same) return tensors_.tensors[compared[i]].tensor.index;
  }
  return -1;
}

// One vote of each differing group for each rank that it suspects, and the tensor where it differs:
// both come from the group's first member.
absl::StatusOr<ReplicaVerdict> ReplicaCheck::Locate(device::Stream& stream,
                                                    absl::Span<const uint64_t> digests,
                                                    absl::Span<const uint64_t> of_shard) {
  const auto world = static_cast<size_t>(world_.size());
  std::vector<double> votes(world + 2);
  double& groups = votes[world];
  double& tensor = votes[world + 1];
  for (const Group& group : groups_) {
    // All members of a group have seen the same digests, so all of them enter this, or none.
    if (group.odd.empty()) continue;
    if (group.kind != v1::GROUP_KIND_TENSOR) {
      TERCIO_ASSIGN_OR_RETURN(
          const int first,
          FirstDifference(group, stream,
                          group.kind == v1::GROUP_KIND_REPLICA ? of_shard : digests));
      if (group.ranks->rank() == 0 && first >= 0) {
        groups += 1;
        tensor = first;
      }
    }
    if (group.ranks->rank() != 0) continue;
    for (const int member : group.odd) votes[static_cast<size_t>(RankOf(group.kind, member))] += 1;
  }
  TERCIO_RETURN_IF_ERROR(Sum(world_, stream, absl::MakeSpan(votes)));
  const std::vector<int> suspicions(votes.begin(), votes.begin() + world_.size());
  // With several differing groups the sum mixes the indices of their tensors, so none is named.
  const std::string name =
      groups == 1 ? plan::ModelTensors(plan_.model())[static_cast<size_t>(tensor)].name : "";
  return JudgeReplicas(suspicions, name);
}

}  // namespace tercio::engine
