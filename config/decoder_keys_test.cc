// The keys of models with an encoder and a decoder.
#include <string>
#include <vector>

#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::HasSubstr;

constexpr char kGood[] = R"(name: small
model:
  layers: 2
  hidden: 32
  heads: 4
  context: 16
data:
  train: corpus.txt
training:
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

absl::StatusOr<v1::JobSpec> Parse(const std::string& text,
                                  const std::vector<std::string>& overrides = {}) {
  return ParseJobText(text, "job.yaml", "/where", overrides);
}

std::string FaultOf(const std::vector<std::string>& overrides) {
  const auto spec = Parse(kGood, overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

// The decoder's sequence follows from the encoder's and from what is masked.
TEST(DecoderKeys, TheDecoderFollowsItsEncoder) {
  const auto with = [](std::vector<std::string> changes) {
    changes.insert(changes.begin(), {"model.architecture=t5", "data.train=tokens"});
    const auto spec = Parse(kGood, changes);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const auto again = spec.ok() ? Parse(EffectiveYaml(*spec)) : spec;
    EXPECT_TRUE(again.ok()) << again.status();
    if (!again.ok()) return v1::ModelSpec();
    EXPECT_EQ(spec->model().DebugString(), again->model().DebugString());
    return again->model();
  };
  EXPECT_EQ(with({}).decoder_layers(), 2);
  EXPECT_EQ(with({"model.decoder_layers=3"}).decoder_layers(), 3);
  EXPECT_EQ(with({"model.context=512"}).decoder_context(), 114);
  EXPECT_EQ(with({"model.context=512", "model.decoder_context=114"}).decoder_context(), 114);
  EXPECT_GT(with({"model.context=512", "data.masking={probability: 0.3}"}).decoder_context(), 200);
  EXPECT_GT(with({"model.context=512", "data.masking={mean_span: 1}"}).decoder_context(), 150);
  const auto fault = [](const std::string& change) {
    return FaultOf({"model.architecture=t5", "data.train=tokens", change});
  };
  EXPECT_THAT(fault("model.decoder_context=20"),
              HasSubstr("model.decoder_context: 20, but with this context"));
  EXPECT_THAT(fault("data.masking={whole_word: true}"), HasSubstr("data.masking"));
  EXPECT_THAT(fault("model.relative_buckets=512"),
              HasSubstr("model.relative_buckets: expected a whole number"));
  EXPECT_THAT(fault("model.bias=true"), HasSubstr("biases in t5"));
  EXPECT_THAT(FaultOf({"model.architecture=bert", "data.train=tokens",
                       "data.special_tokens={cls: 1, sep: 2, mask: 3, pad: 0}",
                       "data.masking={mean_span: 2}"}),
              HasSubstr("data.masking"));
}

}  // namespace
}  // namespace tercio::config
