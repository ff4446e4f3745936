// Attention on the CPU where sequences hold several documents: each document has the results that
// it has alone, by the double-precision reference, finite differences, and calls of its own.
#include <algorithm>
#include <cmath>
#include <cstdint>
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

constexpr uint32_t kLayer = 3;

struct DocumentCase {
  std::vector<std::vector<int64_t>> documents;  // tokens of each, in each sequence
  int64_t heads = 1, group = 1, head_dim = 8;
  float dropout = 0, softcap = 0;
  int64_t window = 0;
  int64_t first_query = 0;

  int64_t sequences() const { return static_cast<int64_t>(documents.size()); }
  int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t length : documents.front()) sum += length;
    return sum;
  }
  int64_t rows() const { return sequences() * tokens(); }
  int64_t width() const { return heads * head_dim; }
  int64_t keys() const { return width() / group; }
  int64_t stride() const { return width() + 2 * keys(); }
  std::vector<int32_t> starts() const {
    std::vector<int32_t> all;
    for (const std::vector<int64_t>& sequence : documents) {
      int64_t begin = 0;
      for (const int64_t length : sequence) {
        all.insert(all.end(), static_cast<size_t>(length), static_cast<int32_t>(begin));
        begin += length;
      }
    }
    return all;
  }
  std::string name() const {
    return std::to_string(sequences()) + " x " + std::to_string(tokens()) + ", heads " +
           std::to_string(heads) + " / " + std::to_string(group) + " of " +
           std::to_string(head_dim) + ", dropout " + std::to_string(dropout) + ", cap " +
           std::to_string(softcap) + ", window " + std::to_string(window);
  }
};

struct DocumentRun {
  Floats qkv, dout, out, lse, dqkv;
};

class DocumentAttentionTest : public CpuOpsTest {
 protected:
  DocumentRun Inputs(const DocumentCase& c) {
    return {Random(c.rows() * c.stride()), Random(c.rows() * c.width())};
  }

  // Sequences [begin, end) of the call.
  static void RunPart(Ops& ops, const DocumentCase& c, const int32_t* starts, int64_t begin,
                      int64_t end, DocumentRun* run) {
    auto scratch = hwy::AllocateAligned<float>(
        static_cast<size_t>(AttentionScratch({.tokens = c.tokens(), .head_dim = c.head_dim}, 3)));
    const int64_t row = begin * c.tokens();
    const auto set = [&](auto& args) {
      args.q = run->qkv.data() + row * c.stride();
      args.k = args.q + c.width();
      args.v = args.k + c.keys();
      args.stride = c.stride();
      args.sequences = end - begin;
      args.tokens = c.tokens();
      args.heads = c.heads;
      args.head_dim = c.head_dim;
      args.group = c.group;
      args.document_starts = starts == nullptr ? nullptr : starts + row;
      args.softcap = c.softcap;
      args.window = c.window;
      args.dropout = {
          .probability = c.dropout, .layer = kLayer, .first_sequence = begin, .tokens = c.tokens()};
      args.scratch = scratch.get();
    };
    AttentionArgs args{};
    set(args);
    args.out = run->out.data() + row * c.width();
    args.lse = run->lse.data() + row * c.heads;
    args.first_query = c.first_query;
    ops.Attention(args);
    if (c.first_query > 0) return;
    AttentionBackwardArgs back{};
    set(back);
    back.dout = run->dout.data() + row * c.width();
    back.out = args.out;
    back.lse = args.lse;
    back.dq = run->dqkv.data() + row * c.stride();
    back.dk = back.dq + c.width();
    back.dv = back.dk + c.keys();
    ops.AttentionBackward(back);
  }
  static void Empty(const DocumentCase& c, DocumentRun* run) {
    run->out.assign(static_cast<size_t>(c.rows() * c.width()), 0.0f);
    run->lse.assign(static_cast<size_t>(c.rows() * c.heads), 0.0f);
    run->dqkv.assign(static_cast<size_t>(c.rows() * c.stride()), 0.0f);
  }
  void Run(const DocumentCase& c, DocumentRun* run, bool with_documents = true) {
    Empty(c, run);
    const std::vector<int32_t> starts = c.starts();
    RunPart(*ops_, c, with_documents ? starts.data() : nullptr, 0, c.sequences(), run);
  }

  // body(sequence, first position, tokens) for each document.
  template <typename Body>
  static void ForDocuments(const DocumentCase& c, const Body& body) {
    for (int64_t sequence = 0; sequence < c.sequences(); ++sequence) {
      int64_t begin = 0;
      for (const int64_t length : c.documents[static_cast<size_t>(sequence)]) {
        body(sequence, begin, length);
        begin += length;
      }
    }
  }
};

