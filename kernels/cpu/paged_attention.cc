// Attention of texts that grow, whose keys and values lie in pages as products read them: nothing
// is packed again for the queries that follow. Sums have the order of attention.cc, and so its
// bits.
//
// A work item is one head of one text; it uses its thread's part of the scratch and nothing of any
// other item.
#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Where a key head of a text has its keys and values.
class HeadPages {
 public:
  HeadPages(const AttentionArgs& a, const PagedText& text, int64_t key_head)
      : head_dim_(a.head_dim),
        page_tokens_(a.pages->page_tokens),
        page_elements_(a.pages->page_elements),
        pages_(text.pages),
        keys_(a.pages->data +
              key_head * page_tokens_ * (head_dim_ + RoundUp(head_dim_, PanelColumns()))),
        values_(keys_ + page_tokens_ * head_dim_) {}

  // The panel of keys in which a position is: (head_dim, PanelColumns()).
  float* KeyPanel(int64_t position) const {
    const int64_t width = PanelColumns();
    return keys_ + PageOf(position) + position % page_tokens_ / width * width * head_dim_;
  }
  // A position's values in a panel of channels, from channel `first` on: (PanelColumns()). Those of
  // the page's further positions follow.
  float* Values(int64_t position, int64_t first) const {
    return values_ + PageOf(position) + first * page_tokens_ +
           position % page_tokens_ * PanelColumns();
  }
  // Positions of the page from this one on.
  int64_t Left(int64_t position) const { return page_tokens_ - position % page_tokens_; }

 private:
  int64_t PageOf(int64_t position) const {
    return pages_[position / page_tokens_] * page_elements_;
  }

  int64_t head_dim_, page_tokens_, page_elements_;
  const int32_t* pages_;
  float* keys_;
  float* values_;
};

// The keys and values of a text's rows join its pages.
void AppendItem(const AttentionArgs& a, int64_t item) {
  const int64_t key_heads = a.heads / a.group;
  const PagedText& text = a.pages->texts[item / key_heads];
  const int64_t key_head = item % key_heads;
  const int64_t width = PanelColumns();
  const HeadPages pages(a, text, key_head);
  for (int64_t i = 0; i < text.rows; ++i) {
    const int64_t position = text.first_position + i;
    const int64_t at = (text.first_row + i) * KeyStrideOf(a) + key_head * a.head_dim;
    const float* k = a.k + at;
    const float* v = a.v + at;
    float* key = pages.KeyPanel(position) + position % width;
    for (int64_t c = 0; c < a.head_dim; ++c) key[c * width] = k[c];
    for (int64_t c = 0; c < a.head_dim; c += width) {
      const int64_t count = std::min(width, a.head_dim - c);
      float* value = pages.Values(position, c);
      std::memcpy(value, v + c, static_cast<size_t>(count) * sizeof(float));
      std::fill(value + count, value + width, 0.0f);
    }
  }
}

// Products of `rows` queries with the keys of the span.
void ScorePages(const MatrixView& q, const HeadPages& pages, int64_t rows, int64_t head_dim,
                const KeySpan& keys, float* scores, int64_t stride) {
  const int64_t width = PanelColumns();
  for (int64_t key = keys.begin; key < keys.end; key += width) {
    // Positions of the panel behind the last one have any bits, and are multiplied to nowhere.
    MultiplyPacked(q, pages.KeyPanel(key), rows, std::min(width, keys.end - key), head_dim,
                   scores + key, stride, Store::kAssign);
  }
}

// c (rows x columns) = or += what has been summed of them.
HWY_INLINE void StoreSums(const float* HWY_RESTRICT sums, int64_t rows, int64_t columns,
                          Store store, float* c, int64_t c_stride) {
  for (int64_t i = 0; i < rows; ++i, sums += PanelColumns(), c += c_stride) {
    for (int64_t j = 0; j < columns; ++j) c[j] = store == Store::kAdd ? c[j] + sums[j] : sums[j];
  }
}

// out (rows x head_dim) = probabilities of the keys of the span times their values; sums are made
// block by block of kDepthBlock keys.
void WeighPages(const float* probabilities, int64_t stride, const HeadPages& pages, int64_t rows,
                int64_t head_dim, const KeySpan& keys, float* out, int64_t out_stride) {
  const int64_t width = PanelColumns();
  HWY_ALIGN float sums[kTileRows * kWidestPanel];
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
    for (int64_t c = 0; c < head_dim; c += width) {
      Store store = Store::kAssign;
      for (int64_t key = keys.begin; key < keys.end;) {
        const int64_t end = std::min(keys.end, (key / kDepthBlock + 1) * kDepthBlock);
        std::fill_n(sums, tile_rows * width, 0.0f);
        while (key < end) {
          const int64_t count = std::min(end - key, pages.Left(key));
          ContinueTileOfRows<kTileRows>(tile_rows, probabilities + i * stride + key, stride, 1,
                                        pages.Values(key, c), count, sums);
          key += count;
        }
        StoreSums(sums, tile_rows, std::min(width, head_dim - c), store, out + i * out_stride + c,
                  out_stride);
        store = Store::kAdd;
      }
    }
  }
}

void PagedAttentionItem(const AttentionArgs& a, int64_t item, float* scratch) {
  const PagedText& text = a.pages->texts[item / a.heads];
  const int64_t head = item % a.heads;
  const HeadPages pages(a, text, head / a.group);
  AttentionPieces s;
  CutScratch(scratch, ScratchShapeOf(a), &s);
  const int64_t out_stride = a.heads * a.head_dim;
  const int64_t end = text.first_position + text.rows;
  for (int64_t first = text.first_position; first < end;) {
    // Blocks end at the same places wherever they begin.
    const int64_t rows = std::min(kQueryBlock - first % kQueryBlock, end - first);
    const int64_t row = text.first_row + first - text.first_position;
    const KeySpan keys = KeysOfBlock(a, 0, first, rows);
    ScorePages({.data = a.q + row * a.stride + head * a.head_dim,
                .row_stride = a.stride,
                .column_stride = 1},
               pages, rows, a.head_dim, keys, s.scores, s.stride);
    ScaleScores(a, rows, keys, s.scores, s.stride);
    for (int64_t i = 0; i < rows; ++i) {
      SoftmaxRow(a, 0, head, first + i, keys, s.scores + i * s.stride, s.drop);
    }
    WeighPages(s.scores, s.stride, pages, rows, a.head_dim, keys,
               a.out + row * out_stride + head * a.head_dim, out_stride);
    first += rows;
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(AppendItem);
HWY_EXPORT(PagedAttentionItem);

void PagedAttentionCpu(const AttentionArgs& args, ThreadPool& pool) {
  const KeyPages& pages = *args.pages;
  TERCIO_CHECK_LE(args.head_dim, kDepthBlock);
  TERCIO_CHECK_EQ(pages.page_tokens % kWidestPanel, 0);
  TERCIO_CHECK(args.causal && args.document_starts == nullptr && args.dropout.probability == 0);
  const int64_t per_thread = AttentionScratchStride(ScratchShapeOf(args));
  pool.ParallelFor(pages.count * args.heads / args.group, [&](int64_t item, int) {
    HWY_DYNAMIC_DISPATCH(AppendItem)(args, item);
  });
  // Queries of a group read the keys that one item has written.
  pool.ParallelFor(pages.count * args.heads, [&](int64_t item, int thread) {
    HWY_DYNAMIC_DISPATCH(PagedAttentionItem)(args, item, args.scratch + thread * per_thread);
  });
}

}  // namespace tercio::kernels
#endif
