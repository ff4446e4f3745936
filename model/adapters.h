// Adapters of a model: which parts of its products may have one, and what they add to the
// declarations of blocks. Pure.
//
// LoRA: a product that is cut by the rows of its weight has A whole on every tensor rank and B cut
// by rows: a rank has a part of A's gradient only. One that is cut by columns has A cut by columns
// and B whole: a rank adds B times its part of A x, the sum over ranks that the product has anyway
// makes the result whole, and a rank has a part of B's gradient only. So adapters exchange nothing
// but gradients of whole tensors (Tensor::partial).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture.h"
#include "model/description.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::model {

// A part of a block's products that may have an adapter. Parts of one product are in the order of
// its outputs, and cover them.
struct AdaptablePart {
  std::string name;                  // "query"
  std::vector<std::string> weights;  // "query"; of what is published as one product all of them
  int product = 0;                   // of the block
};
// Empty for blocks that take no adapters.
std::vector<AdaptablePart> AdaptablePartsOf(const BlockOptions& block);

// "attention.query": what targets are compared with, in the order of layers and blocks, each once.
std::vector<std::string> AdaptableNames(const Architecture& architecture);

// The target that stands for all of them.
inline constexpr char kAllLinear[] = "all-linear";
// Whether one of the adapter's targets is this name, describes it (`*` stands for any characters),
// or is kAllLinear.
bool IsTarget(const v1::AdapterSpec& adapter, const std::string& name);

// What B (A x) is multiplied with: alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023). 1 for
// adapters without rank.
double LowRankScale(const v1::AdapterSpec& adapter);

// Gives the blocks of the architecture the adapters that a job asks for. All other tensors are
// frozen, but for those that the adapter names and the head of a classifier.
void AddAdapters(const v1::AdapterSpec& adapter, Architecture* architecture);

// Adds what the options ask for to a block's description, whose tensors and products are there.
// `first_site`: of the block's first part (kernels/random.h).
void DescribeAdapters(const AdapterOptions& options, const std::vector<AdaptablePart>& parts,
                      int tensor, uint32_t first_site, BlockDescription* block);

}  // namespace tercio::model
