// What is refused: checkpoints that are incomplete, damaged, of two trainings, or of models that
// Tercio lacks. Each message names the file and the tensor or argument.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/import.h"
#include "checkpoint/megatron/testing/megatron_files.h"
#include "checkpoint/megatron/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFolder[] = "/iter_0000007";

using Ranks = std::vector<TestRank>;

class MegatronDamage : public ::testing::Test {
 protected:
  // The refusal of a checkpoint after a change; "" when it is accepted.
  std::string Fault(const std::string& model, const TestCut& cut,
                    const std::function<void(Ranks*)>& change, absl::StatusCode code) {
    path_ = absl::StrCat(dir_.path(), "/", ++count_);
    Ranks ranks = CutAsMegatron(*MadeUpWeights(SharedModels().at(model)), cut);
    change(&ranks);
    WriteTestCheckpoint(ranks, path_);
    return FaultHere(code);
  }

  std::string FaultHere(absl::StatusCode code) {
    const auto opened = OpenWeightSource(path_, DigestCheck::kEveryByte);
    EXPECT_EQ(opened.status().code(), code) << opened.status();
    if (code == absl::StatusCode::kOk) return "";
    // Nothing is written of what is not good.
    EXPECT_EQ(ImportMegatron(path_, path_ + ".imported").status().code(), code);
    EXPECT_FALSE(PathExists(path_ + ".imported"));
    return std::string(opened.status().message());
  }

  // The fault of an argument that all ranks have.
  std::string ArgumentFault(const std::string& model, const std::string& name,
                            const TorchValue& value,
                            absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    std::string fault = Fault(
        model, {}, [&](Ranks* ranks) { (*ranks)[0].arg(name) = value; }, code);
    // The job file's reader, which sees no weights, says the same.
    EXPECT_EQ(DescribeModel(path_).status().message(), fault) << name;
    return fault;
  }

  const TempDir dir_;
  std::string path_;
  int count_ = 0;
};

// ---- ranks ----

TEST_F(MegatronDamage, MissingRanksAreNamed) {
  const auto remove = [](size_t index) {
    return [index](Ranks* ranks) {
      ranks->erase(ranks->begin() + static_cast<std::ptrdiff_t>(index));
    };
  };
  const TestCut cut{.tensor = 2, .pipeline = 2};
  EXPECT_THAT(Fault("gpt", cut, remove(1), absl::StatusCode::kDataLoss),
              AllOf(HasSubstr(kFolder), HasSubstr("mp_rank_01_000 has no model_optim_rng.pt")));
  // With a whole stage missing the names alone are those of a smaller checkpoint.
  const auto stage = [](Ranks* ranks) { ranks->resize(2); };
  EXPECT_THAT(Fault("gpt", cut, stage, absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("args.pipeline_model_parallel_size is 2"),
                    HasSubstr("copy the files of all ranks")));
  EXPECT_THAT(Fault("gpt", {.version = 1, .tensor = 2, .names = TestNames::kOldest}, remove(1),
                    absl::StatusCode::kDataLoss),
              HasSubstr("args.tensor_model_parallel_size is 2"));
  const auto far = [](Ranks* ranks) { (*ranks)[1].folder = "mp_rank_65000"; };
  EXPECT_THAT(Fault("gpt", {.tensor = 2}, far, absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("mp_rank_01, mp_rank_02, mp_rank_03 and 64996 more have no")));
  const auto mixed = [](Ranks* ranks) { (*ranks)[1].folder = "mp_rank_00_001"; };
  EXPECT_THAT(Fault("gpt", {.tensor = 2}, mixed, absl::StatusCode::kDataLoss),
              HasSubstr("with and without a pipeline stage"));
  EXPECT_THAT(Fault(
                  "gpt", {}, [](Ranks* ranks) { (*ranks)[0].folder = "mp_rank_00_000_001"; },
                  absl::StatusCode::kInvalidArgument),
              HasSubstr("expert parallelism"));
}

