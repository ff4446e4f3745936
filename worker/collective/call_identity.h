// What two ranks must agree on before they exchange anything: which call this is. Travels between
// processes of one attempt, which are the same program, as it lies in memory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tercio {

enum class Operation : int32_t {
  kAllReduce = 1,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kMessage,  // from one rank to one other
};

enum class DataType : int32_t { kFloat32 = 1, kFloat64, kBytes };

struct CallIdentity {
  Operation operation = Operation::kBarrier;
  DataType dtype = DataType::kBytes;
  int32_t detail = 0;    // root of a broadcast, tag of a message
  int32_t rank = 0;      // global, of the caller
  int64_t sequence = 0;  // of the group's calls; of the messages of one tag to one rank
  int64_t count = 0;     // elements
  // Where the caller is, for the report; may differ.
  int64_t step = 0;
  char action[40] = {};
};

const char* NameOf(Operation operation);  // "all-reduce"
const char* NameOf(DataType dtype);       // "f32"

// "all-reduce #5 of f32 x 100 in group tensor.0 at step 7, forward 2".
std::string Describe(const CallIdentity& call, const std::string& group);

// INTERNAL names both calls when they are not the same one.
absl::Status CheckSame(const CallIdentity& mine, const CallIdentity& theirs,
                       const std::string& group);

// The tag of a call's data: `base` (below 2^16), made different for calls that do not fit together,
// so that no rank ever reads what was meant for another call.
uint64_t DataTag(uint32_t base, const CallIdentity& call);

}  // namespace tercio
