// Jobs whose frozen matrices are codes of few bits (model.base_format): they train as if these
// matrices had the values that the codes stand for; codes and scales are those of the whole matrix
// in every layout, and losses, norms and all state have the same bits.
#include "kernels/quantized_base.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/model_tensors.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;

const Case kOneRank = {1, 1, 1, 8, 1, k1f1b};

// Sizes that two tensor ranks cut into whole blocks.
v1::JobSpec Quantized(v1::JobSpec spec, v1::BaseFormat format,
                      v1::Precision precision = v1::PRECISION_FP32) {
  spec.mutable_model()->set_hidden(128);
  spec.mutable_model()->set_ffn_hidden(256);
  if (spec.model().head_dim() > 0) spec.mutable_model()->set_head_dim(32);
  spec.mutable_model()->set_base_format(format);
  spec.mutable_training()->add_frozen("layers.*.weight");
  spec.mutable_training()->set_precision(precision);
  return spec;
}

Case Divided(Case c, int zero_stage) {
  c.zero_stage = zero_stage;
  return c;
}

std::vector<Case> OneTensorRank() {
  return {kOneRank,
          {1, 2, 2, 2, 1, k1f1b},
          {1, 2, 1, 2, 2, kInterleaved, kSelective, 2},
          {1, 1, 4, 1, 1, k1f1b, kFull},
          Divided({1, 2, 2, 1, 1, k1f1b}, 1),
          Divided({1, 1, 4, 1, 1, k1f1b}, 2)};
}

std::vector<Case> TwoTensorRanks() {
  return {{2, 1, 1, 4, 1, k1f1b},
          {2, 2, 2, 1, 1, k1f1b},
          {2, 2, 1, 2, 1, kInterleaved, kFull, 2},
          Divided({2, 1, 2, 1, 1, k1f1b}, 2)};
}

std::vector<v1::JobSpec> Jobs() {
  return {Quantized(SmallLlama(), v1::BASE_FORMAT_NF4),
          Quantized(SmallLlama(), v1::BASE_FORMAT_NF4, v1::PRECISION_BF16),
          Quantized(SmallLlama(), v1::BASE_FORMAT_INT8, v1::PRECISION_FP16),
          Quantized(SmallJob(), v1::BASE_FORMAT_INT8), Quantized(SmallT5(), v1::BASE_FORMAT_NF4)};
}

TEST(QuantizedBase, EveryLayoutHasTheSameBits) {
  for (const v1::JobSpec& spec : Jobs()) {
    SCOPED_TRACE(spec.model().ShortDebugString());
    ExpectSameGrid(spec, OneTensorRank());
    ExpectSameGrid(spec, TwoTensorRanks());
  }
}

// The values of a quantised matrix, by its definition.
std::vector<float> Dequantized(const State& state, const std::string& name,
                               kernels::BaseFormat format) {
  const std::vector<float>& codes = state.at(plan::kBaseCodes + name);
  std::vector<float> scales = state.at(plan::kBaseScales + name);
  const std::vector<float>& groups = state.at(plan::kBaseGroups + name);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = kernels::ScaleOfCode(static_cast<uint8_t>(scales[i]), groups[0],
                                     groups[1 + i / kernels::kScalesOfGroup]);
  }
  std::vector<float> values(scales.size() * kernels::kBaseBlock);
  kernels::DequantizeBase(format, reinterpret_cast<const std::byte*>(codes.data()), scales,
                          values.data());
  return values;
}

std::vector<std::string> QuantizedNames(const v1::JobSpec& spec) {
  std::vector<std::string> names;
  const std::vector<bool> quantized = plan::TensorsQuantized(spec);
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(spec.model())) {
    if (quantized[static_cast<size_t>(tensor.index)]) names.push_back(tensor.name);
  }
  return names;
}

// The job that has the dequantised values as its frozen weights.
v1::JobSpec Plain(v1::JobSpec spec) {
  spec.mutable_model()->clear_base_format();
  return spec;
}

TEST(QuantizedBase, TrainsAsIfTheWeightsHadTheValuesOfTheCodes) {
  for (const v1::JobSpec& spec : Jobs()) {
    SCOPED_TRACE(spec.model().ShortDebugString());
    const kernels::BaseFormat format = plan::BaseFormatOf(spec.model());
    for (const Case& c : {kOneRank, Case{2, 2, 2, 1, 1, k1f1b}}) {
      SCOPED_TRACE(NameOf(c));
      const RunResult quantized = Train(spec, c);
      State weights;
      for (const std::string& name : QuantizedNames(spec)) {
        weights[name] = Dequantized(quantized.state, name, format);
        EXPECT_FALSE(quantized.state.contains(name));
      }
      ASSERT_GE(weights.size(), 4u * 6u);
      RunOptions options;
      options.weights = &weights;
      const RunResult plain = Train(Plain(spec), c, options);
      ASSERT_EQ(plain.steps.size(), quantized.steps.size());
      for (size_t i = 0; i < plain.steps.size(); ++i) {
        EXPECT_EQ(plain.steps[i].loss, quantized.steps[i].loss) << i;
        EXPECT_EQ(std::bit_cast<uint64_t>(plain.steps[i].grad_norm),
                  std::bit_cast<uint64_t>(quantized.steps[i].grad_norm))
            << i;
      }
      EXPECT_EQ(plain.validation_loss, quantized.validation_loss);
    }
  }
}