TEST_F(MegatronDamage, RanksOfTwoTrainings) {
  const TestCut cut{.tensor = 2};
  const auto last = [&](const std::function<void(TestRank*)>& change) {
    return Fault(
        "gpt", cut, [&](Ranks* ranks) { change(&ranks->back()); }, absl::StatusCode::kDataLoss);
  };
  EXPECT_THAT(last([](TestRank* rank) { rank->iteration = 8; }),
              AllOf(HasSubstr("mp_rank_01"), HasSubstr("iteration is 8, but 7")));
  EXPECT_THAT(last([](TestRank* rank) { rank->version = 2; }),
              HasSubstr("checkpoint_version is 2, but 3"));
  EXPECT_THAT(last([](TestRank* rank) { rank->arg("num_attention_heads") = {int64_t{2}}; }),
              HasSubstr("args.num_attention_heads is 2, but 4"));
  EXPECT_THAT(last([](TestRank* rank) { rank->args.clear(); }), HasSubstr("'args' is missing"));
  EXPECT_THAT(last([](TestRank* rank) { rank->chunks.push_back(rank->chunks[0]); }),
              HasSubstr("has 2 virtual pipeline stages"));
}

TEST_F(MegatronDamage, FilesThatAreNoCheckpoint) {
  Fault(
      "gpt", {}, [](Ranks*) {}, absl::StatusCode::kOk);
  const std::string file = path_ + kFolder + "/mp_rank_00/model_optim_rng.pt";
  const std::string good = *ReadFile(file);
  // Whatever is cut off, the file is named.
  for (const size_t size : {size_t{0}, size_t{10}, good.size() / 2, good.size() - 1}) {
    ASSERT_TRUE(WriteFileDurably(file, good.substr(0, size)).ok());
    const auto opened = OpenWeightSource(path_, DigestCheck::kNone);
    EXPECT_FALSE(opened.ok()) << size;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(file)) << size;
  }
  ASSERT_TRUE(RemoveTree(file).ok());
  EXPECT_THAT(FaultHere(absl::StatusCode::kDataLoss),
              HasSubstr("no rank has a file model_optim_rng.pt"));
  const std::string iteration = path_ + "/latest_checkpointed_iteration.txt";
  for (const char* text : {"", "-3", "../../etc", "7x"}) {
    ASSERT_TRUE(WriteFileDurably(iteration, text).ok());
    EXPECT_THAT(FaultHere(absl::StatusCode::kDataLoss),
                AllOf(HasSubstr(iteration), HasSubstr("neither an iteration nor 'release'")));
  }
  ASSERT_TRUE(WriteFileDurably(iteration, "8").ok());
  EXPECT_THAT(FaultHere(absl::StatusCode::kDataLoss), HasSubstr("iter_0000008 does not exist"));
}

TEST_F(MegatronDamage, ShardedCheckpointsAreRefusedByName) {
  path_ = dir_.path() + "/sharded";
  const std::string folder = path_ + kFolder;
  ASSERT_TRUE(MakeDirectories(folder).ok());
  for (const char* name : {".metadata", "__0_0.distcp", "common.pt", "metadata.json"}) {
    ASSERT_TRUE(WriteFileDurably(absl::StrCat(folder, "/", name), "{}").ok());
  }
  EXPECT_THAT(FaultHere(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("torch_dist"), HasSubstr("--ckpt-convert-format torch")));
  ASSERT_TRUE(WriteFileDurably(path_ + "/latest_checkpointed_iteration.txt", "7").ok());
  EXPECT_THAT(FaultHere(absl::StatusCode::kInvalidArgument), HasSubstr("torch_dist"));
  path_ = folder;
  EXPECT_THAT(FaultHere(absl::StatusCode::kInvalidArgument), HasSubstr("torch_dist"));
}

