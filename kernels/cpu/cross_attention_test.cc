// Cross attention on the CPU, whose keys and values are rows of another stream: drawn cases against
// the double-precision reference and finite differences, and what its bits depend on.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/random.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

constexpr uint32_t kLayer = 3, kFirstHead = 2, kFirstSequence = 7;
constexpr int64_t kGuard = 64;  // floats behind the scratch
constexpr double kNear = 1e-5;  // of gradients, relative to the largest magnitude

struct CrossCase {
  int64_t sequences, tokens, key_tokens, heads, group, head_dim;
  bool padded = false;
  float dropout = 0, scale = 0, softcap = 0;
  int64_t first_query = 0;

  int64_t width() const { return heads * head_dim; }
  int64_t key_width() const { return width() / group; }
  // Rows are wider than what attention reads, by other numbers of elements in both streams.
  int64_t stride() const { return width() + 5; }
  int64_t key_stride() const { return 2 * key_width() + 3; }
  int64_t rows() const { return sequences * tokens; }
  int64_t key_rows() const { return sequences * key_tokens; }
  std::string name() const {
    std::ostringstream out;
    out << sequences << " x " << tokens << " queries, " << key_tokens << " keys"
        << (padded ? " padded" : "") << ", heads " << heads << " / " << group << " of " << head_dim
        << ", dropout " << dropout << ", scale " << scale << ", cap " << softcap;
    return out.str();
  }
};

struct CrossRun {
  Floats q, kv, dout;
  std::vector<int32_t> lengths;
  Floats out, lse, dq, dkv;
};

