// Frozen bits: losses, gradient norms and the digest of all weights and moments after three steps,
// of twelve models in six layouts each, are those that are committed in frozen.tsv. parity_test
// compares layouts with each other, golden_test allows what another library rounds otherwise; this
// test finds a change of arithmetic that both miss.
//
// A change of definition is made in a commit of its own, which renews the file:
//   bazel run //tests/parity:frozen_test -- --write > tests/parity/frozen.tsv
#include <bit>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

struct Model {
  const char* name;
  v1::JobSpec spec;
};

// A small job with one change.
v1::JobSpec With(v1::JobSpec spec, const std::function<void(v1::JobSpec&)>& change) {
  change(spec);
  return spec;
}

std::vector<Model> Models() {
  const auto precision = [](v1::Precision format) {
    return [format](v1::JobSpec& spec) { spec.mutable_training()->set_precision(format); };
  };
  return {
      {"gpt2", SmallJob()},
      {"gpt2-bf16", With(SmallJob(), precision(v1::PRECISION_BF16))},
      {"gpt2-fp16", With(SmallJob(), precision(v1::PRECISION_FP16))},
      {"gpt2-untied", With(SmallJob(),
                           [](v1::JobSpec& spec) {
                             spec.mutable_model()->set_untied_head(true);
                             spec.mutable_model()->set_bias(false);
                             spec.mutable_model()->set_dropout(0);
                             spec.mutable_training()->set_label_smoothing(0.1);
                           })},
      {"llama", SmallLlama()},
      {"llama-bf16", With(SmallLlama(), precision(v1::PRECISION_BF16))},
      {"llama-tied",
       With(SmallLlama(), [](v1::JobSpec& spec) { spec.mutable_model()->set_untied_head(false); })},
      {"bert-post-norm", SmallBert(kPost)},
      {"bert-pre-norm", SmallBert(kPre)},
      {"bert-classifier", SmallClassifier()},
      {"t5", SmallT5()},
      {"t5-gated-bf16", With(SmallT5(),
                             [](v1::JobSpec& spec) {
                               spec.mutable_model()->set_gated_mlp(true);
                               spec.mutable_model()->set_untied_head(true);
                               spec.mutable_training()->set_precision(v1::PRECISION_BF16);
                             })},
  };
}

struct Layout {
  const char* name;
  int tensor, pipeline, data;
  int64_t micro_batch;
  std::function<void(v1::ParallelismSpec&)> options;
};

std::vector<Layout> Layouts() {
  return {
      {"1x1x1", 1, 1, 1, 8, [](v1::ParallelismSpec&) {}},
      {"1x1x1 in single sequences, recompute full", 1, 1, 1, 1,
       [](v1::ParallelismSpec& p) { p.set_recompute(kFull); }},
      {"1x2x2 1f1b", 1, 2, 2, 2, [](v1::ParallelismSpec& p) { p.set_schedule(k1f1b); }},
      {"2x1x1", 2, 1, 1, 4, [](v1::ParallelismSpec&) {}},
      {"2x1x2 sequence-parallel, recompute selective", 2, 1, 2, 2,
       [](v1::ParallelismSpec& p) {
         p.set_sequence_parallel(true);
         p.set_recompute(kSelective);
       }},
      {"2x2x2 interleaved", 2, 2, 2, 1,
       [](v1::ParallelismSpec& p) {
         p.set_schedule(kInterleaved);
         p.set_virtual_pipeline(2);
       }},
  };
}

v1::JobSpec In(const Layout& layout, v1::JobSpec spec) {
  v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
  parallelism->set_tensor(layout.tensor);
  parallelism->set_pipeline(layout.pipeline);
  parallelism->set_data(layout.data);
  layout.options(*parallelism);
  spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
  spec.mutable_training()->set_micro_batch(layout.micro_batch);
  return spec;
}

// FNV-1a over names and bits of all tensors, in the order of their names.
uint64_t DigestOf(const std::map<std::string, std::vector<float>>& state) {
  uint64_t digest = 0xcbf29ce484222325u;
  const auto add = [&digest](uint64_t value) { digest = (digest ^ value) * 0x100000001b3u; };
  for (const auto& [name, values] : state) {
    for (const char letter : name) add(static_cast<unsigned char>(letter));
    for (const float value : values) add(std::bit_cast<uint32_t>(value));
  }
  return digest;
}

// One line of the file.
std::string Line(const Model& model, const Layout& layout) {
  const absl::StatusOr<RunResult> result = TrainWithThreads(In(layout, model.spec), {.steps = 3});
  EXPECT_TRUE(result.ok()) << model.name << " " << layout.name << ": " << result.status();
  if (!result.ok()) return "";
  std::vector<std::string> fields = {model.name, layout.name};
  // In hexadecimal, which has no rounding.
  for (const engine::StepResult& step : result->steps) {
    fields.push_back(absl::StrFormat("%a", step.loss));
    fields.push_back(absl::StrFormat("%a", step.grad_norm));
  }
  fields.push_back(absl::StrFormat("%016x", DigestOf(result->state)));
  return absl::StrJoin(fields, "\t");
}

std::vector<std::string> Lines() {
  std::vector<std::string> lines;
  for (const Model& model : Models()) {
    for (const Layout& layout : Layouts()) lines.push_back(Line(model, layout));
  }
  return lines;
}

TEST(FrozenBits, AreThoseOfTheFile) {
  std::ifstream file("tests/parity/frozen.tsv");
  std::string header;
  ASSERT_TRUE(std::getline(file, header));
  for (const std::string& line : Lines()) {
    std::string frozen;
    ASSERT_TRUE(std::getline(file, frozen)) << "no line for " << line;
    EXPECT_EQ(line, frozen);
  }
  std::string more;
  EXPECT_FALSE(std::getline(file, more)) << "a line that no model has: " << more;
}

}  // namespace

void WriteFrozenBits() {
  std::printf("model\tlayout\tloss 1\tnorm 1\tloss 2\tnorm 2\tloss 3\tnorm 3\tstate\n");
  for (const std::string& line : Lines()) std::printf("%s\n", line.c_str());
}

}  // namespace tercio::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "--write") {
    tercio::testing::WriteFrozenBits();
    return 0;
  }
  return RUN_ALL_TESTS();
}
