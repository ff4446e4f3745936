// What travels in a block format: every element once, in blocks that no division cuts.
#include "plan/packed_units.h"

#include <utility>

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

using kernels::BlockFormat;

v1::JobSpec Job(v1::Architecture architecture) {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(architecture);
  model.set_layers(2);
  model.set_hidden(72);
  model.set_heads(4);
  model.set_ffn_hidden(300);
  model.set_context(24);
  model.set_bias(true);
  model.set_vocab_size(1009);
  if (architecture == v1::ARCHITECTURE_T5) {
    model.set_decoder_layers(2);
    model.set_decoder_context(10);
  }
  job.mutable_training()->set_global_batch(16);
  job.mutable_training()->set_lanes(16);
  return job;
}

v1::Layout Layout(int tensor, int data, int zero_stage) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(1);
  layout.set_data(data);
  layout.set_zero_stage(zero_stage);
  layout.set_micro_batch(1);
  layout.set_micro_batches(16 / data);
  return layout;
}

TEST(PackedUnits, EveryElementTravelsOnceInWholeBlocks) {
  for (const v1::Architecture architecture :
       {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA, v1::ARCHITECTURE_T5}) {
    const v1::JobSpec job = Job(architecture);
    for (const int tensor : {1, 2}) {
      for (const int data : {2, 3, 8}) {
        const StageTensors tensors = TensorsOfStage(job.model(), Layout(tensor, data, 3), 0);
        for (const StateUnit& unit : StateUnitsOf(tensors, data)) {
          const PackedUnit packed = PackedUnitOf(tensors, unit, BlockFormat::kInt8);
          ASSERT_EQ(packed.runs.size(), static_cast<size_t>(data));
          ASSERT_EQ(packed.bounds.size(), static_cast<size_t>(data) + 1);
          size_t tensor_at = unit.first_tensor;
          int64_t done = 0;  // elements of that tensor
          for (size_t rank = 0; rank < packed.runs.size(); ++rank) {
            int64_t byte = packed.bounds[rank];
            for (const PackedRun& run : packed.runs[rank]) {
              const StageTensor* entry = &tensors.tensors[tensor_at];
              if (done == entry->elements) {
                entry = &tensors.tensors[++tensor_at];
                done = 0;
              }
              EXPECT_EQ(run.begin, entry->gradient_offset - unit.gradient_offset + done);
              EXPECT_EQ(done % kernels::kBlockElements, 0);
              EXPECT_EQ(run.format,
                        entry->tensor.is_vector ? BlockFormat::kNone : BlockFormat::kInt8);
              EXPECT_EQ(run.byte, byte);
              EXPECT_EQ(run.byte % 16, 0);
              byte += kernels::PackedBytes(run.format, run.elements);
              byte = (byte + 15) / 16 * 16;
              done += run.elements;
            }
            EXPECT_EQ(packed.bounds[rank + 1], byte);
          }
          EXPECT_EQ(tensor_at, unit.first_tensor + unit.tensor_count - 1);
          EXPECT_EQ(done, tensors.tensors[tensor_at].elements);
        }
      }
    }
  }
}

TEST(PackedUnits, BuffersAreForWhatTravels) {
  v1::JobSpec job = Job(v1::ARCHITECTURE_GPT2);
  const auto buffers = [&](int stage) {
    const v1::Layout layout = Layout(1, 4, stage);
    const StageTensors tensors = TensorsOfStage(job.model(), layout, 0);
    return std::pair(PackedWeights(job, layout, tensors), PackedGradients(job, layout, tensors));
  };
  EXPECT_EQ(buffers(3).first.packed, 0);
  EXPECT_EQ(buffers(3).second.packed, 0);
  job.mutable_training()->set_weight_format(v1::BLOCK_FORMAT_INT8);
  job.mutable_training()->set_gradient_format(v1::BLOCK_FORMAT_INT4);
  EXPECT_EQ(buffers(0).first.packed, 0);
  EXPECT_GT(buffers(1).first.packed, 0);
  // Sums of all lanes of a rank travel as floats.
  EXPECT_EQ(buffers(1).second.packed, 0);
  const auto [weights, gradients] = buffers(2);
  // The table is the largest unit: about a byte for each element, and half of one.
  EXPECT_NEAR(static_cast<double>(weights.packed), 1009 * 72 * (1 + 4.0 / 256), 0.02 * 1009 * 72);
  EXPECT_NEAR(static_cast<double>(gradients.packed), 1009 * 72 * (0.5 + 4.0 / 256),
              0.02 * 1009 * 72);
  // Three of four parts, of which the largest is what the grid of cuts makes of a quarter.
  EXPECT_GE(gradients.received, gradients.packed * 3 / 4);
  EXPECT_LE(gradients.received, gradients.packed);
}

}  // namespace
}  // namespace tercio::plan
