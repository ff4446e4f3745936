// Divergences from a teacher on the CPU, and gradients of a distilled loss, beside what TRL and
// PyTorch compute in double precision (tests/distillation/make_distillation_fixtures.py), also of a
// vocabulary that is cut over ranks.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "nlohmann/json.hpp"

namespace tercio::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct LossCase {
  int64_t rows, vocabulary;
  Floats student, teacher;  // (rows, vocabulary)
  std::vector<int32_t> targets;
  float temperature, weight;
  bool reverse;
  reference::Values divergence;  // (rows)
  reference::Values gradient;    // (rows, vocabulary), of the mean over rows
  double loss;
  std::string name;
};

std::vector<LossCase> FixtureCases() {
  std::ifstream file("tests/distillation/fixtures/losses.json");
  std::vector<LossCase> cases;
  for (const nlohmann::json& each : nlohmann::json::parse(file)) {
    cases.push_back({each["rows"], each["vocabulary"], each["student"], each["teacher"],
                     each["targets"], each["temperature"], each["weight"], each["reverse"],
                     each["divergence"], each["gradient"], each["loss"],
                     "case " + std::to_string(cases.size())});
  }
  return cases;
}

struct LossRun {
  Floats divergence;  // (rows)
  Floats gradient;    // (rows, vocabulary)
  double loss = 0;
};

// One rank's part of a row-major matrix, with two columns of padding.
Floats PartOf(const Floats& whole, int64_t rows, int64_t begin, int64_t valid) {
  const auto columns = static_cast<int64_t>(whole.size()) / rows;
  Floats part(static_cast<size_t>(rows * (valid + 2)), 99.0f);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(whole.begin() + r * columns + begin, valid, part.begin() + r * (valid + 2));
  }
  return part;
}

class DistillationTest : public CpuOpsTest {
 protected:
  // What ranks know of each row before its gradient.
  struct Known {
    Floats lse, student_lse, teacher_lse, loss;  // (rows) each
  };
  // The columns of a rank, of a vocabulary that is cut over `ranks`.
  struct Cut {
    int64_t begin, valid;
    int64_t stride() const { return valid + 2; }
  };
  static Cut CutOf(const LossCase& c, int64_t ranks, int64_t rank) {
    const int64_t width = (c.vocabulary + ranks - 1) / ranks;
    return {rank * width, std::clamp<int64_t>(c.vocabulary - rank * width, 0, width)};
  }