class CrossAttentionTest : public CpuOpsTest {
 protected:
  int64_t Draw(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  CrossCase DrawCase(int64_t most_tokens) {
    const int64_t head_dims[] = {1, 4, 7, 16, 64, 80};
    const int64_t head_dim = head_dims[Draw(0, 5)];
    const int64_t group = Draw(1, 3);
    return {.sequences = Draw(1, 3),
            .tokens = Draw(1, most_tokens),
            .key_tokens = Draw(1, most_tokens),
            .heads = group * Draw(1, 2),
            .group = group,
            .head_dim = head_dim,
            .padded = Draw(0, 1) == 1,
            .dropout = Draw(0, 1) == 1 ? 0.2f : 0.0f,
            .scale = Draw(0, 1) == 1 ? 1.5f / std::sqrt(static_cast<float>(head_dim)) : 0.0f,
            .softcap = Draw(0, 2) == 0 ? 2.0f : 0.0f};
  }

  // Random inputs; results are what no operation writes.
  CrossRun Inputs(const CrossCase& c) {
    CrossRun run{Random(c.rows() * c.stride()), Random(c.key_rows() * c.key_stride()),
                 Random(c.rows() * c.width())};
    for (int64_t i = 0; i < c.sequences; ++i) {
      run.lengths.push_back(static_cast<int32_t>(Draw(1, c.key_tokens)));
    }
    Empty(c, run);
    return run;
  }
  static void Empty(const CrossCase& c, CrossRun& run) {
    const float nan = std::nanf("");
    run.out.assign(static_cast<size_t>(c.rows() * c.width()), nan);
    run.lse.assign(static_cast<size_t>(c.rows() * c.heads), nan);
    run.dq.assign(run.q.size(), nan);
    run.dkv.assign(run.kv.size(), nan);
  }

  template <typename Args>
  static void Set(const CrossCase& c, const CrossRun& run, int64_t begin, int64_t end, Args& args) {
    args.q = run.q.data() + begin * c.tokens * c.stride();
    args.k = run.kv.data() + begin * c.key_tokens * c.key_stride();
    args.v = args.k + c.key_width();
    args.stride = c.stride();
    args.key_stride = c.key_stride();
    args.sequences = end - begin;
    args.tokens = c.tokens;
    args.heads = c.heads;
    args.head_dim = c.head_dim;
    args.key_tokens = c.key_tokens;
    args.group = c.group;
    args.first_head = kFirstHead;
    args.causal = false;
    args.lengths = c.padded ? run.lengths.data() + begin : nullptr;
    args.scale = c.scale;
    args.softcap = c.softcap;
    args.dropout.probability = c.dropout;
    args.dropout.layer = kLayer;
    args.dropout.first_sequence = kFirstSequence + begin;
    args.dropout.tokens = c.tokens;
  }

  // Forward and backward over sequences [begin, end). Results are of this format.
  static void Run(Ops& ops, int threads, const CrossCase& c, int64_t begin, int64_t end,
                  CrossRun& run, Format format = Format::kFloat32) {
    const auto size =
        static_cast<size_t>(AttentionScratch({c.tokens, c.head_dim, c.key_tokens}, threads));
    const auto scratch = hwy::AllocateAligned<float>(size + kGuard);
    std::fill_n(scratch.get(), size + kGuard, std::nanf(""));
    float* out = run.out.data() + begin * c.tokens * c.width();
    float* lse = run.lse.data() + begin * c.tokens * c.heads;
    AttentionArgs args{};
    Set(c, run, begin, end, args);
    args.first_query = c.first_query;
    args.out = {out, format};
    args.lse = lse;
    args.scratch = scratch.get();
    ops.Attention(args);
    AttentionBackwardArgs back{};
    Set(c, run, begin, end, back);
    back.dout = run.dout.data() + begin * c.tokens * c.width();
    back.out = out;
    back.lse = lse;
    back.dq = {run.dq.data() + begin * c.tokens * c.stride(), format};
    back.dk = {run.dkv.data() + begin * c.key_tokens * c.key_stride(), format};
    back.dv = back.dk + c.key_width();
    back.scratch = scratch.get();
    if (c.first_query == 0) ops.AttentionBackward(back);
    const auto is_untouched = [](float value) { return std::isnan(value); };
    EXPECT_TRUE(std::all_of(scratch.get() + size, scratch.get() + size + kGuard, is_untouched))
        << c.name() << ": writes behind the scratch";
    // The last element is that of the last query's last key.
    if (threads == 1 && !c.padded && c.first_query == 0) {
      EXPECT_FALSE(std::isnan(scratch[size - 1])) << c.name() << ": the scratch is too large";
    }
  }

  // One head of a sequence: rows from `first` on, of `stride`, each from `offset` on.
  static Values HeadOf(const Floats& from, int64_t first, int64_t rows, int64_t stride,
                       int64_t offset, int64_t head_dim) {
    Values values;
    for (int64_t row = first; row < first + rows; ++row) {
      const auto at = from.begin() + row * stride + offset;
      values.insert(values.end(), at, at + head_dim);
    }
    return values;
  }
  // By the definition of kernels/random.h.
  static Values Mask(const CrossCase& c, int64_t sequence, int64_t head) {
    Values mask;
    if (c.dropout == 0) return mask;
    const uint32_t tag =
        kSiteAttention | kLayer << 4 | (kFirstHead + static_cast<uint32_t>(head)) << 16;
    for (int64_t i = 0; i < c.tokens; ++i) {
      for (int64_t j = 0; j < c.key_tokens; ++j) {
        const PhiloxBlock bits =
            Philox(MakeKey(0, 0), {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                                   kFirstSequence + static_cast<uint32_t>(sequence), tag});
        const bool kept = bits[static_cast<size_t>(j % 4)] >= DropThreshold(c.dropout);
        mask.push_back(kept ? 1.0 / (1.0 - c.dropout) : 0.0);
      }
    }
    return mask;
  }

  // Gradients of a key head have the parts of all query heads of its group.
  struct Gradients {
    Values dk, dv;
  };

  // Every number of the run. Gradients of up to `most_differences` tokens are compared element by
  // element, longer ones along one drawn direction.
  void Expect(const CrossCase& c, const CrossRun& run, int64_t most_differences) {
    for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
      for (int64_t key_head = 0; key_head < c.heads / c.group; ++key_head) {
        ExpectKeyHead(c, run, sequence, key_head,
                      std::max(c.tokens, c.key_tokens) <= most_differences);
      }
    }
    for (int64_t row = 0; row < c.key_rows(); ++row) {
      const float* end = run.dkv.data() + row * c.key_stride() + 2 * c.key_width();
      ASSERT_TRUE(std::isnan(end[0]) && std::isnan(end[2])) << c.name() << ": beside dv";
      if (!c.padded || row % c.key_tokens < run.lengths[static_cast<size_t>(row / c.key_tokens)]) {
        continue;
      }
      ASSERT_TRUE(std::all_of(end - 2 * c.key_width(), end, [](float x) { return x == 0; }))
          << c.name() << ": the gradient of padding";
    }
  }