// A head's [tokens, head_dim] of a document out of rows of `stride`.
Values Part(const Floats& from, const DocumentCase& c, int64_t row, int64_t tokens, int64_t stride,
            int64_t offset) {
  Values values;
  for (int64_t t = row; t < row + tokens; ++t) {
    const auto at = from.begin() + t * stride + offset;
    values.insert(values.end(), at, at + c.head_dim);
  }
  return values;
}

// Multipliers of a document's probabilities, which are keyed by positions in the sequence.
Values MaskOf(const DocumentCase& c, int64_t head, int64_t sequence, int64_t begin,
              int64_t tokens) {
  Values mask;
  if (c.dropout == 0) return mask;
  const uint32_t tag = kSiteAttention | kLayer << 4 | static_cast<uint32_t>(head) << 16;
  for (int64_t i = begin; i < begin + tokens; ++i) {
    for (int64_t j = begin; j < begin + tokens; ++j) {
      const PhiloxBlock bits =
          Philox(MakeKey(0, 0), {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                                 static_cast<uint32_t>(sequence), tag});
      const bool kept = bits[static_cast<size_t>(j % 4)] >= DropThreshold(c.dropout);
      mask.push_back(kept ? 1.0 / (1.0 - c.dropout) : 0.0);
    }
  }
  return mask;
}

Floats ToFloats(const Values& values) { return Floats(values.begin(), values.end()); }

void Add(Values& sum, const Values& part) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
}

// The results of a document against the reference of that document alone, for one key head.
void ExpectDocument(const DocumentCase& c, const DocumentRun& run, int64_t sequence, int64_t begin,
                    int64_t tokens, int64_t key_head) {
  const int64_t row = sequence * c.tokens() + begin;
  const int64_t key_offset = c.width() + key_head * c.head_dim;
  const auto part = [&](const Floats& from, int64_t stride, int64_t offset) {
    return Part(from, c, row, tokens, stride, offset);
  };
  const Values k = part(run.qkv, c.stride(), key_offset);
  const Values v = part(run.qkv, c.stride(), key_offset + c.keys());
  Values dk(k.size()), dv(v.size());
  const int64_t all = tokens * c.head_dim;
  // The gradients of a score that is alone are nothing but rounding.
  const bool has_differences = tokens > 1 && c.window != 1;
  for (int64_t i = 0; i < c.group; ++i) {
    const int64_t head = key_head * c.group + i;
    const Values mask = MaskOf(c, head, sequence, begin, tokens);
    const Values q = part(run.qkv, c.stride(), head * c.head_dim);
    const Values weights = part(run.dout, c.width(), head * c.head_dim);
    const auto of = [&](const Values& a, const Values& b, const Values& d) {
      return reference::Attention(a, b, d, mask, tokens, c.head_dim, 0,
                                  {.softcap = c.softcap, .window = c.window});
    };
    ExpectRows(ToFloats(part(run.out, c.width(), head * c.head_dim)), of(q, k, v), c.head_dim, 1e-5,
               "out");
    const auto gradient = [&](const auto& function, const Values& at) {
      return reference::NumericGradient(function, at, weights);
    };
    Add(dv, gradient([&](const Values& x) { return of(q, k, x); }, v));
    if (!has_differences) continue;
    ExpectRows(ToFloats(part(run.dqkv, c.stride(), head * c.head_dim)),
               gradient([&](const Values& x) { return of(x, k, v); }, q), all, 1e-5, "dq");
    Add(dk, gradient([&](const Values& x) { return of(q, x, v); }, k));
  }
  ExpectRows(ToFloats(part(run.dqkv, c.stride(), key_offset + c.keys())), dv, all, 1e-5, "dv");
  if (!has_differences) return;
  ExpectRows(ToFloats(part(run.dqkv, c.stride(), key_offset)), dk, all, 1e-5, "dk");
}

TEST_F(DocumentAttentionTest, EachIsTheReferenceOfItAlone) {
  for (const DocumentCase& c : std::vector<DocumentCase>{
           {.documents = {{1, 1, 1}}},
           {.documents = {{3, 14}}, .heads = 2, .head_dim = 5},
           {.documents = {{17}, {1, 16}, {9, 8}}, .heads = 2, .head_dim = 4},
           {.documents = {{20, 13, 31, 30}}, .head_dim = 4, .dropout = 0.2f},
           {.documents = {{7, 26, 1}, {33, 1}}, .heads = 4, .group = 2, .dropout = 0.3f},
           {.documents = {{30, 40}}, .heads = 2, .group = 2, .head_dim = 4, .softcap = 1.5f},
           {.documents = {{25, 39}}, .head_dim = 4, .window = 7},
           {.documents = {{5, 30, 35}},
           .heads = 4,
           .group = 4,
           .head_dim = 4,
           .dropout = 0.1f,
           .softcap = 2.0f,
           .window = 20}}) {
    SCOPED_TRACE(c.name());
    DocumentRun run = Inputs(c);
    Run(c, &run);
    ForDocuments(c, [&](int64_t sequence, int64_t begin, int64_t tokens) {
      for (int64_t head = 0; head < c.heads / c.group; ++head) {
        ExpectDocument(c, run, sequence, begin, tokens, head);
      }
    });
  }
}

