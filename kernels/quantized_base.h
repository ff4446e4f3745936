// Weights of few bits that are read and never trained: the base of a fine-tuning
// (model.base_format; Dettmers et al. 2023, "QLoRA"). Codes, scales and values are those of
// bitsandbytes for the same matrix: quantize_4bit(quant_type="nf4", compress_statistics=True), or
// quantize_blockwise with blocks of 64 elements. Pure; for hosts, and, where noted, for devices.
//
// The matrix is taken as one run of elements, row by row, in blocks of 64. Its columns are a
// multiple of 64, so that a block is a part of one row, and a part of the matrix that is cut
// between blocks has the blocks of the whole. A block's scale is its largest magnitude. An element
// becomes x * (1 / max(scale, 1e-38)), rounded twice, within [-1, 1], and then the code of the
// nearest number of a table: that of NF4 (16 numbers, two codes in a byte, the first in the upper
// four bits), or the dynamic map of 8 bits (256 numbers; Dettmers 2016). The numbers between two
// neighbours a < b are nearer to b from above (a + b) / 2, rounded to a float, on.
//
// The scales are quantised again, in groups of 256 along the whole matrix: their mean is taken from
// them, the largest magnitude of what is left is the group's scale, and each has a code of the
// dynamic map. A scale is then fl(fl(map[code] * group) + mean), an element fl(table[code] *
// scale). The mean is the sum in double precision, scale by scale, divided and rounded to a float:
// that of bitsandbytes, which adds in fp32 in an order of its own, may differ in its last bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base_format.h"

namespace tercio::kernels {

// The codes of consecutive elements that begin a block, CodesBytes at `codes`, and the largest
// magnitude of each block. False: an element is not finite, and the results are not to be used.
// REQUIRES: whole blocks.
bool QuantizeBase(BaseFormat format, absl::Span<const float> values, std::byte* codes,
                  float* scales);

// What scales of a whole matrix are relative to.
struct ScaleGroups {
  float mean = 0;
  std::vector<float> largest;  // for each group
};
ScaleGroups GroupsOfScales(absl::Span<const float> scales);

// The code of one scale of a group.
uint8_t CodeOfScale(float scale, float mean, float largest);
// REQUIRES: `code` was made with them.
float ScaleOfCode(uint8_t code, float mean, float largest);

// Elements of one row, from a block's first one: `scales` are their decoded scales.
void DequantizeBase(BaseFormat format, const std::byte* codes, absl::Span<const float> scales,
                    float* values);

}  // namespace tercio::kernels
