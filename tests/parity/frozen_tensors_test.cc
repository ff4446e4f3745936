// Jobs that train a part of their tensors (training.frozen). Their losses and gradient norms are
// those of frozen_tensors.tsv, which the engine wrote when it still computed all gradients and left
// out those of frozen tensors only in the norm and the update: what a frozen tensor no longer has
// changes no bit. A change of definition renews the file in a commit of its own:
//   bazel run //tests/parity:frozen_tensors_test -- --write > tests/parity/frozen_tensors.tsv
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

struct PartlyFrozen {
  const char* name;
  v1::JobSpec spec;
  // The bits of those with one tensor rank are the same, and so are those of the others.
  std::vector<Case> layouts;
};

v1::JobSpec Frozen(v1::JobSpec spec, const std::vector<std::string>& patterns,
                   v1::Precision precision = v1::PRECISION_FP32) {
  spec.mutable_training()->mutable_frozen()->Assign(patterns.begin(), patterns.end());
  spec.mutable_training()->set_precision(precision);
  return spec;
}

v1::JobSpec With(v1::JobSpec spec, const std::function<void(v1::JobSpec&)>& change) {
  change(spec);
  return spec;
}

Case Divided(Case c, int zero_stage) {
  c.zero_stage = zero_stage;
  if (zero_stage > 1 && c.data > 1) c.micro_batch = 1;  // a lane has one sequence
  return c;
}

const Case kOneRank = {1, 1, 1, 8, 1, k1f1b};
const Case kStages = {1, 2, 2, 2, 1, k1f1b};
const Case kChunks = {1, 2, 1, 2, 2, kInterleaved, kSelective, 2};
const Case kShards = {1, 1, 4, 1, 1, k1f1b, kFull};
const Case kTensors = {2, 1, 1, 4, 1, k1f1b};
const Case kEverything = {2, 2, 2, 1, 1, k1f1b};

std::vector<PartlyFrozen> Jobs() {
  const auto int8 = [](v1::JobSpec& spec) {
    spec.mutable_training()->set_weight_format(v1::BLOCK_FORMAT_INT8);
  };
  const auto nvme = [](v1::JobSpec& spec) {
    spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
    spec.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  };
  const std::vector<std::string> first_half = {"embedding.*", "layers.0.*", "layers.1.*"};
  const std::vector<std::string> parts = {"layers.*.attention.query.*", "layers.2.mlp.*",
                                          "layers.*.mlp_norm.*", "embedding.position.weight"};
  return {
      {"gpt2, a layer",
       Frozen(SmallJob(), {"layers.1.*"}),
       {kOneRank, kStages, kChunks, Divided(kShards, 1), Divided(kStages, 2), Divided(kStages, 3)}},
      {"gpt2, the first half, bf16",
       Frozen(SmallJob(), first_half, v1::PRECISION_BF16),
       {kOneRank, kStages, kChunks, Divided(kStages, 1), Divided(kShards, 3)}},
      {"gpt2, parts of layers",
       Frozen(SmallJob(), parts),
       {kOneRank, kStages, Divided(kStages, 2), Divided(kShards, 3)}},
      {"gpt2, all but biases, bf16",
       Frozen(SmallJob(), {"*weight"}, v1::PRECISION_BF16),
       {kOneRank, Divided(kStages, 3), Divided(kShards, 2)}},
      {"gpt2, tensor ranks, parts of layers, bf16",
       Frozen(SmallJob(), parts, v1::PRECISION_BF16),
       {kTensors, kEverything, Divided(kEverything, 3)}},
      {"gpt2, sequence parallel, norms",
       Frozen(SmallJob(), {"*norm.*", "layers.3.*"}),
       {{2, 1, 1, 4, 1, k1f1b, kNone, 1, true}, {2, 2, 2, 4, 1, k1f1b, kSelective, 1, true}}},
      {"gpt2, int8 weights, the first half",
       With(Frozen(SmallJob(), first_half, v1::PRECISION_BF16), int8),
       {kOneRank, Divided(kShards, 2), Divided(kStages, 3)}},
      {"llama, a tied head that is frozen",
       With(Frozen(SmallLlama(), {"embedding.*", "layers.0.attention.*"}),
            [](v1::JobSpec& spec) { spec.mutable_model()->set_untied_head(false); }),
       {kOneRank, kStages, Divided(kShards, 1), Divided(kStages, 3)}},
      {"llama, on disk",
       With(Frozen(SmallLlama(), parts, v1::PRECISION_BF16), nvme),
       {Divided(kOneRank, 3), Divided({1, 1, 2, 2, 1, k1f1b}, 3)}},
      {"bert, the head and a norm",
       Frozen(SmallBert(kPre), {"head.*", "pooler.*", "layers.3.attention_norm.*"}),
       {kOneRank, kStages, Divided(kShards, 2)}},
      {"classifier, all but its head",
       Frozen(SmallClassifier(), {"embedding.*", "layers.*"}),
       {kOneRank, kStages, Divided(kShards, 3), Divided(kStages, 1)}},
      {"t5, the encoder",
       Frozen(SmallT5(), {"embedding.*", "layers.0.*", "layers.1.*"}),
       {kOneRank, kStages, Divided(kShards, 3)}},
      {"t5, the decoder, bf16",
       Frozen(SmallT5(), {"layers.2.*", "layers.3.*", "final_norm.*"}, v1::PRECISION_BF16),
       {kOneRank, kStages, Divided(kStages, 2)}},
  };
}

// One line of the file, without its name.
std::string Measured(const RunResult& result) {
  std::vector<std::string> fields;
  // In hexadecimal, which has no rounding.
  for (const engine::StepResult& step : result.steps) {
    fields.push_back(absl::StrFormat("%a", step.loss));
    fields.push_back(absl::StrFormat("%a", step.grad_norm));
  }
  fields.push_back(absl::StrFormat("%a", result.validation_loss));
  return absl::StrJoin(fields, "\t");
}

TEST(FrozenTensors, EveryLayoutHasTheBitsOfTheFile) {
  std::ifstream file("tests/parity/frozen_tensors.tsv");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));  // the header
  for (const PartlyFrozen& job : Jobs()) {
    ASSERT_TRUE(std::getline(file, line)) << "no line for " << job.name;
    for (const Case& layout : job.layouts) {
      SCOPED_TRACE(NameOf(layout));
      const RunResult result = Train(job.spec, layout);
      EXPECT_EQ(absl::StrCat(job.name, "\t", Measured(result)), line);
    }
  }
  EXPECT_FALSE(std::getline(file, line)) << "a line that no job has: " << line;
}

}  // namespace

void WriteLines() {
  std::printf("job\tloss 1\tnorm 1\tloss 2\tnorm 2\tloss 3\tnorm 3\tvalidation\n");
  for (const PartlyFrozen& job : Jobs()) {
    const std::string line = Measured(Train(job.spec, job.layouts.front()));
    std::printf("%s\t%s\n", job.name, line.c_str());
  }
}

}  // namespace tercio::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "--write") {
    tercio::testing::WriteLines();
    return 0;
  }
  return RUN_ALL_TESTS();
}
