// Attention over pages has the bits of attention over whole texts, however these are cut into
// calls, whatever grows beside them, and wherever their pages lie.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/testing/cpu_ops_case.h"

namespace tercio::kernels {
namespace {

constexpr int kThreads = 2;

struct PagedCase {
  int64_t heads = 2, group = 1, head_dim = 8;
  int64_t page_tokens = kWidestPanel;
  float softcap = 0;
  int64_t window = 0;
  bool bias = false;

  int64_t width() const { return heads * head_dim; }
  int64_t keys() const { return width() / group; }
  int64_t stride() const { return width() + 2 * keys(); }
  std::string name() const {
    return "heads " + std::to_string(heads) + " / " + std::to_string(group) + " of " +
           std::to_string(head_dim) + ", pages of " + std::to_string(page_tokens) + ", cap " +
           std::to_string(softcap) + ", window " + std::to_string(window);
  }
};

constexpr int64_t kTokens = 600;  // of the longest text
const std::vector<int64_t> kLengths = {kTokens, 1, 77, 130};

class PagedAttentionTest : public CpuOpsTest {
 protected:
  void SetUp() override {
    CpuOpsTest::SetUp();
    for (int64_t i = 0; i < 2 * kTokens - 1; ++i) buckets_.push_back(static_cast<int32_t>(i % 7));
    bias_ = Random(7 * 8);
  }

  AttentionArgs ArgsOf(const PagedCase& c, const Floats& qkv, int64_t tokens, Floats* out) {
    AttentionArgs args{};
    args.q = qkv.data();
    args.k = qkv.data() + c.width();
    args.v = qkv.data() + c.width() + c.keys();
    args.stride = c.stride();
    args.out = out->data();
    args.sequences = 1;
    args.tokens = tokens;
    args.heads = c.heads;
    args.head_dim = c.head_dim;
    args.group = c.group;
    args.softcap = c.softcap;
    args.window = c.window;
    if (c.bias) {
      args.bias = {
          .weight = bias_.data(), .bucket = buckets_.data() + kTokens - tokens, .buckets = 7};
    }
    return args;
  }

  // All of a text in one call without pages.
  Floats Whole(const PagedCase& c, const Floats& qkv) {
    const auto tokens = static_cast<int64_t>(qkv.size()) / c.stride();
    auto scratch = hwy::AllocateAligned<float>(static_cast<size_t>(
        AttentionScratch({.tokens = tokens, .head_dim = c.head_dim}, kThreads)));
    Floats out(static_cast<size_t>(tokens * c.width()));
    Floats lse(static_cast<size_t>(tokens * c.heads));
    AttentionArgs args = ArgsOf(c, qkv, tokens, &out);
    args.lse = lse.data();
    args.scratch = scratch.get();
    ops_->Attention(args);
    return out;
  }

  // The texts together, each in random parts.
  std::vector<Floats> InPages(const PagedCase& c, const std::vector<Floats>& qkv);

  std::vector<int32_t> buckets_;
  Floats bias_;
};

std::vector<Floats> PagedAttentionTest::InPages(const PagedCase& c,
                                                const std::vector<Floats>& qkv) {
  auto scratch = hwy::AllocateAligned<float>(
      static_cast<size_t>(AttentionScratch({.tokens = kTokens, .head_dim = c.head_dim}, kThreads)));
  std::vector<std::vector<int32_t>> pages;
  int32_t all = 0;
  for (const int64_t length : kLengths) {
    pages.emplace_back(static_cast<size_t>((length + c.page_tokens - 1) / c.page_tokens));
    for (int32_t& page : pages.back()) page = all++;
  }
  std::vector<int32_t> order(static_cast<size_t>(all));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  for (auto& of_text : pages) {
    for (int32_t& page : of_text) page = order[static_cast<size_t>(page)];
  }
  const int64_t elements = PageElements(c.page_tokens, c.heads / c.group, c.head_dim);
  auto data = hwy::AllocateAligned<float>(static_cast<size_t>(all * elements));
  // What was never written may be anything.
  std::fill_n(data.get(), all * elements, std::nanf(""));
  std::vector<Floats> out;
  for (const int64_t length : kLengths) out.emplace_back(static_cast<size_t>(length * c.width()));
  std::vector<int64_t> done(kLengths.size());
  while (done != kLengths) {
    std::vector<PagedText> texts;
    Floats rows;
    int64_t count = 0;
    for (size_t i = 0; i < kLengths.size(); ++i) {
      const int64_t most = random_() % 2 == 0 ? 1 : 150;
      const int64_t part =
          std::min<int64_t>(kLengths[i] - done[i], static_cast<int64_t>(random_() % most) + 1);
      if (part == 0) continue;
      texts.push_back({count, part, done[i], pages[i].data()});
      const auto begin = qkv[i].begin() + done[i] * c.stride();
      rows.insert(rows.end(), begin, begin + part * c.stride());
      count += part;
    }
    const KeyPages key_pages = {.data = data.get(),
                                .page_elements = elements,
                                .page_tokens = c.page_tokens,
                                .texts = texts.data(),
                                .count = static_cast<int64_t>(texts.size())};
    Floats result(static_cast<size_t>(count * c.width()));
    AttentionArgs args = ArgsOf(c, rows, kTokens, &result);
    args.scratch = scratch.get();
    args.pages = &key_pages;
    ops_->Attention(args);
    for (const PagedText& text : texts) {
      const auto i = static_cast<size_t>(
          std::find_if(pages.begin(), pages.end(),
                       [&](const auto& of_text) { return of_text.data() == text.pages; }) -
          pages.begin());
      std::copy_n(result.begin() + text.first_row * c.width(), text.rows * c.width(),
                  out[i].begin() + text.first_position * c.width());
      done[i] += text.rows;
    }
  }
  return out;
}

TEST_F(PagedAttentionTest, HasTheBitsOfWholeTexts) {
  for (const PagedCase& c : {PagedCase{}, PagedCase{.heads = 4, .group = 2, .head_dim = 64},
                             PagedCase{.heads = 2, .head_dim = 80, .page_tokens = 64},
                             PagedCase{.heads = 4, .group = 4, .page_tokens = 96, .softcap = 5},
                             PagedCase{.head_dim = 33, .page_tokens = 64, .window = 70},
                             PagedCase{.head_dim = 256, .page_tokens = 256, .window = 3},
                             PagedCase{.page_tokens = 64, .bias = true}}) {
    std::vector<Floats> qkv;
    for (const int64_t length : kLengths) qkv.push_back(Random(length * c.stride()));
    // Panels of each width of vectors.
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      if (target > HWY_AVX2) continue;  // older ones: Tercio needs AVX2
      hwy::SetSupportedTargetsForTest(target);
      const std::vector<Floats> out = InPages(c, qkv);
      for (size_t i = 0; i < qkv.size(); ++i) {
        EXPECT_EQ(out[i], Whole(c, qkv[i])) << c.name() << " on " << hwy::TargetName(target);
      }
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace
}  // namespace tercio::kernels
