#include "emulation/orders.h"

#include <numeric>
#include <utility>

namespace tercio::emulation {
namespace {

// The name is for messages of tests, which have to say in what order a kernel failed.
const char* NameOf(Order order) {
  switch (order) {
    case Order::kAscending:
      return "ascending";
    case Order::kDescending:
      return "descending";
    case Order::kShuffled:
      return "shuffled";
  }
  return "";
}

}  // namespace

std::vector<Orders> DifferentOrders() {
  // Threads and blocks are also reversed apart from each other, since a race may hide if both are.
  return {{Order::kAscending, Order::kAscending, 1},
          {Order::kDescending, Order::kDescending, 1},
          {Order::kDescending, Order::kAscending, 1},
          {Order::kShuffled, Order::kShuffled, 1},
          {Order::kShuffled, Order::kShuffled, 2}};
}

std::string ToString(const Orders& orders) {
  return std::string("threads ") + NameOf(orders.threads) + ", blocks " + NameOf(orders.blocks) +
         ", seed " + std::to_string(orders.seed);
}

void FillOrder(Order order, uint64_t seed, uint32_t count, std::vector<uint32_t>& result) {
  result.resize(count);
  std::iota(result.begin(), result.end(), 0u);
  if (order == Order::kDescending) {
    // A descending order runs consumers before producers, which shows most missing barriers.
    for (uint32_t i = 0; i < count; ++i) result[i] = count - 1 - i;
  }
  if (order == Order::kShuffled) {
    // This is the shuffle of Fisher and Yates, whose permutations are all equally likely.
    for (uint32_t i = count; i > 1; --i) std::swap(result[i - 1], result[NextRandom(seed) % i]);
  }
}

uint64_t NextRandom(uint64_t& state) {
  // The constants are those of the published algorithm.
  state += 0x9e3779b97f4a7c15u;
  uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

}  // namespace tercio::emulation