TEST_F(MegatronDamage, SeveralIterationsNeedTheirFile) {
  Fault(
      "gpt", {}, [](Ranks*) {}, absl::StatusCode::kOk);
  ASSERT_TRUE(RenamePath(path_ + kFolder, path_ + "/iter_0000001").ok());
  WriteTestCheckpoint(CutAsMegatron(*MadeUpWeights(SharedModels().at("gpt")), {}), path_);
  ASSERT_TRUE(RemoveTree(path_ + "/latest_checkpointed_iteration.txt").ok());
  EXPECT_THAT(FaultHere(absl::StatusCode::kNotFound),
              AllOf(HasSubstr("iter_0000001"), HasSubstr("iter_0000007"), HasSubstr("name one")));
}

// ---- tensors ----

TEST_F(MegatronDamage, TensorsAreNamed) {
  const TestCut cut{.tensor = 2, .pipeline = 2};
  const auto damaged = [&](const std::function<void(Ranks*)>& change) {
    return Fault("bert", cut, change, absl::StatusCode::kDataLoss);
  };
  const std::string layer = "language_model/encoder/layers.1.";
  EXPECT_THAT(
      damaged([&](Ranks* ranks) { (*ranks)[3].chunks[0].erase(layer + "mlp.dense_h_to_4h.bias"); }),
      AllOf(HasSubstr("mp_rank_01_001/model_optim_rng.pt"),
            HasSubstr("tensor layers.1.mlp.dense_h_to_4h.bias is missing")));
  EXPECT_THAT(damaged([&](Ranks* ranks) {
                (*ranks)[1].chunks[0][layer + "self_attention.dense.weight"].shape = {8, 16};
              }),
              AllOf(HasSubstr("mp_rank_01_000"), HasSubstr("self_attention.dense.weight has shape "
                                                           "[8, 16], the arguments give [16, 8]")));
  EXPECT_THAT(
      damaged([&](Ranks* ranks) {
        (*ranks)[0].chunks[0][layer + "mlp.router.weight"] = {{1}, {0}};
      }),
      AllOf(HasSubstr("mp_rank_00_000"), HasSubstr("mlp.router.weight does not belong to")));
  EXPECT_THAT(damaged([&](Ranks* ranks) {
                (*ranks)[2].chunks[0]["word_embeddings_for_head/weight"].values[5] += 1;
              }),
              AllOf(HasSubstr("mp_rank_00_001"), HasSubstr("the head is tied, but "
                                                           "word_embeddings_for_head.weight")));
  // A tensor under two names of different ages.
  EXPECT_THAT(damaged([&](Ranks* ranks) {
                auto& chunk = (*ranks)[0].chunks[0];
                chunk[layer + "input_norm.weight"] = chunk[layer + "input_layernorm.weight"];
              }),
              HasSubstr("are the same tensor"));
  // All faults are counted, and a few of them told.
  EXPECT_THAT(damaged([&](Ranks* ranks) { (*ranks)[3].chunks[0].clear(); }), HasSubstr("more"));
}

TEST_F(MegatronDamage, LayersThatTheArgumentsDoNotHave) {
  EXPECT_THAT(Fault(
                  "gpt", {.pipeline = 2},
                  [](Ranks* ranks) {
                    for (TestRank& rank : *ranks) rank.arg("num_layers") = {int64_t{5}};
                  },
                  absl::StatusCode::kDataLoss),
              HasSubstr("the files hold 4 layers, but args.num_layers is 5"));
  // A number is not taken for a size before there are so many tensors.
  EXPECT_THAT(
      Fault(
          "gpt", {},
          [](Ranks* ranks) {
            (*ranks)[0].chunks[0]["language_model/encoder/layers.2000000000.x"] = {{1}, {0}};
          },
          absl::StatusCode::kDataLoss),
      HasSubstr("names 2000000001 layers"));
}

