// Masks of attention's dropout against the generator, element by element: all formats, sizes that
// no tile divides, a call from the middle of a batch and a model.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <vector>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/testing/device_test.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int64_t kSequences = 2, kHeads = 3, kFirstHead = 4, kFirstSequence = 6;
constexpr float kProbability = 0.3f;

class AttentionMaskTest : public DeviceTest {};

// Whether a weight is kept.
bool IsKept(const Dropout& dropout, int64_t sequence, int64_t head, int64_t query, int64_t key) {
  const PhiloxBlock bits = Philox(
      MakeKey(dropout.seed, dropout.step),
      {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
       static_cast<uint32_t>(kFirstSequence + sequence),
       kSiteAttention | dropout.layer << 4 | static_cast<uint32_t>(kFirstHead + head) << 16});
  return bits[static_cast<size_t>(key % 4)] >= DropThreshold(dropout.probability);
}

TEST_F(AttentionMaskTest, IsThatOfTheGenerator) {
  for (const Format format : {Format::kBfloat16, Format::kFloat16}) {
    const uint16_t one = format == Format::kBfloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(1))
                                                     : __half_as_ushort(__float2half_rn(1));
    for (const int64_t tokens : {1, 13, 300}) {
      for (const bool causal : {false, true}) {
        const int64_t stride = (tokens + 7) / 8 * 8;
        const std::vector<int32_t> lengths = {1, static_cast<int32_t>(tokens)};
        DeviceBuffer<int32_t> of_sequences(lengths, 0);
        DeviceBuffer<uint16_t> mask(kSequences * kHeads * tokens * stride);
        const Dropout dropout{.probability = kProbability,
                              .seed = 5,
                              .step = 8,
                              .layer = 3,
                              .site = kSiteAttention,
                              .first_sequence = kFirstSequence,
                              .tokens = tokens};
        const std::vector<uint16_t> all = SameInEveryOrder([&] {
          AttentionMaskCuda(
              {.mask = Values(reinterpret_cast<std::byte*>(mask.data()), format, format),
               .stride = stride,
               .sequences = kSequences,
               .tokens = tokens,
               .heads = kHeads,
               .first_head = kFirstHead,
               .causal = causal,
               .lengths = causal ? nullptr : of_sequences.data(),
               .dropout = dropout},
              {.stream = stream_});
          return mask.Read(stream_);
        });
        size_t at = 0;
        for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
          for (int64_t head = 0; head < kHeads; ++head) {
            for (int64_t query = 0; query < tokens; ++query) {
              const int64_t seen = causal ? query + 1 : lengths[static_cast<size_t>(sequence)];
              // What no query sees may be anything but not a number.
              for (int64_t key = 0; key < stride; ++key, ++at) {
                if (key >= seen) {
                  ASSERT_TRUE(all[at] == 0 || all[at] == one) << key;
                  continue;
                }
                ASSERT_EQ(all[at], IsKept(dropout, sequence, head, query, key) ? one : 0)
                    << sequence << ", " << head << ", " << query << ", " << key;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