  Known Learn(const LossCase& c, int64_t ranks, LossRun* run) {
    const auto rows = static_cast<size_t>(c.rows);
    Floats stats(rows * static_cast<size_t>(ranks * kDistillationStats));
    Floats entropy_stats(rows * static_cast<size_t>(ranks * kCrossEntropyStats));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Cut cut = CutOf(c, ranks, rank);
      const Floats student = PartOf(c.student, c.rows, cut.begin, cut.valid);
      const Floats teacher = PartOf(c.teacher, c.rows, cut.begin, cut.valid);
      ops_->DistillationLocal({.student = student.data(),
                               .teacher = teacher.data(),
                               .stats = stats.data() + rank * c.rows * kDistillationStats,
                               .rows = c.rows,
                               .valid = cut.valid,
                               .stride = cut.stride(),
                               .temperature = c.temperature,
                               .reverse = c.reverse});
      ops_->CrossEntropyLocal({.logits = student.data(),
                               .targets = c.targets.data(),
                               .stats = entropy_stats.data() + rank * c.rows * kCrossEntropyStats,
                               .rows = c.rows,
                               .valid = cut.valid,
                               .stride = cut.stride(),
                               .vocabulary_begin = cut.begin});
    }
    Known known{Floats(rows), Floats(rows), Floats(rows), Floats(rows)};
    run->divergence.resize(rows);
    ops_->CrossEntropyCombine({.stats = entropy_stats.data(),
                               .lse = known.lse.data(),
                               .loss = known.loss.data(),
                               .rows = c.rows,
                               .ranks = ranks});
    ops_->DistillationCombine({.stats = stats.data(),
                               .student_lse = known.student_lse.data(),
                               .teacher_lse = known.teacher_lse.data(),
                               .divergence = run->divergence.data(),
                               .rows = c.rows,
                               .ranks = ranks,
                               .temperature = c.temperature,
                               .reverse = c.reverse});
    return known;
  }

  // (rows, stride): the logits before, their gradients after.
  void Differentiate(const LossCase& c, const Known& known, const LossRun& run, const Cut& cut,
                     Floats* logits) {
    const Floats teacher = PartOf(c.teacher, c.rows, cut.begin, cut.valid);
    ops_->DistillationBackward({.student = logits->data(),
                                .teacher = teacher.data(),
                                .lse = known.lse.data(),
                                .targets = c.targets.data(),
                                .student_lse = known.student_lse.data(),
                                .teacher_lse = known.teacher_lse.data(),
                                .divergence = run.divergence.data(),
                                .rows = c.rows,
                                .valid = cut.valid,
                                .stride = cut.stride(),
                                .vocabulary_begin = cut.begin,
                                .scale = 1.0f / static_cast<float>(c.rows),
                                .weight = c.weight,
                                .temperature = c.temperature,
                                .reverse = c.reverse});
  }

  // The vocabulary is cut over `ranks`, of which the last one may have no column.
  LossRun Run(const LossCase& c, int64_t ranks) {
    LossRun run;
    run.gradient.resize(static_cast<size_t>(c.rows * c.vocabulary));
    const Known known = Learn(c, ranks, &run);
    for (size_t r = 0; r < known.loss.size(); ++r) {
      run.loss += ((1 - c.weight) * known.loss[r] +
                   c.weight * c.temperature * c.temperature * run.divergence[r]) /
                  static_cast<double>(c.rows);
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Cut cut = CutOf(c, ranks, rank);
      Floats gradient = PartOf(c.student, c.rows, cut.begin, cut.valid);
      Differentiate(c, known, run, cut, &gradient);
      for (int64_t r = 0; r < c.rows; ++r) {
        const float* row = gradient.data() + r * cut.stride();
        std::copy_n(row, cut.valid, run.gradient.begin() + r * c.vocabulary + cut.begin);
        EXPECT_EQ(row[cut.valid], 0);
        EXPECT_EQ(row[cut.valid + 1], 0);
      }
    }
    return run;
  }
};

TEST_F(DistillationTest, LossesAndGradientsAreTrls) {
  for (const LossCase& c : FixtureCases()) {
    for (const int64_t ranks : {1, 2, 3}) {
      SCOPED_TRACE(c.name + " on " + std::to_string(ranks));
      const LossRun run = Run(c, ranks);
      ExpectRows(run.divergence, c.divergence, c.rows, 1e-5, "divergence");
      ExpectRows(run.gradient, c.gradient, c.vocabulary, 1e-5, "gradient");
      EXPECT_NEAR(run.loss, c.loss, 1e-5 * c.loss);
    }
  }
}

TEST_F(DistillationTest, ARankMayHaveNoColumnOfTheVocabulary) {
  LossCase c = FixtureCases().front();
  c.vocabulary = 5;
  c.student = Random(c.rows * c.vocabulary);
  c.teacher = Random(c.rows * c.vocabulary);
  for (int32_t& target : c.targets) target %= 5;
  const LossRun one = Run(c, 1);
  const LossRun four = Run(c, 4);  // two columns each: the last one has none
  const LossRun five = Run(c, 5);
  for (size_t r = 0; r < one.divergence.size(); ++r) {
    EXPECT_NEAR(four.divergence[r], one.divergence[r], 1e-6);
    EXPECT_NEAR(five.divergence[r], one.divergence[r], 1e-6);
  }
}