TEST_F(MegatronDamage, WhatLiesBesideTensors) {
  // State without weights is passed over, anything else is not.
  Fault(
      "gpt", {.names = TestNames::kCore},
      [](Ranks* ranks) {
        (*ranks)[0].chunks[0]["decoder.layers.0.self_attention.linear_qkv._extra_state"] = {{1},
                                                                                            {0}};
      },
      absl::StatusCode::kOk);
  EXPECT_THAT(Fault(
                  "gpt", {}, [](Ranks* ranks) { (*ranks)[0].version = 4; },
                  absl::StatusCode::kInvalidArgument),
              HasSubstr("checkpoint_version 4 is not supported"));
  EXPECT_THAT(Fault(
                  "gpt", {}, [](Ranks* ranks) { (*ranks)[0].version = 1.5; },
                  absl::StatusCode::kInvalidArgument),
              HasSubstr("checkpoint_version 1.5"));
  EXPECT_THAT(
      Fault(
          "gpt", {}, [](Ranks* ranks) { (*ranks)[0].chunks.clear(); }, absl::StatusCode::kDataLoss),
      HasSubstr("has no 'model'"));
  EXPECT_THAT(Fault(
                  "gpt", {}, [](Ranks* ranks) { (*ranks)[0].args.clear(); },
                  absl::StatusCode::kInvalidArgument),
              HasSubstr("holds no 'args', so the number of heads is not known"));
}

// ---- arguments ----

TEST_F(MegatronDamage, ModelsThatTercioLacksAreRefusedByTheirArgument) {
  const TorchValue yes{true};
  const TorchValue no{false};
  const TorchValue one{int64_t{1}};
  const auto text = [](const char* value) { return TorchValue{std::string(value)}; };
  const struct {
    const char* model;
    const char* name;
    TorchValue value;
    const char* said;
  } cases[] = {
      {"gpt", "num_experts", {int64_t{8}}, "num_experts: 8"},
      {"gpt", "apply_residual_connection_post_layernorm", yes,
       "apply_residual_connection_post_layernorm: True"},
      {"bert", "apply_residual_connection_post_layernorm", yes,
       "apply_residual_connection_post_layernorm: True"},
      {"gpt", "squared_relu", yes, "squared_relu: True"},
      {"gpt", "apply_layernorm_1p", yes, "apply_layernorm_1p: True"},
      {"gpt", "qk_layernorm", yes, "qk_layernorm: True"},
      {"gpt", "mtp_num_layers", one, "mtp_num_layers: 1"},
      {"gpt", "normalization", text("RMSNorm"), "normalization: RMSNorm"},
      {"gpt", "swiglu", yes, "swiglu: True"},
      {"gpt", "add_bias_linear", no, "add_bias_linear: False"},
      {"gpt", "position_embedding_type", text("none"), "position_embedding_type: none"},
      {"gpt", "add_position_embedding", no, "add_position_embedding: False"},
      {"gpt", "attention_head_type", text("multiquery"), "attention_head_type: multiquery"},
      {"gpt", "expert_model_parallel_size", {int64_t{2}}, "expert_model_parallel_size: 2"},
      {"gpt", "kv_channels", {int64_t{8}}, "kv_channels: 8"},
      {"llama", "rotary_percent", {0.5}, "rotary_percent: 0.5"},
      {"llama", "rotary_interleaved", yes, "rotary_interleaved: True"},
      {"llama",
       "rotary_seq_len_interpolation_factor",
       {int64_t{4}},
       "rotary_seq_len_interpolation_factor: 4"},
      {"llama", "swiglu", no, "swiglu: False with rotary positions"},
      {"llama", "normalization", text("LayerNorm"), "normalization: LayerNorm"},
      {"llama", "add_bias_linear", yes, "add_bias_linear: True"},
      {"llama", "add_qkv_bias", yes, "add_qkv_bias: True"},
      {"bert", "position_embedding_type", text("rope"), "position_embedding_type: rope in a BERT"},
      {"bert", "swiglu", yes, "swiglu: True in a BERT"},
      {"bert", "untie_embeddings_and_output_weights", yes, "untie_embeddings_and_output_weights"},
  };
  for (const auto& [model, name, value, said] : cases) {
    const std::string fault = ArgumentFault(model, name, value);
    EXPECT_THAT(fault, AllOf(HasSubstr(path_), HasSubstr(said), HasSubstr("is not supported")));
  }
}

