#include "checkpoint/torch/pickle_value.h"

#include <algorithm>

#include "checkpoint/safetensors.h"
#include "checkpoint/torch/pickle_node.h"
#include "common/check.h"

namespace tercio::checkpoint {

bool TorchTensor::IsContiguous() const {
  // Between no elements there are no gaps.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    // An extent of 1 is never stepped over, and may have any stride.
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

std::string_view TorchTensor::bytes() const {
  int64_t size = DtypeBytes(dtype);
  const int64_t begin = offset * size;
  for (const int64_t extent : shape) size *= extent;
  // The offset of an empty tensor may lie behind its storage.
  if (size == 0) return {};
  return storage.substr(static_cast<size_t>(begin), static_cast<size_t>(size));
}

PickleValue::Kind PickleValue::kind() const { return node_->kind; }

bool PickleValue::boolean() const {
  TERCIO_CHECK(kind() == Kind::kBool);
  return std::get<bool>(node_->value);
}

int64_t PickleValue::integer() const {
  TERCIO_CHECK(kind() == Kind::kInteger);
  return std::get<int64_t>(node_->value);
}

double PickleValue::real() const {
  TERCIO_CHECK(kind() == Kind::kReal);
  return std::get<double>(node_->value);
}

const std::string& PickleValue::text() const {
  TERCIO_CHECK(kind() == Kind::kText || kind() == Kind::kBytes);
  return std::get<std::string>(node_->value);
}

absl::Span<const PickleValue> PickleValue::items() const {
  TERCIO_CHECK(kind() == Kind::kSequence);
  return std::get<std::vector<PickleValue>>(node_->value);
}

absl::Span<const std::pair<PickleValue, PickleValue>> PickleValue::members() const {
  TERCIO_CHECK(kind() == Kind::kMap || kind() == Kind::kObject);
  if (kind() == Kind::kMap) return std::get<PickleMembers>(node_->value);
  const PickleObject& object = *std::get<std::unique_ptr<PickleObject>>(node_->value);
  // Attributes are those of the map itself, which is not copied: many objects may share one.
  if (object.state != nullptr && object.state->kind == Kind::kMap) {
    return std::get<PickleMembers>(object.state->value);
  }
  return object.members;
}

const TorchTensor& PickleValue::tensor() const {
  TERCIO_CHECK(kind() == Kind::kTensor);
  return *std::get<std::unique_ptr<TorchTensor>>(node_->value);
}

const std::string& PickleValue::class_name() const {
  TERCIO_CHECK(kind() == Kind::kObject);
  return *std::get<std::unique_ptr<PickleObject>>(node_->value)->class_name;
}

const PickleValue* PickleValue::Find(std::string_view key) const {
  if (kind() != Kind::kMap && kind() != Kind::kObject) return nullptr;
  const auto all = members();
  // The last one counts, as where Python assigns to a key twice.
  for (size_t i = all.size(); i-- > 0;) {
    if (all[i].first.kind() == Kind::kText && all[i].first.text() == key) return &all[i].second;
  }
  return nullptr;
}

}  // namespace tercio::checkpoint
