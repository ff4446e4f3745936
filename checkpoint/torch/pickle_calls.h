// What the known classes and functions of a pickle give: the values, not the execution of anything.
//
// Threads: one at a time. Errors: DATA_LOSS for arguments that cannot be, INVALID_ARGUMENT for what
// is refused; they name the function.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_node.h"

namespace tercio::checkpoint {

class PickleCalls {
 public:
  // `budget`: bytes and elements that all calls together may copy. The arena must outlive it.
  PickleCalls(size_t budget, PickleArena* arena);

  // The value of callable(*arguments).
  absl::StatusOr<PickleNode*> Call(const PickleNode* callable, const PickleNode* arguments);

  // The storage that a persistent id names.
  absl::StatusOr<PickleNode*> MakeStorage(const PickleNode* id);

 private:
  using Arguments = std::vector<PickleValue>;

  absl::Status Spend(size_t count);
  PickleNode* NewObject(const std::string* class_name);
  // Each makes the result of a kind of functions; `name` is that of the function.
  absl::StatusOr<PickleNode*> MakeMap(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeSequence(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeBytes(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeMember(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeNamespace(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeEnum(const std::string* name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> TensorOf(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeTyped(const std::string& name, const Arguments& arguments);
  absl::StatusOr<PickleNode*> MakeTensor(const std::string& name, const Arguments& arguments,
                                         bool of_dtype);

  PickleArena& arena_;
  size_t budget_;
  // Keys of the attributes of enums.
  PickleNode* value_key_;
  PickleNode* name_key_;
};

}  // namespace tercio::checkpoint
