#include "checkpoint/torch/pickle_calls.h"

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch/pickle_text.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// More than any tensor of a model has: it bounds the memory of each.
constexpr size_t kMostDimensions = 16;

absl::Status BadArguments(std::string_view of) {
  return absl::DataLossError(absl::StrCat("the arguments of ", std::string(of), " are damaged"));
}

const PickleObject* ObjectOf(const PickleNode* node) {
  if (node->kind != PickleValue::Kind::kObject) return nullptr;
  return std::get<std::unique_ptr<PickleObject>>(node->value).get();
}

// The object of a class or function that nothing has called.
const PickleObject* NameOf(const PickleNode* node) {
  const PickleObject* const object = ObjectOf(node);
  const bool callable = object != nullptr && object->known.callable != PickleCallable::kNone;
  return callable ? object : nullptr;
}

// Values are handles for readers, while the arena that is being filled owns all nodes.
PickleNode* MutableNode(const PickleValue& value) { return const_cast<PickleNode*>(value.node()); }

bool IsScalar(const PickleValue& value) {
  switch (value.kind()) {
    case PickleValue::Kind::kNone:
    case PickleValue::Kind::kBool:
    case PickleValue::Kind::kInteger:
    case PickleValue::Kind::kReal:
    case PickleValue::Kind::kText:
      return true;
    case PickleValue::Kind::kBytes:
    case PickleValue::Kind::kSequence:
    case PickleValue::Kind::kMap:
    case PickleValue::Kind::kTensor:
    case PickleValue::Kind::kObject:
      break;
  }
  return false;
}

// A number of elements, an extent, a stride.
std::optional<int64_t> CountOf(const PickleValue& value) {
  if (value.kind() != PickleValue::Kind::kInteger || value.integer() < 0) return std::nullopt;
  return value.integer();
}

