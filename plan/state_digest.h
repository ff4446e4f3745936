// One number for the state of a run after a step: weights and both moments of every tensor, each
// element by its number in the whole tensor, so that it is the same in every layout. Steps record
// it, checkpoints carry it, and what was loaded or lies on a disk can be compared with it. It finds
// faults of hardware and programs; it is no protection from forgery.
//
//   digest = sum over tensors t of FactorOfTensor(t) * (sum over elements i of bits(t[i]) * k(i))
//
// modulo 2^64, with k of kernels::DigestArgs. Parts of it add up, in any order. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace tercio::plan {

// Odd. `tensor`: its name in checkpoints, "layers.0.mlp.up.weight" or "adamw.m.layers.0...".
uint64_t FactorOfTensor(std::string_view tensor);

// The sum over elements that follow each other in a tensor; the first has the number `first`.
uint64_t DigestOfElements(absl::Span<const float> values, int64_t first);

// 16 hexadecimal digits, which JSON keeps as they are.
std::string StateDigestText(uint64_t digest);
// nullopt: the text is none.
std::optional<uint64_t> ParseStateDigest(std::string_view text);

}  // namespace tercio::plan
