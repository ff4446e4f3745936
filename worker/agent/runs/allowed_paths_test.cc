#include "worker/agent/runs/allowed_paths.h"

#include <unistd.h>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::HasSubstr;

class AllowedPathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"data", "data/model", "data-of-others", "secret"}) {
      ASSERT_TRUE(MakeDirectories(Path(name)).ok());
    }
    for (const char* name : {"data/a.txt", "data/set.bin", "data/set.idx", "secret/key"}) {
      ASSERT_TRUE(WriteFileDurably(Path(name), "text").ok());
    }
    const auto made = AllowedPaths::Under({Path("data")});
    ASSERT_TRUE(made.ok()) << made.status();
    allowed_ = *made;
  }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  absl::Status Train(const std::string& path) const {
    v1::JobSpec spec;
    spec.mutable_data()->set_train(path);
    return allowed_.Check(spec);
  }

  TempDir directory_;
  AllowedPaths allowed_;
};

TEST_F(AllowedPathsTest, TakesWhatLiesInARoot) {
  for (const char* name : {"data/a.txt", "data/set", "data/*.txt", "data/missing.txt", "data"}) {
    EXPECT_TRUE(Train(Path(name)).ok()) << name;
  }
}

TEST_F(AllowedPathsTest, RefusesWhatLiesOutsideInTheSameWords) {
  for (const char* name :
       {"secret/key", "secret/missing", "data-of-others/x", "data/../secret/key"}) {
    const absl::Status status = Train(Path(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << name;
    EXPECT_EQ(status.message(), "data.train: " + Path(name) +
                                    " is outside the directories that jobs may read on this node "
                                    "(--data-root of its agent)");
  }
}

TEST_F(AllowedPathsTest, FollowsLinks) {
  ASSERT_EQ(symlink(Path("secret/key").c_str(), Path("data/link.txt").c_str()), 0);
  ASSERT_EQ(symlink(Path("secret").c_str(), Path("data/folder").c_str()), 0);
  ASSERT_EQ(symlink(Path("secret/key").c_str(), Path("data/tricky.bin").c_str()), 0);
  for (const char* name : {"data/link.txt", "data/folder/key", "data/tricky", "data/*.txt"}) {
    EXPECT_FALSE(Train(Path(name)).ok()) << name;
  }
  EXPECT_TRUE(Train(Path("data/a.txt")).ok());
}

TEST_F(AllowedPathsTest, EveryKeyThatNamesAPathIsChecked) {
  const std::string outside = Path("secret/key");
  v1::JobSpec validation;
  validation.mutable_data()->set_validation_path(outside);
  v1::JobSpec blend;
  blend.mutable_data()->add_train_blend()->add_paths(outside);
  v1::JobSpec validation_blend;
  validation_blend.mutable_data()->add_validation_blend()->add_paths(outside);
  v1::JobSpec test;
  test.mutable_data()->set_test_path(outside);
  v1::JobSpec test_parts;
  test_parts.mutable_data()->set_test_path(Path("data/a.txt"));
  test_parts.mutable_data()->add_test_more_paths(outside);
  v1::JobSpec tokenizer;
  tokenizer.mutable_data()->set_tokenizer(outside);
  v1::JobSpec model;
  model.mutable_model()->set_from(Path("secret"));
  v1::JobSpec logits;
  logits.mutable_training()->mutable_distillation()->set_logits(Path("secret"));
  v1::JobSpec events;
  events.set_tensorboard(Path("secret/not/yet/there"));
  v1::JobSpec checkpoints;
  checkpoints.mutable_checkpoint()->set_path(Path("secret/not/yet/there"));
  for (const auto& [spec, key] :
       {std::pair{validation, "data.validation"}, std::pair{blend, "data.train"},
        std::pair{validation_blend, "data.validation"}, std::pair{tokenizer, "data.tokenizer"},
        std::pair{test, "data.test"}, std::pair{test_parts, "data.test"},
        std::pair{model, "model.from"}, std::pair{logits, "training.distillation.logits"},
        std::pair{events, "tensorboard"}, std::pair{checkpoints, "checkpoint.path"}}) {
    EXPECT_THAT(std::string(allowed_.Check(spec).message()), HasSubstr(key));
  }
}

TEST_F(AllowedPathsTest, EventsOfTensorBoardMayBeWrittenInside) {
  v1::JobSpec spec;
  spec.set_tensorboard(Path("data/events/new"));
  EXPECT_TRUE(allowed_.Check(spec).ok());
  ASSERT_EQ(symlink(Path("secret").c_str(), Path("data/out").c_str()), 0);
  spec.set_tensorboard(Path("data/out/new"));
  EXPECT_FALSE(allowed_.Check(spec).ok());
}

TEST_F(AllowedPathsTest, AModelDirectoryMayHoldNoLinkToTheOutside) {
  v1::JobSpec spec;
  spec.mutable_model()->set_from(Path("data/model"));
  EXPECT_TRUE(allowed_.Check(spec).ok());
  ASSERT_EQ(symlink(Path("secret/key").c_str(), Path("data/model/weights").c_str()), 0);
  EXPECT_FALSE(allowed_.Check(spec).ok());
}

TEST_F(AllowedPathsTest, NamesOfTokenizersAreNoPaths) {
  v1::JobSpec spec;
  spec.mutable_data()->set_tokenizer("chars");
  EXPECT_TRUE(allowed_.Check(spec).ok());
}

// A word that is no tokenizer's name is a path, from where the agent stands.
TEST_F(AllowedPathsTest, ASingleWordIsAPath) {
  v1::JobSpec spec;
  for (const char* word : {"..", ".", "secret"}) {
    spec.mutable_data()->set_tokenizer(word);
    EXPECT_TRUE(absl::IsPermissionDenied(allowed_.Check(spec))) << word;
  }
}

TEST_F(AllowedPathsTest, WithoutRootsNothingWithoutBoundsAnything) {
  const auto none = AllowedPaths::Under({});
  ASSERT_TRUE(none.ok());
  v1::JobSpec spec;
  spec.mutable_data()->set_train(Path("data/a.txt"));
  EXPECT_FALSE(none->Check(spec).ok());
  EXPECT_TRUE(AllowedPaths().Check(spec).ok());
  EXPECT_FALSE(AllowedPaths::Under({Path("missing")}).ok());
}

}  // namespace
}  // namespace tercio::agent
