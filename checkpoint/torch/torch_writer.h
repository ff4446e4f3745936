// Writes a file that torch.load reads: a zip archive of stored records (torch's format since
// version 1.6) that holds one pickle and the bytes of each of its tensors, contiguous and aligned.
//
// The pickle has protocol 2 and names no classes but those of tensors, dtypes and
// argparse.Namespace: torch.load(..., weights_only=True) accepts it once the caller has allowed
// that last one (torch.serialization.add_safe_globals([argparse.Namespace])).
//
//   TorchWriter writer(root);
//   output->WriteParts(name, count, make, &writer);   // parts: the tensors' bytes in their order
//
// Threads: one at a time.
// Errors: those of `write`. The bytes of all parts together must be those of all tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/float_format.h"
#include "common/ordered_parts.h"

namespace tercio::checkpoint {

struct TorchValue;
using TorchMembers = std::vector<std::pair<std::string, TorchValue>>;

struct TorchDict {
  TorchMembers members;
};
struct TorchNamespace {  // argparse.Namespace
  TorchMembers members;
};
struct TorchDtype {  // torch.float32 and others
  FloatFormat format = FloatFormat::kF32;
};
struct TorchTensorForm {
  FloatFormat format = FloatFormat::kF32;
  std::vector<int64_t> shape;
};

// What a file holds; the first alternative is None.
struct TorchValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, TorchDict, TorchNamespace,
               TorchDtype, TorchTensorForm>
      form;
};

class TorchWriter : public PartFrame {
 public:
  explicit TorchWriter(const TorchValue& root);

  // The bytes of all tensors, which are the parts: in the order of a walk through the root.
  int64_t tensor_bytes() const { return tensor_bytes_; }

  absl::Status Add(std::string_view part, const TakePart& write) override;
  absl::Status Finish(const TakePart& write) override;

 private:
  struct Record {
    std::string name;
    int64_t bytes = 0;
    int64_t header = 0;  // its offset
    uint32_t crc = 0;
  };

  absl::Status Put(std::string_view bytes, const TakePart& write);
  absl::Status WriteRecord(const std::string& name, std::string_view content,
                           const TakePart& write);
  absl::Status Begin(Record* record, const TakePart& write);
  absl::Status End(const Record& record, const TakePart& write);
  absl::Status EndFullTensors(const TakePart& write);
  absl::Status WriteDirectory(const TakePart& write);
  absl::Status WriteEnd(int64_t directory, const TakePart& write);

  std::string pickle_;
  std::vector<int64_t> sizes_;  // bytes of each tensor
  int64_t tensor_bytes_ = 0;
  std::vector<Record> records_;  // begun so far
  size_t next_ = 0;              // tensor that the next part belongs to, or begins
  bool in_tensor_ = false;
  int64_t left_ = 0;  // bytes of that tensor that are to come
  int64_t offset_ = 0;
};

}  // namespace tercio::checkpoint
