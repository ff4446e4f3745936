// The key of quantised weights (model.base_format) in job files.
#include <string>
#include <vector>

#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::HasSubstr;

constexpr char kBaseJob[] = R"(name: small
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

absl::StatusOr<v1::JobSpec> ParseBase(const std::string& text,
                                      const std::vector<std::string>& overrides = {}) {
  return ParseJobText(text, "job.yaml", "/where", overrides);
}

std::string BaseFaultOf(const std::string& text, const std::vector<std::string>& overrides) {
  const auto spec = ParseBase(text, overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(BaseFormatKeys, QuantizedWeightsAreFrozenMatricesOfWholeBlocks) {
  const std::vector<std::string> good = {"model.hidden=128", "model.ffn_hidden=256",
                                         "training.frozen=[layers.*.weight]",
                                         "model.base_format=int8"};
  const auto with = [&](const std::string& change) {
    std::vector<std::string> changes = good;
    changes.push_back(change);
    return changes;
  };
  const auto spec = ParseBase(kBaseJob, good);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().base_format(), v1::BASE_FORMAT_INT8);
  const auto again = ParseBase(EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString());
  const auto none = ParseBase(kBaseJob, with("model.base_format=none"));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->model().base_format(), v1::BASE_FORMAT_UNSPECIFIED);
  EXPECT_THAT(BaseFaultOf(kBaseJob, with("model.base_format=fp4")), HasSubstr("model.base_format"));
  EXPECT_THAT(BaseFaultOf(kBaseJob, with("training.frozen=[embedding.*]")),
              HasSubstr("model.base_format: it is what frozen matrices"));
  EXPECT_THAT(BaseFaultOf(kBaseJob, with("model.ffn_hidden=200")),
              HasSubstr("has 200 columns, and a block 64"));
}

}  // namespace
}  // namespace tercio::config
