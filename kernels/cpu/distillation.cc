// The divergence of two distributions over a vocabulary that may be cut over tensor ranks, and its
// gradient.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/distillation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Finite, so that no difference of two infinities is taken: a row may have only -infinity here.
float BaseOf(float max) { return max == -std::numeric_limits<float>::infinity() ? 0.0f : max; }

void DistillationLocalRows(const DistillationLocalArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const Vector none = hn::Set(d, kNone);
  const Vector cold = hn::Set(d, 1.0f / a.temperature);
  for (int64_t r = begin; r < end; ++r) {
    const float* student = a.student + r * a.stride;
    const float* teacher = a.teacher + r * a.stride;
    float* stats = a.stats + r * kDistillationStats;
    // A rank without valid columns contributes nothing: its maxima are below all others.
    std::fill(stats, stats + kDistillationStats, 0.0f);
    stats[0] = stats[2] = kNone;
    if (a.valid == 0) continue;
    stats[0] = MaxRow(student, a.valid);
    stats[2] = MaxRow(teacher, a.valid);
    const Vector student_max = hn::Set(d, BaseOf(stats[0]));
    const Vector teacher_max = hn::Set(d, BaseOf(stats[2]));
    stats[1] = SumRow(a.valid, [&](auto load) HWY_ATTR {
      return Exp(hn::Mul(hn::Sub(load(student), student_max), cold));
    });
    stats[3] = SumRow(a.valid, [&](auto load) HWY_ATTR {
      return Exp(hn::Mul(hn::Sub(load(teacher), teacher_max), cold));
    });
    stats[4] = SumRow(a.valid, [&](auto load) HWY_ATTR {
      const Vector s = load(student);
      const Vector t = load(teacher);
      if (a.reverse) {
        const Vector q = Exp(hn::Mul(hn::Sub(s, student_max), cold));
        return hn::Mul(q, hn::Mul(hn::Sub(s, t), cold));
      }
      const Vector p = Exp(hn::Mul(hn::Sub(t, teacher_max), cold));
      // What the teacher gives no probability weighs nothing, however unlikely the student has it.
      return hn::IfThenZeroElse(hn::Eq(t, none), hn::Mul(p, hn::Mul(hn::Sub(t, s), cold)));
    });
  }
}

void DistillationBackwardRows(const DistillationBackwardArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  const Vector cold = hn::Set(d, 1.0f / a.temperature);
  const float of_entropy = (1.0f - a.weight) * a.scale;
  const Vector entropy = hn::Set(d, of_entropy);
  // T^2 of the loss, 1 / T of the logits' factor.
  const Vector divergence = hn::Set(d, a.weight * a.temperature * a.scale);
  const bool capped = a.softcap > 0;
  const Vector cap = hn::Set(d, a.softcap);
  for (int64_t r = begin; r < end; ++r) {
    float* student = a.student + r * a.stride;
    const float* teacher = a.teacher + r * a.stride;
    const Vector lse = hn::Set(d, a.lse[r]);
    const Vector student_lse = hn::Set(d, a.student_lse[r]);
    const Vector teacher_lse = hn::Set(d, a.teacher_lse[r]);
    const Vector of_row = hn::Set(d, a.divergence[r]);
    const int64_t target = a.targets[r] - a.vocabulary_begin;
    const bool mine = target >= 0 && target < a.valid;
    // The logit is read before the gradient takes its place.
    const float target_logit = mine ? student[target] : 0.0f;
    ForVectors(a.valid, [&](auto load, auto store) HWY_ATTR {
      const Vector s = load(student);
      const Vector t = load(teacher);
      const Vector q = Exp(hn::MulSub(s, cold, student_lse));
      const Vector log_p = hn::MulSub(t, cold, teacher_lse);
      const Vector of_divergence =
          a.reverse ? hn::Mul(q, hn::Sub(hn::Sub(hn::MulSub(s, cold, student_lse), log_p), of_row))
                    : hn::Sub(q, Exp(log_p));
      const Vector gradient =
          hn::MulAdd(Exp(hn::Sub(s, lse)), entropy, hn::Mul(of_divergence, divergence));
      store(capped ? ThroughCap(gradient, s, cap) : gradient, student);
    });
    if (mine) {
      const Vector one = hn::Set(d, of_entropy);
      student[target] -=
          capped ? hn::GetLane(ThroughCap(one, hn::Set(d, target_logit), cap)) : of_entropy;
    }
    // Padding must not contribute to the products that read whole rows.
    std::fill(student + a.valid, student + a.stride, 0.0f);
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {
namespace {

// Sums of tensor ranks, relative to the largest logit of all of them.
class JoinedExponentials {
 public:
  explicit JoinedExponentials(double temperature) : temperature_(temperature) {}

  void SeeMax(float max) { max_ = std::max(max_, static_cast<double>(max)); }
  // What a rank's sums are multiplied with. A rank without columns has the maximum -infinity: 0.
  double FactorOf(float max) const {
    return std::exp((static_cast<double>(max) - max_) / temperature_);
  }
  void Add(float max, float sum) { sum_ += sum * FactorOf(max); }
  double sum() const { return sum_; }
  double LogSum() const { return max_ / temperature_ + std::log(sum_); }

 private:
  const double temperature_;
  double max_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
};

}  // namespace

HWY_EXPORT(DistillationLocalRows);
HWY_EXPORT(DistillationBackwardRows);

void DistillationLocalCpu(const DistillationLocalArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.stride, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DistillationLocalRows)(args, begin, end);
  });
}

void DistillationCombineCpu(const DistillationCombineArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const auto stats_of = [&](int64_t rank) {
      return args.stats + (rank * args.rows + r) * kDistillationStats;
    };
    JoinedExponentials student(args.temperature);
    JoinedExponentials teacher(args.temperature);
    // The maximum over ranks is exact in any order.
    for (int64_t rank = 0; rank < args.ranks; ++rank) {
      student.SeeMax(stats_of(rank)[0]);
      teacher.SeeMax(stats_of(rank)[2]);
    }
    // Ranks are added in ascending order and in double, so that all of them get the same bits.
    double weighted = 0;
    for (int64_t rank = 0; rank < args.ranks; ++rank) {
      const float* stats = stats_of(rank);
      student.Add(stats[0], stats[1]);
      teacher.Add(stats[2], stats[3]);
      weighted +=
          stats[4] * (args.reverse ? student.FactorOf(stats[0]) : teacher.FactorOf(stats[2]));
    }
    const double gap = teacher.LogSum() - student.LogSum();
    args.student_lse[r] = static_cast<float>(student.LogSum());
    args.teacher_lse[r] = static_cast<float>(teacher.LogSum());
    args.divergence[r] = static_cast<float>(args.reverse ? weighted / student.sum() + gap
                                                         : weighted / teacher.sum() - gap);
  }
}

void DistillationBackwardCpu(const DistillationBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.stride, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DistillationBackwardRows)(args, begin, end);
  });
}

void SpreadLogitsCpu(const SpreadLogitsArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.stride, pool, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = args.out + r * args.stride;
      std::fill(out, out + args.stride, -std::numeric_limits<float>::infinity());
      for (int64_t i = r * args.pairs; i < (r + 1) * args.pairs; ++i) {
        const int64_t column = args.ids[i] - args.vocabulary_begin;
        if (args.ids[i] < 0 || column < 0 || column >= args.stride) continue;
        out[column] = args.values[i];
      }
    }
  });
}

}  // namespace tercio::kernels
#endif
