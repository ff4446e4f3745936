// Divergences from a teacher and their gradients, on the device as on the CPU.
#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

struct Case {
  int64_t rows, valid, stride;
  float temperature, weight;
  bool reverse;
  float softcap = 0;
};

const Case kCases[] = {{1, 1, 3, 1.0f, 1.0f, false},
                       {5, 13, 16, 2.0f, 0.5f, true, 5.0f},
                       {40, 300, 303, 0.7f, 0.9f, false},
                       {3, 9000, 9016, 1.0f, 0.3f, true},
                       {7, 2048, 2048, 4.0f, 0.5f, false, 8.0f}};

class Distillation : public BothBackendsTest {
 protected:
  void CheckCase(Format format, const Case& c) {
    Begin(format, std::to_string(c.rows) + " x " + std::to_string(c.valid));
    const int student = AddValues("student", c.rows * c.stride, c.stride, 2);
    const int teacher = AddValues("teacher", c.rows * c.stride, c.stride, 2);
    const int targets = AddInts("targets", c.rows, 0, static_cast<int32_t>(c.valid) - 1);
    const int entropy = AddFloats("entropy stats", c.rows * kCrossEntropyStats);
    const int lse = AddFloats("lse", c.rows);
    const int loss = AddFloats("loss", c.rows);
    const int stats = AddFloats("stats", c.rows * kDistillationStats, kDistillationStats);
    const int student_lse = AddFloats("student_lse", c.rows);
    const int teacher_lse = AddFloats("teacher_lse", c.rows);
    const int divergence = AddFloats("divergence", c.rows, c.rows);
    Near(1e-4, {student, lse, loss, stats, student_lse, teacher_lse, divergence, entropy});
    Check([&](Ops& ops, const Bound& t) {
      ops.CrossEntropyLocal({.logits = t.values(student),
                             .targets = t.ints(targets),
                             .stats = t.floats(entropy),
                             .rows = c.rows,
                             .valid = c.valid,
                             .stride = c.stride,
                             .vocabulary_begin = 0});
      ops.CrossEntropyCombine({.stats = t.floats(entropy),
                               .lse = t.floats(lse),
                               .loss = t.floats(loss),
                               .rows = c.rows,
                               .ranks = 1});
      ops.DistillationLocal({.student = t.values(student),
                             .teacher = t.values(teacher),
                             .stats = t.floats(stats),
                             .rows = c.rows,
                             .valid = c.valid,
                             .stride = c.stride,
                             .temperature = c.temperature,
                             .reverse = c.reverse});
      ops.DistillationCombine({.stats = t.floats(stats),
                               .student_lse = t.floats(student_lse),
                               .teacher_lse = t.floats(teacher_lse),
                               .divergence = t.floats(divergence),
                               .rows = c.rows,
                               .ranks = 1,
                               .temperature = c.temperature,
                               .reverse = c.reverse});
      ops.DistillationBackward({.student = t.values(student),
                                .teacher = t.values(teacher),
                                .lse = t.floats(lse),
                                .targets = t.ints(targets),
                                .student_lse = t.floats(student_lse),
                                .teacher_lse = t.floats(teacher_lse),
                                .divergence = t.floats(divergence),
                                .rows = c.rows,
                                .valid = c.valid,
                                .stride = c.stride,
                                .vocabulary_begin = 0,
                                .scale = 0.125f,
                                .weight = c.weight,
                                .temperature = c.temperature,
                                .reverse = c.reverse,
                                .softcap = c.softcap});
    });
  }
};

TEST_F(Distillation, LossesAndGradients) {
  for (const Case& c : kCases) CheckCase(Format::kFloat32, c);
  CheckCase(Format::kBfloat16, kCases[2]);
  CheckCase(Format::kFloat16, kCases[4]);
}

TEST_F(Distillation, StatsOfRanksAreJoined) {
  constexpr int64_t kRows = 300, kRanks = 3;
  for (const bool reverse : {false, true}) {
    Begin(Format::kFloat32, reverse ? "reverse" : "forward");
    const int student = AddValues("student", kRanks * kRows * 20, 20, 2);
    const int teacher = AddValues("teacher", kRanks * kRows * 20, 20, 2);
    const int stats = AddFloats("stats", kRanks * kRows * kDistillationStats, kDistillationStats);
    const int student_lse = AddFloats("student_lse", kRows);
    const int teacher_lse = AddFloats("teacher_lse", kRows);
    const int divergence = AddFloats("divergence", kRows, kRows);
    Near(1e-4, {stats, student_lse, teacher_lse, divergence});
    Check([&](Ops& ops, const Bound& t) {
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        const int64_t begin = rank * kRows * 20;
        ops.DistillationLocal({.student = t.values(student) + begin,
                               .teacher = t.values(teacher) + begin,
                               .stats = t.floats(stats) + rank * kRows * kDistillationStats,
                               .rows = kRows,
                               .valid = rank + 1 < kRanks ? 20 : 0,
                               .stride = 20,
                               .temperature = 1.5f,
                               .reverse = reverse});
      }
      ops.DistillationCombine({.stats = t.floats(stats),
                               .student_lse = t.floats(student_lse),
                               .teacher_lse = t.floats(teacher_lse),
                               .divergence = t.floats(divergence),
                               .rows = kRows,
                               .ranks = kRanks,
                               .temperature = 1.5f,
                               .reverse = reverse});
    });
  }
}

TEST_F(Distillation, SomeLogits) {
  for (const Format format : {Format::kFloat32, Format::kBfloat16}) {
    constexpr int64_t kRows = 9, kPairs = 5, kStride = 33;
    Begin(format, "some logits");
    const int ids = AddInts("ids", kRows * kPairs, 0, 9);
    // Ids of a row differ: these grow by ten from pair to pair, beyond the rank's columns as well.
    for (int64_t i = 0; i < kRows * kPairs; ++i) {
      At(ids).data[static_cast<size_t>(i)] += static_cast<double>(10 * (i % kPairs));
    }
    const int values = AddFloats("values", kRows * kPairs);
    const int out = AddValues("out", kRows * kStride, kStride);
    Near(-1, {out});
    Check([&](Ops& ops, const Bound& t) {
      ops.SpreadLogits({.ids = t.ints(ids),
                        .values = t.floats(values),
                        .out = t.values(out),
                        .rows = kRows,
                        .pairs = kPairs,
                        .stride = kStride,
                        .vocabulary_begin = 7});
    });
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
