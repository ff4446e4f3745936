// A value read from a pickle: numbers, texts, containers, tensors, and objects of a few known
// classes as mere data. Nothing in a pickle is ever executed.
//
// A value is a handle on memory of the TorchFile that it came from, cheap to copy, and valid as
// long as that lives. Values may be shared, and a hostile file may make containers that contain
// themselves: walk along expected names, never through everything.
//
// Threads: immutable; any number of threads may read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tercio::checkpoint {

// A tensor as torch stores it: a view of a storage.
struct TorchTensor {
  std::string dtype;  // as safetensors names it: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // elements
  int64_t offset = 0;            // the first element's, in elements
  std::string_view storage;      // all of its bytes, in the mapped file

  // Row-major without gaps.
  bool IsContiguous() const;
  // The tensor's bytes. REQUIRES: IsContiguous().
  std::string_view bytes() const;
};

struct PickleNode;

class PickleValue {
 public:
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kReal,
    kText,
    kBytes,
    kSequence,
    kMap,
    kTensor,
    kObject
  };

  explicit PickleValue(const PickleNode* node) : node_(node) {}

  Kind kind() const;
  // Each REQUIRES: the kind of its name.
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  const std::string& text() const;              // kText, kBytes
  absl::Span<const PickleValue> items() const;  // kSequence: a list, tuple or set
  // kMap: a dict in its order. kObject: the attributes that the file gives it.
  absl::Span<const std::pair<PickleValue, PickleValue>> members() const;
  const TorchTensor& tensor() const;
  const std::string& class_name() const;  // kObject: "argparse.Namespace"

  // The member of a map or object with this text as its key; none for other kinds. The last one
  // counts where a key is repeated.
  const PickleValue* Find(std::string_view key) const;

  // For the reader of pickles.
  const PickleNode* node() const { return node_; }

 private:
  const PickleNode* node_;
};

}  // namespace tercio::checkpoint
