// The orders in which the emulation runs things that a GPU runs at the same time: a correct program
// gives the same bits in all of them, one with a race most likely does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tercio::emulation {

enum class Order { kAscending, kDescending, kShuffled };

struct Orders {
  Order threads = Order::kAscending;  // within a block; reshuffled after every barrier
  Order blocks = Order::kAscending;   // within a grid
  uint64_t seed = 1;
};

// Some orders that together find most races: both directions for both, and shuffled ones.
std::vector<Orders> DifferentOrders();
std::string ToString(const Orders& orders);

// A permutation of [0, count).
void FillOrder(Order order, uint64_t seed, uint32_t count, std::vector<uint32_t>& result);

// The splitmix64 step (Steele et al. 2014): advances `state`, gives 64 mixed bits.
uint64_t NextRandom(uint64_t& state);

}  // namespace tercio::emulation
