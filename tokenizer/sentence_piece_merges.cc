#include "tokenizer/sentence_piece_merges.h"

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace tercio::tokenizer {
namespace {

constexpr size_t kNone = SIZE_MAX;

struct Symbol {
  std::string_view text;  // empty: it was joined with the previous one
  bool frozen;
  size_t previous;
  size_t next;
};

struct Candidate {
  float score;
  size_t left;
  size_t right;
  size_t size;  // size of both together
  bool operator<(const Candidate& other) const {
    // The queue's top is the largest: the highest score, and of equal ones the leftmost pair.
    return score != other.score ? score < other.score : left > other.left;
  }
};

using Halves = absl::flat_hash_map<std::string_view, std::pair<std::string_view, std::string_view>>;

// Appends the pieces that `text` is made of, if it has to be taken apart.
void TakeApart(std::string_view text, const Halves& halves, std::vector<std::string_view>* out) {
  std::vector<std::string_view> rest = {text};
  while (!rest.empty()) {
    const std::string_view part = rest.back();
    rest.pop_back();
    const auto found = halves.find(part);
    if (found == halves.end()) {
      out->push_back(part);
      continue;
    }
    // The first half is pushed last, so that it is taken, and written, first.
    rest.push_back(found->second.second);
    rest.push_back(found->second.first);
  }
}

}  // namespace

std::vector<std::string_view> MergePieces(
    std::vector<PieceSymbol> given,
    absl::FunctionRef<std::optional<PieceScore>(std::string_view)> score_of) {
  std::vector<Symbol> symbols(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    symbols[i] = {given[i].text, given[i].frozen, i == 0 ? kNone : i - 1,
                  i + 1 == given.size() ? kNone : i + 1};
  }
  std::priority_queue<Candidate> queue;
  Halves halves;
  const auto offer = [&](size_t left, size_t right) {
    if (left == kNone || right == kNone || symbols[left].frozen || symbols[right].frozen) return;
    const size_t size = symbols[left].text.size() + symbols[right].text.size();
    // Neighbours lie next to each other in the text, so their union is a view, too.
    const std::string_view joined(symbols[left].text.data(), size);
    const std::optional<PieceScore> piece = score_of(joined);
    if (!piece.has_value()) return;
    queue.push({piece->score, left, right, size});
    // This is noted even if the pair is not joined here, as in the library, which may take such a
    // piece apart in another way than it was made.
    if (piece->unused) halves[joined] = {symbols[left].text, symbols[right].text};
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(i, i + 1);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    Symbol& right = symbols[top.right];
    // One of the two may have been joined with another meanwhile.
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != top.size) {
      continue;
    }
    left.text = std::string_view(left.text.data(), top.size);
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = top.left;
    // An empty text marks the symbol as gone for the candidates that still name it.
    right.text = {};
    offer(left.previous, top.left);
    offer(top.left, left.next);
  }
  std::vector<std::string_view> parts;
  // The first symbol is never joined into another, so the chain begins there.
  for (size_t i = symbols.empty() ? kNone : 0; i != kNone; i = symbols[i].next) {
    TakeApart(symbols[i].text, halves, &parts);
  }
  return parts;
}

}  // namespace tercio::tokenizer