  void ExpectKeyHead(const CrossCase& c, const CrossRun& run, int64_t sequence, int64_t key_head,
                     bool each) {
    const auto key = [&](const Floats& from, int64_t offset) {
      return HeadOf(from, sequence * c.key_tokens, c.key_tokens, c.key_stride(),
                    offset + key_head * c.head_dim, c.head_dim);
    };
    const Values k = key(run.kv, 0), v = key(run.kv, c.key_width());
    const auto draw_direction = [&](const Values& like) {
      return each ? Values() : Exact(Random(static_cast<int64_t>(like.size())));
    };
    const Values k_direction = draw_direction(k);
    const int64_t length = c.padded ? run.lengths[static_cast<size_t>(sequence)] : c.key_tokens;
    const auto add = [](Values& sum, const Values& part) {
      sum.resize(part.size());
      for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    };
    // Where a query sees one key, gradients of scores are zero, and what is computed is noise.
    const double least = length == 1 ? 1 : 0;
    Gradients sums;
    for (int64_t head = key_head * c.group; head < (key_head + 1) * c.group; ++head) {
      const auto query = [&](const Floats& from, int64_t stride) {
        return HeadOf(from, sequence * c.tokens, c.tokens, stride, head * c.head_dim, c.head_dim);
      };
      const Values q = query(run.q, c.stride()), weights = query(run.dout, c.width());
      const Values mask = Mask(c, sequence, head);
      const auto of = [&](const Values& a, const Values& b, const Values& d) {
        return reference::Attention(a, b, d, mask, c.tokens, c.head_dim, length,
                                    {.scale = c.scale, .softcap = c.softcap});
      };
      const Values out = query(run.out, c.width());
      // All rows of a head together, since one of a single channel may be all noise.
      ExpectRows({out.begin(), out.end()}, of(q, k, v), c.tokens * c.head_dim, 1e-5,
                 c.name() + ": out");
      const auto gradient = [&](const auto& function, const Values& at, const Values& direction) {
        if (direction.empty()) return reference::NumericGradient(function, at, weights);
        const auto moved = [&](const Values& by) {
          Values x = at;
          for (size_t i = 0; i < x.size(); ++i) x[i] += by[0] * direction[i];
          return function(x);
        };
        return reference::NumericGradient(moved, {0}, weights);
      };
      const Values q_direction = draw_direction(q);
      ExpectGradient(c, query(run.dq, c.stride()),
                     {gradient([&](const Values& x) { return of(x, k, v); }, q, q_direction),
                      q_direction, least},
                     ": dq, ");
      add(sums.dk, gradient([&](const Values& x) { return of(q, x, v); }, k, k_direction));
      add(sums.dv, gradient([&](const Values& x) { return of(q, k, x); }, v, k_direction));
    }
    ExpectGradient(c, key(run.dkv, 0), {sums.dk, k_direction, least}, ": dk, ");
    ExpectGradient(c, key(run.dkv, c.key_width()), {sums.dv, k_direction, 0}, ": dv, ");
  }

  struct Expected {
    Values gradient;   // a number for each element, or the one along the direction
    Values direction;  // empty: each element
    double least;      // magnitude of the numbers whose rounding errors the elements have
  };
  static void ExpectGradient(const CrossCase& c, const Values& actual, const Expected& expected,
                             const char* what) {
    double largest = expected.least;
    for (const double value : actual) largest = std::max(largest, std::abs(value));
    if (expected.direction.empty()) {
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_NEAR(actual[i], expected.gradient[i], kNear * largest)
            << c.name() << what << "element " << i;
      }
      return;
    }
    double along = 0;
    for (size_t i = 0; i < actual.size(); ++i) along += actual[i] * expected.direction[i];
    const double error = kNear * largest * std::sqrt(static_cast<double>(actual.size()));
    ASSERT_NEAR(along, expected.gradient[0], error) << c.name() << what << "along a direction";
  }

  void Check(const CrossCase& c, int64_t most_differences) {
    CrossRun run = Inputs(c);
    Run(*ops_, 2, c, 0, c.sequences, run);
    Expect(c, run, most_differences);
  }
};

TEST_F(CrossAttentionTest, ItsGradientsAreDifferences) {
  for (int i = 0; i < 40; ++i) Check(DrawCase(12), 12);
  // One key, one query, and lengths beside them.
  Check({1, 1, 9, 1, 1, 80}, 12);
  Check({2, 9, 1, 2, 2, 64, true}, 12);
}

// Blocks of 64 queries and of 256 keys, and what is left over.
TEST_F(CrossAttentionTest, LongOnesAreRightAlongADirection) {
  for (int i = 0; i < 8; ++i) Check(DrawCase(300), 12);
  Check({1, 65, 513, 2, 1, 64, true, 0.1f}, 12);
  Check({1, 200, 33, 2, 2, 80, true}, 12);
}

TEST_F(CrossAttentionTest, HasTheSameBitsForAnyCutOfSequences) {
  for (int i = 0; i < 10; ++i) {
    CrossCase c = DrawCase(150);
    c.sequences = 3;
    CrossRun whole = Inputs(c);
    CrossRun parts = whole;
    Run(*ops_, 2, c, 0, 3, whole);
    for (const int threads : {1, 3}) {
      const auto other = CreateCpuOps(threads);
      Empty(c, parts);
      for (int64_t at = 0; at < 3; ++at) Run(*other, threads, c, at, at + 1, parts);
      const auto same = [](const Floats& a, const Floats& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
      };
      EXPECT_TRUE(same(parts.out, whole.out) && same(parts.lse, whole.lse) &&
                  same(parts.dq, whole.dq) && same(parts.dkv, whole.dkv))
          << c.name() << ", " << threads << " threads";
    }
  }
}