// Documents over many blocks of queries, too long for differences: with calls of their own.
TEST_F(DocumentAttentionTest, LongOnesHaveTheResultsOfCallsOfTheirOwn) {
  for (const DocumentCase& c : std::vector<DocumentCase>{
           {.documents = {{130, 1, 300, 69, 200}}, .heads = 2, .group = 2},
           {.documents = {{64, 64, 72}, {63, 66, 71}}, .heads = 2, .head_dim = 20, .softcap = 3.0f},
           {.documents = {{400, 300}}, .heads = 1, .window = 90}}) {
    SCOPED_TRACE(c.name());
    DocumentRun run = Inputs(c);
    Run(c, &run);
    ForDocuments(c, [&](int64_t sequence, int64_t begin, int64_t tokens) {
      const int64_t row = sequence * c.tokens() + begin;
      const auto part = [&](const Floats& from, int64_t columns) {
        return Floats(from.begin() + row * columns, from.begin() + (row + tokens) * columns);
      };
      DocumentCase one = c;
      one.documents = {{tokens}};
      DocumentRun alone{part(run.qkv, c.stride()), part(run.dout, c.width())};
      Run(one, &alone, /*with_documents=*/false);
      ExpectRows(part(run.out, c.width()), Exact(alone.out), c.head_dim, 2e-6, "out");
      if (tokens == 1) return;
      ExpectRows(part(run.dqkv, c.stride()), Exact(alone.dqkv), tokens * c.stride(), 2e-6, "dqkv");
    });
  }
}

TEST_F(DocumentAttentionTest, OneDocumentHasTheBitsOfASequence) {
  for (const int64_t window : {0, 50}) {
    const DocumentCase c{
        .documents = {{170}, {170}}, .heads = 2, .group = 2, .dropout = 0.2f, .window = window};
    DocumentRun run = Inputs(c);
    Run(c, &run);
    DocumentRun plain = run;
    Run(c, &plain, /*with_documents=*/false);
    EXPECT_EQ(run.out, plain.out);
    EXPECT_EQ(run.lse, plain.lse);
    EXPECT_EQ(run.dqkv, plain.dqkv);
  }
}

TEST_F(DocumentAttentionTest, HasTheSameBitsForAnyCutOfSequencesAndNumberOfThreads) {
  const DocumentCase c{
      .documents = {{70, 80}, {1, 100, 49}, {150}}, .heads = 4, .group = 2, .dropout = 0.2f};
  DocumentRun whole = Inputs(c);
  Run(c, &whole);
  const std::vector<int32_t> starts = c.starts();
  for (const int threads : {1, 3}) {
    const auto other = CreateCpuOps(threads);
    DocumentRun parts = whole;
    Empty(c, &parts);
    for (int64_t i = 0; i < c.sequences(); ++i) {
      RunPart(*other, c, starts.data(), i, i + 1, &parts);
    }
    EXPECT_EQ(parts.out, whole.out) << threads;
    EXPECT_EQ(parts.dqkv, whole.dqkv) << threads;
  }
}

TEST_F(DocumentAttentionTest, RowsHaveTheSameBitsWhereverACallBegins) {
  DocumentCase c{.documents = {{100, 90, 140}}, .heads = 2, .head_dim = 24};
  DocumentRun run = Inputs(c);
  Run(c, &run);
  const Floats whole = run.out;
  for (const int64_t first : {1, 63, 99, 100, 130, 329}) {
    c.first_query = first;
    Run(c, &run);
    EXPECT_TRUE(std::equal(whole.begin() + first * c.width(), whole.end(),
                           run.out.begin() + first * c.width()))
        << first;
  }
}

// Short documents make a long context cheaper: no product reads what lies before a block's.
TEST_F(DocumentAttentionTest, KeysBeforeTheDocumentOfABlockAreNotMultiplied) {
  const DocumentCase c{.documents = {{320, 192}}};
  DocumentRun run = Inputs(c);
  Run(c, &run);
  DocumentRun other = run;
  std::fill_n(other.qkv.begin(), 256 * c.stride(), std::nanf(""));
  Run(c, &other);
  const int64_t first = 320;
  EXPECT_TRUE(std::equal(run.out.begin() + first * c.width(), run.out.end(),
                         other.out.begin() + first * c.width()));
  EXPECT_TRUE(std::equal(run.dqkv.begin() + first * c.stride(), run.dqkv.end(),
                         other.dqkv.begin() + first * c.stride()));
}

}  // namespace
}  // namespace tercio::kernels
