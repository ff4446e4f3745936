// The identity of a call, on which two ranks must agree before they exchange anything. Travels
// between processes of one attempt, which are the same program, as it lies in memory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tercio::collective {

enum class Operation : int32_t {
  kAllReduce = 1,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kMessage,  // from one rank to one other
  kAllToAll,
};

enum class DataType : int32_t { kFloat32 = 1, kFloat64, kBytes };

struct CallIdentity {
  Operation operation = Operation::kBarrier;
  DataType dtype = DataType::kBytes;
  int32_t detail = 0;    // root of a broadcast, or tag of a message
  int32_t rank = 0;      // global, of the caller
  int64_t sequence = 0;  // among the group's calls; of a message, among those of its tag and peer
  int64_t count = 0;     // elements
  // The place of the caller, for the report; may differ.
  int64_t step = 0;
  char action[40] = {};
};

const char* NameOf(Operation operation);  // "all-reduce"
const char* NameOf(DataType dtype);       // "f32"

// "all-reduce #5 of f32 x 100 in group tensor.0 at step 7, forward 2".
std::string Describe(const CallIdentity& call, const std::string& group);

// INTERNAL, naming both calls, if they are not the same.
absl::Status CheckSame(const CallIdentity& mine, const CallIdentity& theirs,
                       const std::string& group);

// The tag of a call's data: `base` (below 2^16), made different for calls that do not fit together,
// so that no rank ever reads data of another call.
uint64_t DataTag(uint32_t base, const CallIdentity& call);

}  // namespace tercio::collective
