#include "data/packing.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace tercio::data {
namespace {

struct OpenSequence {
  size_t number;
  int64_t room;
};

}  // namespace

Packing PackDocuments(absl::Span<const int32_t> lengths, int64_t capacity) {
  std::vector<std::vector<int64_t>> members;
  std::vector<OpenSequence> open;  // by number, ascending
  for (size_t i = 0; i < lengths.size(); ++i) {
    TERCIO_CHECK(lengths[i] >= 1 && lengths[i] <= capacity);
    auto place = std::find_if(open.begin(), open.end(), [&](const OpenSequence& sequence) {
      return sequence.room >= lengths[i];
    });
    if (place == open.end()) {
      if (static_cast<int64_t>(open.size()) == kOpenSequences) {
        open.erase(std::min_element(
            open.begin(), open.end(),
            [](const OpenSequence& a, const OpenSequence& b) { return a.room < b.room; }));
      }
      open.push_back({members.size(), capacity});
      members.emplace_back();
      place = open.end() - 1;
    }
    members[place->number].push_back(static_cast<int64_t>(i));
    place->room -= lengths[i];
    if (place->room == 0) open.erase(place);
  }
  Packing packing;
  packing.documents.reserve(lengths.size());
  for (const std::vector<int64_t>& of_sequence : members) {
    packing.documents.insert(packing.documents.end(), of_sequence.begin(), of_sequence.end());
    packing.begins.push_back(static_cast<int64_t>(packing.documents.size()));
  }
  return packing;
}

}  // namespace tercio::data
