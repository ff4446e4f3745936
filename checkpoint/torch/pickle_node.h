// The memory behind PickleValue: the nodes that the pickle machine
// (checkpoint/torch/pickle_machine.h) makes. They point at each other, possibly in circles, and
// live as long as their arena, which frees them without following a pointer.
//
// Threads: one thread fills an arena; afterwards any number may read.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/torch/pickle_classes.h"
#include "checkpoint/torch/pickle_value.h"

namespace tercio::checkpoint {

using PickleMembers = std::vector<std::pair<PickleValue, PickleValue>>;

// Numbers that a pickle names by a key, and that lie elsewhere in the file.
struct TorchStorage {
  const std::string* key = nullptr;  // in the arena
  std::string_view dtype;            // lives forever
  int64_t elements = 0;
  // The elements that tensors see: all of them, but for files of torch 0.4 and before.
  int64_t view_begin = 0;
  int64_t view_elements = 0;
  std::string_view bytes;  // the view's, once its place in the file is known
};

struct PickleObject {
  const std::string* class_name = nullptr;  // in the arena
  KnownName known;                          // a class or function that nothing has called yet
  PickleMembers members;                    // the value or the name of an enum
  const PickleNode* state = nullptr;        // the attributes that the file sets
  const TorchStorage* storage = nullptr;
};

struct PickleNode {
  PickleValue::Kind kind = PickleValue::Kind::kNone;
  // Large alternatives are behind pointers, since most nodes are small and a file may have
  // millions.
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<PickleValue>,
               PickleMembers, std::unique_ptr<TorchTensor>, std::unique_ptr<PickleObject>>
      value;
};

struct PickleArena {
  // A deque and a set never move what they hold.
  std::deque<PickleNode> nodes;
  std::set<std::string, std::less<>> names;
  std::deque<TorchStorage> storages;
  std::vector<std::pair<TorchTensor*, const TorchStorage*>> tensors;

  PickleNode* Add(PickleValue::Kind kind) {
    nodes.emplace_back().kind = kind;
    return &nodes.back();
  }
};

}  // namespace tercio::checkpoint