std::optional<std::vector<int64_t>> CountsOf(const PickleValue& value) {
  if (value.kind() != PickleValue::Kind::kSequence || value.items().size() > kMostDimensions) {
    return std::nullopt;
  }
  std::vector<int64_t> counts;
  for (const PickleValue& item : value.items()) {
    const std::optional<int64_t> count = CountOf(item);
    if (!count.has_value()) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

// The element behind the last one that the tensor reaches; nullopt: that, or the size of all of its
// elements, does not fit into 64 bits.
std::optional<int64_t> EndOfTensor(const TorchTensor& tensor) {
  int64_t bytes = DtypeBytes(tensor.dtype);
  int64_t last = tensor.offset;
  bool empty = false;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    // An extent of 0 must not hide that the others are too large.
    const int64_t extent = tensor.shape[i] == 0 ? 1 : tensor.shape[i];
    int64_t steps = 0;
    empty = empty || tensor.shape[i] == 0;
    if (__builtin_mul_overflow(bytes, extent, &bytes) ||
        __builtin_mul_overflow(extent - 1, tensor.strides[i], &steps) ||
        __builtin_add_overflow(last, steps, &last)) {
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (__builtin_add_overflow(last, int64_t{1}, &last)) return std::nullopt;
  return last;
}

}  // namespace

PickleCalls::PickleCalls(size_t budget, PickleArena* arena) : arena_(*arena), budget_(budget) {
  value_key_ = arena_.Add(PickleValue::Kind::kText);
  value_key_->value = std::string("value");
  name_key_ = arena_.Add(PickleValue::Kind::kText);
  name_key_->value = std::string("name");
}

// A short pickle could copy a long value again and again.
absl::Status PickleCalls::Spend(size_t count) {
  if (count > budget_) return absl::DataLossError("it copies more than it holds");
  budget_ -= count;
  return absl::OkStatus();
}

PickleNode* PickleCalls::NewObject(const std::string* class_name) {
  PickleNode* const node = arena_.Add(PickleValue::Kind::kObject);
  auto object = std::make_unique<PickleObject>();
  object->class_name = class_name;
  node->value = std::move(object);
  return node;
}

absl::StatusOr<PickleNode*> PickleCalls::Call(const PickleNode* callable,
                                              const PickleNode* arguments) {
  const PickleObject* const function = NameOf(callable);
  if (function == nullptr || arguments->kind != PickleValue::Kind::kSequence) {
    return absl::DataLossError("it calls what is not a function");
  }
  const std::string& name = *function->class_name;
  const auto& items = std::get<Arguments>(arguments->value);
  switch (function->known.callable) {
    case PickleCallable::kOrderedDict:
      return MakeMap(name, items);
    case PickleCallable::kSequence:
      return MakeSequence(name, items);
    case PickleCallable::kEncode:
      return MakeBytes(name, items);
    case PickleCallable::kGetAttribute:
      return MakeMember(name, items);
    case PickleCallable::kReconstruct:
      return MakeNamespace(name, items);
    case PickleCallable::kTensor:
      return MakeTensor(name, items, /*of_dtype=*/false);
    case PickleCallable::kTensorOfDtype:
      return MakeTensor(name, items, /*of_dtype=*/true);
    case PickleCallable::kParameter:
      return TensorOf(name, items);
    case PickleCallable::kTyped:
      return MakeTyped(name, items);
    case PickleCallable::kNamespace:
      if (!items.empty()) return BadArguments(name);
      return NewObject(function->class_name);
    case PickleCallable::kEnum:
      return MakeEnum(function->class_name, items);
    case PickleCallable::kOpaque: {
      // The first argument of some functions is the class of what they make.
      const PickleObject* const of = items.empty() ? nullptr : NameOf(items.front().node());
      return NewObject(of != nullptr ? of->class_name : function->class_name);
    }
    case PickleCallable::kNone:
    case PickleCallable::kStorage:
    case PickleCallable::kPlainClass:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it calls ", name, ", which is not supported by this version"));
}

// OrderedDict() or, as Python 2 wrote it, OrderedDict([[key, value], ...]).
absl::StatusOr<PickleNode*> PickleCalls::MakeMap(const std::string& name,
                                                 const Arguments& arguments) {
  PickleMembers members;
  if (!arguments.empty()) {
    if (arguments.front().kind() != PickleValue::Kind::kSequence) return BadArguments(name);
    const absl::Span<const PickleValue> pairs = arguments.front().items();
    TERCIO_RETURN_IF_ERROR(Spend(pairs.size()));
    for (const PickleValue& pair : pairs) {
      if (pair.kind() != PickleValue::Kind::kSequence || pair.items().size() != 2) {
        return BadArguments(name);
      }
      members.emplace_back(pair.items()[0], pair.items()[1]);
    }
  }
  PickleNode* const map = arena_.Add(PickleValue::Kind::kMap);
  map->value = std::move(members);
  return map;
}

// A set or tuple of the items of a list is the list itself, which is not copied.
absl::StatusOr<PickleNode*> PickleCalls::MakeSequence(const std::string& name,
                                                      const Arguments& arguments) {
  if (arguments.empty()) {
    PickleNode* const empty = arena_.Add(PickleValue::Kind::kSequence);
    empty->value = Arguments();
    return empty;
  }
  if (arguments.front().kind() != PickleValue::Kind::kSequence) return BadArguments(name);
  return MutableNode(arguments.front());
}

// Before protocol 3 bytes are written as text in Latin-1.
absl::StatusOr<PickleNode*> PickleCalls::MakeBytes(const std::string& name,
                                                   const Arguments& arguments) {
  if (arguments.empty() || arguments.front().kind() != PickleValue::Kind::kText) {
    return BadArguments(name);
  }
  const std::string& text = arguments.front().text();
  TERCIO_RETURN_IF_ERROR(Spend(text.size()));
  std::optional<std::string> encoded = EncodeLatin1(text);
  if (!encoded.has_value()) return BadArguments(name);
  PickleNode* const bytes = arena_.Add(PickleValue::Kind::kBytes);
  bytes->value = *std::move(encoded);
  return bytes;
}

// Python 3.11 and later refer to the member of an enum by getattr(class, name).
absl::StatusOr<PickleNode*> PickleCalls::MakeMember(const std::string& name,
                                                    const Arguments& arguments) {
  const PickleObject* const of = arguments.empty() ? nullptr : NameOf(arguments.front().node());
  if (of == nullptr || of->known.callable != PickleCallable::kEnum || arguments.size() != 2 ||
      arguments.back().kind() != PickleValue::Kind::kText) {
    return absl::InvalidArgumentError(
        absl::StrCat("it calls ", name, " for something else than the member of an enum"));
  }
  PickleNode* const member = NewObject(of->class_name);
  std::get<std::unique_ptr<PickleObject>>(member->value)
      ->members.emplace_back(PickleValue(name_key_), arguments.back());
  return member;
}

// The first protocols make an object by _reconstructor(class, object, None).
absl::StatusOr<PickleNode*> PickleCalls::MakeNamespace(const std::string& name,
                                                       const Arguments& arguments) {
  const PickleObject* const of = arguments.empty() ? nullptr : NameOf(arguments.front().node());
  if (of == nullptr || of->known.callable != PickleCallable::kNamespace) {
    return absl::InvalidArgumentError(
        absl::StrCat("it calls ", name, " for a class that is not supported by this version"));
  }
  return NewObject(of->class_name);
}

absl::StatusOr<PickleNode*> PickleCalls::MakeEnum(const std::string* name,
                                                  const Arguments& arguments) {
  if (arguments.size() > 1 || (arguments.size() == 1 && !IsScalar(arguments.front()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it calls ", *name, " with more than a number or text, which is not supported"));
  }
  PickleNode* const node = NewObject(name);
  for (const PickleValue& argument : arguments) {
    std::get<std::unique_ptr<PickleObject>>(node->value)
        ->members.emplace_back(PickleValue(value_key_), argument);
  }
  return node;
}

// A parameter is its tensor, whatever stands behind that.
absl::StatusOr<PickleNode*> PickleCalls::TensorOf(const std::string& name,
                                                  const Arguments& arguments) {
  if (arguments.empty() || arguments.front().kind() != PickleValue::Kind::kTensor) {
    return BadArguments(name);
  }
  return MutableNode(arguments.front());
}

absl::StatusOr<PickleNode*> PickleCalls::MakeTyped(const std::string& name,
                                                   const Arguments& arguments) {
  if (arguments.size() < 3) return BadArguments(name);
  const PickleObject* const function = NameOf(arguments.front().node());
  // Only functions that call no others may follow, since a list may hold itself.
  const bool tensor =
      function != nullptr && (function->known.callable == PickleCallable::kTensor ||
                              function->known.callable == PickleCallable::kTensorOfDtype);
  if (!tensor) return BadArguments(name);
  return Call(arguments[0].node(), arguments[2].node());
}

absl::StatusOr<PickleNode*> PickleCalls::MakeTensor(const std::string& name,
                                                    const Arguments& arguments, bool of_dtype) {
  // _v2 has two more arguments than the oldest form, and _v3 a dtype behind them.
  if (arguments.size() < (of_dtype ? 7u : 4u)) return BadArguments(name);
  const PickleObject* const storage = ObjectOf(arguments[0].node());
  const std::optional<int64_t> offset = CountOf(arguments[1]);
  const auto shape = CountsOf(arguments[2]);
  const auto strides = CountsOf(arguments[3]);
  if (storage == nullptr || storage->storage == nullptr || !offset || !shape || !strides ||
      shape->size() != strides->size()) {
    return BadArguments(name);
  }
  auto tensor = std::make_unique<TorchTensor>();
  tensor->dtype = storage->storage->dtype;
  if (of_dtype) {
    const PickleObject* const dtype = ObjectOf(arguments[6].node());
    if (dtype == nullptr || dtype->known.dtype.empty()) {
      return absl::InvalidArgumentError("the dtype of a tensor is not known");
    }
    tensor->dtype = dtype->known.dtype;
  }
  tensor->shape = *shape;
  tensor->strides = *strides;
  tensor->offset = *offset;
  const int64_t storage_bytes =
      storage->storage->view_elements * DtypeBytes(storage->storage->dtype);
  const std::optional<int64_t> end = EndOfTensor(*tensor);
  if (!end.has_value() || *end > storage_bytes / DtypeBytes(tensor->dtype)) {
    return absl::DataLossError("a tensor reaches beyond its storage");
  }
  arena_.tensors.emplace_back(tensor.get(), storage->storage);
  PickleNode* const node = arena_.Add(PickleValue::Kind::kTensor);
  node->value = std::move(tensor);
  return node;
}

absl::StatusOr<PickleNode*> PickleCalls::MakeStorage(const PickleNode* id) {
  const auto damaged = absl::DataLossError("the id of a storage is damaged");
  if (id->kind != PickleValue::Kind::kSequence) return damaged;
  const auto& items = std::get<Arguments>(id->value);
  if (items.empty() || items[0].kind() != PickleValue::Kind::kText) return damaged;
  // The other kind was the source code of a module.
  if (items[0].text() != "storage") {
    return absl::InvalidArgumentError(
        absl::StrCat("it refers to a ", absl::Utf8SafeCEscape(items[0].text().substr(0, 100)),
                     " outside of the pickle, and only storages are supported"));
  }
  if (items.size() < 5 || items[2].kind() != PickleValue::Kind::kText) return damaged;
  const PickleObject* const of = NameOf(items[1].node());
  if (of == nullptr || of->known.callable != PickleCallable::kStorage) return damaged;
  const std::optional<int64_t> elements = CountOf(items[4]);
  int64_t bytes = 0;
  if (!elements.has_value() ||
      __builtin_mul_overflow(*elements, DtypeBytes(of->known.dtype), &bytes)) {
    return damaged;
  }
  TorchStorage storage;
  storage.key = &items[2].text();
  storage.dtype = of->known.dtype;
  storage.elements = storage.view_elements = *elements;
  if (items.size() > 5 && items[5].kind() != PickleValue::Kind::kNone) {
    // Storages of torch 0.4 could be parts of others: (key of the part, begin, elements).
    const PickleValue& view = items[5];
    if (view.kind() != PickleValue::Kind::kSequence || view.items().size() != 3) return damaged;
    const std::optional<int64_t> begin = CountOf(view.items()[1]);
    const std::optional<int64_t> size = CountOf(view.items()[2]);
    if (!begin || !size || *begin > *elements || *size > *elements - *begin) return damaged;
    storage.view_begin = *begin;
    storage.view_elements = *size;
  }
  arena_.storages.push_back(storage);
  PickleNode* const node = NewObject(of->class_name);
  std::get<std::unique_ptr<PickleObject>>(node->value)->storage = &arena_.storages.back();
  return node;
}

}  // namespace tercio::checkpoint
