#include "cli/commands/kept_figures.h"

#include <string>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner/cost/measured.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

const MachineIdentity kHere = {"Processor X", 8};
const absl::Time kNoon = absl::FromUnixSeconds(1'795'867'200);  // 2026-11-28

class KeptFiguresTest : public ::testing::Test {
 protected:
  // Figures that no other machine has.
  static v1::MachineFigures Measured() {
    v1::MachineFigures figures = plan::cost::AssumedCpuFigures();
    figures.set_link_seconds(1.25 * figures.link_seconds());
    return figures;
  }

  const TempDir directory_;
  // In a directory that nobody has made yet.
  const std::string path_ = FiguresPath(directory_.path() + "/tercio", FiguresOf::kCpus);
};

TEST_F(KeptFiguresTest, AreFoundOnTheMachineThatTheyAreOf) {
  ASSERT_TRUE(KeepFigures(path_, kHere, kNoon, Measured()).ok());
  const KeptFigures kept = FindFigures(path_, kHere);
  EXPECT_EQ(kept.figures.SerializeAsString(), Measured().SerializeAsString());
  EXPECT_EQ(kept.notice,
            "predictions use what was measured on this machine on 2026-11-28 (" + path_ + ")");
}

TEST_F(KeptFiguresTest, OfAnotherMachineAreIgnored) {
  ASSERT_TRUE(KeepFigures(path_, kHere, kNoon, Measured()).ok());
  for (const MachineIdentity& other :
       {MachineIdentity{"Processor Y", 8}, MachineIdentity{"Processor X", 4}}) {
    const KeptFigures kept = FindFigures(path_, other);
    EXPECT_TRUE(kept.figures.products().empty());
    EXPECT_THAT(kept.notice, HasSubstr("speeds are assumed: it was measured on 8 x Processor X"));
    EXPECT_THAT(kept.notice, HasSubstr(other.model));
    EXPECT_THAT(kept.notice, HasSubstr("tercio doctor --measure"));
  }
}

TEST_F(KeptFiguresTest, WithoutAFileThereIsNothingToReport) {
  const KeptFigures kept = FindFigures(path_, kHere);
  EXPECT_TRUE(kept.figures.products().empty());
  EXPECT_EQ(kept.notice, "");
}

TEST_F(KeptFiguresTest, ADamagedFileIsIgnored) {
  ASSERT_TRUE(KeepFigures(path_, kHere, kNoon, Measured()).ok());
  const std::string whole = *ReadFile(path_);
  v1::MachineFigures slow = Measured();
  slow.set_norm_bytes_per_second(-1);
  ASSERT_TRUE(KeepFigures(path_, kHere, kNoon, slow).ok());
  const std::string negative = *ReadFile(path_);
  for (const std::string& text :
       {std::string(), std::string("[1]"), std::string("{}"), whole.substr(0, whole.size() / 2),
        std::string(R"({"machine": 1, "count": 8, "measured": "", "figures": {}})"), negative}) {
    ASSERT_TRUE(WriteFileDurably(path_, text).ok());
    const KeptFigures kept = FindFigures(path_, kHere);
    EXPECT_TRUE(kept.figures.products().empty()) << text;
    EXPECT_THAT(kept.notice, HasSubstr(path_ + " is not used")) << text;
  }
  // The test's own text is one that counts.
  ASSERT_TRUE(WriteFileDurably(path_, whole).ok());
  EXPECT_FALSE(FindFigures(path_, kHere).figures.products().empty());
}

TEST(KeptFigures, OfCpusAndGpusAreApart) {
  EXPECT_NE(FiguresPath("d", FiguresOf::kCpus), FiguresPath("d", FiguresOf::kGpus));
  Gpus gpus;
  gpus.list.resize(3);
  gpus.list[1].model = "NVIDIA H200";  // the first one is lost
  EXPECT_EQ(IdentityOfGpus(gpus), (MachineIdentity{"NVIDIA H200", 3}));
}

}  // namespace
}  // namespace tercio::cli
