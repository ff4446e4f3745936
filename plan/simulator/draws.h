// Numbers drawn from a seed, the same on every machine. Pure: the standard library's distributions
// differ between implementations, and these do not.
#pragma once

#include <array>
#include <cstdint>

namespace tercio::plan::simulator {

// xoshiro256++ (Blackman and Vigna 2021), started by splitmix64. Threads: one.
class Draws {
 public:
  // Streams of one seed are independent of each other.
  Draws(uint64_t seed, uint64_t stream);

  uint64_t Bits();
  double Uniform();  // in (0, 1), never an end
  // In [0, limit). REQUIRES: limit >= 1.
  int64_t Below(int64_t limit);
  double Exponential(double mean);
  double Normal();  // mean 0, standard deviation 1
  // Failures before the next success, each trial succeeding with `probability`, above 0.
  double FailuresBeforeSuccess(double probability);

 private:
  std::array<uint64_t, 4> state_;
};

// The x that a standard normal number exceeds with probability `tail`, in (0, 1): Wichura 1988,
// algorithm AS 241, to 16 digits. Exact for small tails, where 1 - tail would lose digits.
double NormalExceededWith(double tail);

// The greatest of `count` standard normal numbers, from one uniform number: it exceeds x with
// probability 1 - F(x)^count, so that F(x) = uniform^(1 / count). REQUIRES: count >= 1.
double LargestNormal(double uniform, double count);

}  // namespace tercio::plan::simulator