TEST_F(MegatronDamage, ArgumentsThatCannotBe) {
  const auto damage = absl::StatusCode::kDataLoss;
  EXPECT_THAT(ArgumentFault("gpt", "num_layers", {}, damage),
              HasSubstr("args.num_layers is missing"));
  EXPECT_THAT(ArgumentFault("gpt", "hidden_size", {int64_t{0}}, damage),
              HasSubstr("args.hidden_size is 0, expected a whole number from 1"));
  EXPECT_THAT(ArgumentFault("gpt", "hidden_size", {int64_t{1} << 40}, damage),
              HasSubstr("args.hidden_size is 1099511627776"));
  EXPECT_THAT(ArgumentFault("gpt", "num_attention_heads", {std::string("four\n")}, damage),
              HasSubstr("args.num_attention_heads is 'four\\n'"));
  EXPECT_THAT(ArgumentFault("gpt", "num_attention_heads", {int64_t{3}}, damage),
              HasSubstr("args.hidden_size 16 is not a multiple of 3 heads"));
  EXPECT_THAT(ArgumentFault("llama", "num_query_groups", {int64_t{3}}, damage),
              HasSubstr("args.num_query_groups 3 does not divide the 4 heads"));
  EXPECT_THAT(ArgumentFault("gpt", "swiglu", {1.5}, damage), HasSubstr("args.swiglu is 1.5"));
  EXPECT_THAT(ArgumentFault("gpt", "layernorm_epsilon", {-1.0}, damage),
              HasSubstr("args.layernorm_epsilon is -1"));
  EXPECT_THAT(ArgumentFault("gpt", "vocab_size", {int64_t{25}}, damage),
              HasSubstr("args.vocab_size has 25 token ids, but the table has only 24 rows"));
  EXPECT_THAT(ArgumentFault("gpt", "max_position_embeddings", {}, damage),
              HasSubstr("args.max_position_embeddings is missing"));
  // All of them are told at once.
  const std::string both = Fault(
      "gpt", {},
      [](Ranks* ranks) {
        (*ranks)[0].arg("num_layers") = {};
        (*ranks)[0].arg("squared_relu") = {true};
      },
      damage);
  EXPECT_THAT(both,
              AllOf(HasSubstr("args.num_layers is missing"), HasSubstr("squared_relu: True")));
}

TEST_F(MegatronDamage, GroupsNeedTheOrderOfVersionTwo) {
  EXPECT_THAT(Fault(
                  "gpt with groups and a head", {}, [](Ranks* ranks) { (*ranks)[0].version = 1; },
                  absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr(kFolder), HasSubstr("checkpoint_version 2")));
}

TEST_F(MegatronDamage, ADegreeThatDoesNotDivideTheHeads) {
  EXPECT_THAT(Fault(
                  "llama", {.tensor = 2},
                  [](Ranks* ranks) {
                    for (TestRank& rank : *ranks) rank.arg("num_query_groups") = {int64_t{1}};
                  },
                  absl::StatusCode::kInvalidArgument),
              HasSubstr("a tensor degree of 2 does not divide the model's 1 kv_heads"));
}

TEST_F(MegatronDamage, ABertWithoutTokenTypes) {
  EXPECT_THAT(
      Fault(
          "bert", {},
          [](Ranks* ranks) {
            (*ranks)[0].chunks[0].erase("language_model/embedding/tokentype_embeddings/weight");
          },
          absl::StatusCode::kInvalidArgument),
      HasSubstr("a BERT without token types (bert_binary_head: False)"));
}

}  // namespace
}  // namespace tercio::checkpoint