// Generation computes the rows of a sequence one by one, over the same keys.
TEST_F(CrossAttentionTest, RowsHaveTheSameBitsWhereverACallBegins) {
  for (int i = 0; i < 10; ++i) {
    CrossCase c = DrawCase(150);
    CrossRun run = Inputs(c);
    Run(*ops_, 2, c, 0, c.sequences, run);
    const Floats whole = run.out;
    c.first_query = Draw(0, c.tokens - 1);
    Empty(c, run);
    Run(*ops_, 2, c, 0, c.sequences, run);
    for (int64_t row = 0; row < c.rows(); ++row) {
      for (int64_t at = row * c.width(); at < (row + 1) * c.width(); ++at) {
        const float actual = run.out[static_cast<size_t>(at)];
        if (row % c.tokens < c.first_query) {
          ASSERT_TRUE(std::isnan(actual)) << c.name() << ": row " << row;
        } else {
          ASSERT_EQ(actual, whole[static_cast<size_t>(at)]) << c.name() << ": row " << row;
        }
      }
    }
  }
}

// As many keys as queries, in rows of their own: the bits are those of rows that have all three.
TEST_F(CrossAttentionTest, HasTheBitsOfAttentionWithinAStream) {
  const CrossCase c{2, 70, 70, 4, 2, 20, true, 0.2f};
  CrossRun run = Inputs(c);
  Run(*ops_, 2, c, 0, c.sequences, run);
  const int64_t stride = c.width() + 2 * c.key_width();
  Floats qkv, dqkv(static_cast<size_t>(c.rows() * stride)), out(run.out.size()),
      lse(run.lse.size());
  for (int64_t row = 0; row < c.rows(); ++row) {
    const auto q = run.q.begin() + row * c.stride();
    const auto kv = run.kv.begin() + row * c.key_stride();
    qkv.insert(qkv.end(), q, q + c.width());
    qkv.insert(qkv.end(), kv, kv + 2 * c.key_width());
  }
  const auto scratch = hwy::AllocateAligned<float>(
      static_cast<size_t>(AttentionScratch({.tokens = c.tokens, .head_dim = c.head_dim}, 2)));
  const auto set = [&](auto& args) {
    Set(c, run, 0, c.sequences, args);
    args.q = qkv.data();
    args.k = args.q + c.width();
    args.v = args.k + c.key_width();
    args.stride = stride;
    args.key_stride = args.key_tokens = 0;
    args.scratch = scratch.get();
  };
  AttentionArgs args{};
  set(args);
  args.out = out.data();
  args.lse = lse.data();
  ops_->Attention(args);
  AttentionBackwardArgs back{};
  set(back);
  back.dout = run.dout.data();
  back.out = out.data();
  back.lse = lse.data();
  back.dq = dqkv.data();
  back.dk = back.dq + c.width();
  back.dv = back.dk + c.key_width();
  ops_->AttentionBackward(back);
  EXPECT_EQ(out, run.out);
  EXPECT_EQ(lse, run.lse);
  for (int64_t row = 0; row < c.rows(); ++row) {
    const float* all = dqkv.data() + row * stride;
    ASSERT_TRUE(std::equal(all, all + c.width(), run.dq.data() + row * c.stride())) << row;
    ASSERT_TRUE(std::equal(all + c.width(), all + stride, run.dkv.data() + row * c.key_stride()))
        << row;
  }
}

// Every element of every result is rounded, and nothing else.
TEST_F(CrossAttentionTest, ResultsAreRoundedToTheirFormat) {
  const reference::FloatFormat bf16{8, -126, 0x1.fep127}, fp16{11, -14, 65504};
  for (const auto& [format, exact] :
       {std::pair(Format::kBfloat16, bf16), std::pair(Format::kFloat16, fp16)}) {
    for (const int64_t key_tokens : {5, 30}) {
      const CrossCase c{2, 17, key_tokens, 4, 2, 16, true};
      CrossRun run = Inputs(c);
      Run(*ops_, 2, c, 0, c.sequences, run, format);
      for (const Floats* values : {&run.out, &run.dq, &run.dkv}) {
        for (const float value : *values) {
          if (std::isnan(value)) continue;  // beside the rows
          ASSERT_EQ(value, reference::RoundTo(value, exact)) << c.name();
        }
      }
      // What was rounded is right.
      CrossRun whole = run;
      Empty(c, whole);
      Run(*ops_, 2, c, 0, c.sequences, whole);
      for (size_t i = 0; i < run.out.size(); ++i) {
        ASSERT_EQ(run.out[i], static_cast<float>(reference::RoundTo(whole.out[i], exact)));
      }
    }
  }
}

}  // namespace
}  // namespace tercio::kernels
