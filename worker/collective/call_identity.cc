#include "worker/collective/call_identity.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tercio::collective {
namespace {

// Rank, step and action say where the caller is; they may differ.
bool Same(const CallIdentity& a, const CallIdentity& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.detail == b.detail &&
         a.sequence == b.sequence && a.count == b.count;
}

}  // namespace

const char* NameOf(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all-reduce";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kMessage:
      return "message";
    case Operation::kAllToAll:
      return "all-to-all";
  }
  // Another process sent the number, so it may be any.
  return "unknown call";
}

const char* NameOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "f32";
    case DataType::kFloat64:
      return "f64";
    case DataType::kBytes:
      return "bytes";
  }
  return "unknown type";
}

std::string Describe(const CallIdentity& call, const std::string& group) {
  std::string text(NameOf(call.operation));
  if (call.operation == Operation::kBroadcast) absl::StrAppend(&text, " from ", call.detail);
  if (call.operation == Operation::kMessage) absl::StrAppend(&text, " of tag ", call.detail);
  absl::StrAppend(&text, " #", call.sequence, " of ", NameOf(call.dtype), " x ", call.count,
                  " in group ", group);
  // Calls that set the run up belong to no step.
  if (call.step > 0) absl::StrAppend(&text, " at step ", call.step);
  // A text that fills the field has no final zero.
  const std::string action(call.action, strnlen(call.action, sizeof(call.action)));
  if (!action.empty()) absl::StrAppend(&text, ", ", action);
  return text;
}

absl::Status CheckSame(const CallIdentity& mine, const CallIdentity& theirs,
                       const std::string& group) {
  if (Same(mine, theirs)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "ranks ", mine.rank, " and ", theirs.rank, " are not at the same call: rank ", mine.rank,
      ": ", Describe(mine, group), "; rank ", theirs.rank, ": ", Describe(theirs, group)));
}

uint64_t DataTag(uint32_t base, const CallIdentity& call) {
  uint64_t mixed = static_cast<uint64_t>(call.count);
  for (const int32_t part :
       {static_cast<int32_t>(call.operation), static_cast<int32_t>(call.dtype), call.detail}) {
    // The factor is 2^64 divided by the golden ratio (Fibonacci hashing): it
    // spreads small differences to the upper half, which the next line brings back.
    mixed = (mixed ^ static_cast<uint32_t>(part)) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 32;
  }
  // The base keeps its own bits, so tags of two kinds are never equal.
  return (uint64_t{base} << 48) | (mixed & 0xffffffffffff);
}

}  // namespace tercio::collective