// Also of weights that come piece by piece, and that tensor ranks cut, by rows and by columns.
TEST(QuantizedBase, HasTheCodesOfTheWholeMatrixInEveryLayout) {
  for (const v1::BaseFormat named : {v1::BASE_FORMAT_NF4, v1::BASE_FORMAT_INT8}) {
    const v1::JobSpec spec = Quantized(SmallLlama(), named);
    const kernels::BaseFormat format = plan::BaseFormatOf(spec.model());
    const State weights = Train(Plain(spec), kOneRank).state;
    RunOptions options;
    options.weights = &weights;
    for (const Case& c : {kOneRank, Case{2, 1, 1, 4, 1, k1f1b}, Case{2, 2, 2, 1, 1, k1f1b},
                          Divided({1, 1, 4, 1, 1, k1f1b}, 2)}) {
      SCOPED_TRACE(NameOf(c));
      const State state = Train(spec, c, options).state;
      for (const std::string& name : QuantizedNames(spec)) {
        const std::vector<float>& values = weights.at(name);
        std::vector<std::byte> codes(
            static_cast<size_t>(kernels::CodesBytes(format, static_cast<int64_t>(values.size()))));
        std::vector<float> scales(values.size() / kernels::kBaseBlock);
        ASSERT_TRUE(kernels::QuantizeBase(format, values, codes.data(), scales.data()));
        const kernels::ScaleGroups groups = kernels::GroupsOfScales(scales);
        const std::vector<float>& saved = state.at(plan::kBaseCodes + name);
        ASSERT_EQ(saved.size() * sizeof(float), codes.size()) << name;
        EXPECT_EQ(std::memcmp(saved.data(), codes.data(), codes.size()), 0) << name;
        std::vector<float> numbers = {groups.mean};
        numbers.insert(numbers.end(), groups.largest.begin(), groups.largest.end());
        EXPECT_EQ(state.at(plan::kBaseGroups + name), numbers) << name;
        for (size_t i = 0; i < scales.size(); ++i) {
          ASSERT_EQ(state.at(plan::kBaseScales + name)[i],
                    kernels::CodeOfScale(scales[i], groups.mean,
                                         groups.largest[i / kernels::kScalesOfGroup]))
              << name << " " << i;
        }
      }
    }
  }
}

TEST(QuantizedBase, ResumesInAnotherLayout) {
  for (const v1::JobSpec& spec : Jobs()) {
    SCOPED_TRACE(spec.model().ShortDebugString());
    RunOptions all;
    all.steps = 4;
    const RunResult whole = Train(spec, kOneRank, all);
    RunOptions first;
    first.steps = 2;
    const RunResult half = Train(spec, {1, 2, 2, 2, 1, k1f1b}, first);
    RunOptions second;
    second.steps = 2;
    second.first_step = 3;
    second.state = &half.state;
    const RunResult resumed = Train(spec, Divided({1, 1, 4, 1, 1, k1f1b}, 2), second);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(resumed.steps[i].loss, whole.steps[i + 2].loss) << i;
    for (const auto& [name, values] : whole.state) {
      const std::vector<float>& other = resumed.state.at(name);
      ASSERT_EQ(values.size(), other.size()) << name;
      EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
    }
  }
}

TEST(QuantizedBase, CopiesOfSnapshotsHaveIt) {
  v1::JobSpec spec = Quantized(SmallLlama(), v1::BASE_FORMAT_NF4, v1::PRECISION_BF16);
  spec.mutable_checkpoint()->set_peer_copies(1);
  const Case c = {2, 1, 2, 2, 1, k1f1b};
  RunOptions first;
  first.steps = 2;
  const RunResult half = Train(spec, c, first);
  RunOptions second;
  second.first_step = 3;
  second.steps = 1;
  second.copies = &half.copies;
  RunOptions all;
  all.steps = 3;
  EXPECT_EQ(Train(spec, c, second).steps.at(0).loss, Train(spec, c, all).steps.at(2).loss);
}

TEST(QuantizedBase, RefusesWeightsThatAreNotFinite) {
  const v1::JobSpec spec = Quantized(SmallLlama(), v1::BASE_FORMAT_NF4);
  State weights;
  weights["layers.2.mlp.down.weight"].assign(128 * 256, 0.5f);
  weights["layers.2.mlp.down.weight"][1234] = std::bit_cast<float>(0x7f800000u);
  v1::JobSpec one = spec;
  one.mutable_training()->set_micro_batch(8);
  one.mutable_resources()->set_ranks(1);
  RunOptions options;
  options.weights = &weights;
  const absl::Status status = TrainWithThreads(one, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("layers.2.mlp.down.weight has numbers that are not finite"));
}

}  // namespace
}  // namespace tercio::testing