// What the head does to its logits before and after: cap, loss, gradient through the cap.
TEST_F(DistillationTest, GradientsPassASoftCap) {
  const LossCase c = FixtureCases()[1];
  constexpr float kCap = 3;
  LossCase capped = c;
  for (float& logit : capped.student) logit = kCap * std::tanh(logit / kCap);
  Floats gradient = capped.student;
  const LossRun run = Run(capped, 1);
  Floats lse(static_cast<size_t>(c.rows)), student_lse = lse, teacher_lse = lse;
  const auto lse_of = [&](const Floats& logits, int64_t row, double temperature) {
    double sum = 0;
    for (int64_t i = 0; i < c.vocabulary; ++i) {
      sum += std::exp(logits[static_cast<size_t>(row * c.vocabulary + i)] / temperature);
    }
    return static_cast<float>(std::log(sum));
  };
  for (int64_t r = 0; r < c.rows; ++r) {
    lse[static_cast<size_t>(r)] = lse_of(capped.student, r, 1);
    student_lse[static_cast<size_t>(r)] = lse_of(capped.student, r, c.temperature);
    teacher_lse[static_cast<size_t>(r)] = lse_of(c.teacher, r, c.temperature);
  }
  ops_->DistillationBackward({.student = gradient.data(),
                              .teacher = c.teacher.data(),
                              .lse = lse.data(),
                              .targets = c.targets.data(),
                              .student_lse = student_lse.data(),
                              .teacher_lse = teacher_lse.data(),
                              .divergence = run.divergence.data(),
                              .rows = c.rows,
                              .valid = c.vocabulary,
                              .stride = c.vocabulary,
                              .vocabulary_begin = 0,
                              .scale = 1.0f / static_cast<float>(c.rows),
                              .weight = c.weight,
                              .temperature = c.temperature,
                              .reverse = c.reverse,
                              .softcap = kCap});
  reference::Values expected(gradient.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double share = capped.student[i] / kCap;
    expected[i] = run.gradient[i] * (1 - share * share);
  }
  ExpectRows(gradient, expected, c.vocabulary, 1e-5, "gradient");
}

TEST_F(DistillationTest, LogitsThatAreNotThereHaveNoProbability) {
  const std::vector<int32_t> ids = {6, 1, 3, -1, 5, 2};
  const Floats values = {0.5f, 2, -1, 7, 1, 0};
  constexpr int64_t kRows = 2, kPairs = 3;
  for (const int64_t begin : {0, 3}) {
    const int64_t stride = begin == 0 ? 3 : 5;
    Floats out(static_cast<size_t>(kRows * stride), 42.0f);
    ops_->SpreadLogits({.ids = ids.data(),
                        .values = values.data(),
                        .out = out.data(),
                        .rows = kRows,
                        .pairs = kPairs,
                        .stride = stride,
                        .vocabulary_begin = begin});
    const Floats expected =
        begin == 0 ? Floats{kNone, 2, kNone, kNone, kNone, 0}
                   : Floats{-1, kNone, kNone, 0.5f, kNone, kNone, kNone, 1, kNone, kNone};
    EXPECT_EQ(out, expected);
  }
  // Such a teacher is one whose other logits are far below.
  LossCase some = FixtureCases()[1];
  LossCase far = some;
  for (size_t i = 0; i < some.teacher.size(); ++i) {
    if (i % 4 == 0) continue;
    some.teacher[i] = kNone;
    far.teacher[i] = -1e4f;
  }
  for (const int64_t ranks : {1, 3}) {
    const LossRun some_run = Run(some, ranks);
    const LossRun far_run = Run(far, ranks);
    EXPECT_TRUE(std::isfinite(some_run.loss));
    EXPECT_NEAR(some_run.loss, far_run.loss, 1e-6);
    for (size_t i = 0; i < some_run.gradient.size(); ++i) {
      ASSERT_NEAR(some_run.gradient[i], far_run.gradient[i], 1e-6);
    }
  }
}

TEST_F(DistillationTest, NotANumberStaysSo) {
  LossCase c = FixtureCases()[1];
  c.teacher[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Run(c, 1).divergence[0]));
  EXPECT_TRUE(std::isnan(Run(c, 2).gradient[1]));
}

}  // namespace
}  // namespace tercio::kernels
