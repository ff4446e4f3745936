// The classes and functions that a pickle of torch may name, and what each stands for. None of them
// is ever run: the pickle machine builds the value that it would give. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tercio::checkpoint {

enum class PickleCallable : uint8_t {
  kNone,           // data, not a class
  kOrderedDict,    // an empty map, or one of pairs
  kSequence,       // the sequence that it is given: set, frozenset, torch.Size
  kEncode,         // a text that stands for bytes
  kGetAttribute,   // a member of an enum by its name
  kReconstruct,    // an object of a class without arguments
  kTensor,         // (storage, offset, shape, strides, ...)
  kTensorOfDtype,  // the same, and the dtype is an argument
  kParameter,      // the tensor that it is given
  kTyped,          // (function, class, arguments, attributes): the function's tensor
  kStorage,        // a class of storages
  kPlainClass,     // a class that only other functions take as an argument
  kNamespace,      // an object without arguments, with attributes
  kEnum,           // an object, made of one number or text at most
  kOpaque,         // an object, whatever it is made of
};

struct KnownName {
  PickleCallable callable = PickleCallable::kNone;
  std::string_view dtype = {};  // a storage's, or the dtype itself; empty: it has no name here
};

// `name` with its module: "collections.OrderedDict". nullopt: it is to be refused.
std::optional<KnownName> FindKnownName(std::string_view name);

}  // namespace tercio::checkpoint
