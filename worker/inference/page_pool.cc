#include "worker/inference/page_pool.h"

#include <numeric>

#include "common/check.h"

namespace tercio::inference {

PagePool::PagePool(int32_t pages)
    : pages_(static_cast<size_t>(pages)), empty_(static_cast<size_t>(pages)) {
  // The first page is taken first.
  std::iota(empty_.rbegin(), empty_.rend(), 0);
}

std::optional<PagePool::Page> PagePool::Take() {
  Page page = 0;
  if (!empty_.empty()) {
    page = empty_.back();
    empty_.pop_back();
  } else if (!kept_.empty()) {
    page = kept_.front();
    kept_.pop_front();
    index_.erase(*At(page).published);
    At(page).published.reset();
  } else {
    return std::nullopt;
  }
  At(page).users = 1;
  return page;
}

void PagePool::Return(Page page) {
  State& state = At(page);
  TERCIO_CHECK_GT(state.users, 0);
  if (--state.users > 0) return;
  if (state.published.has_value()) {
    state.place = kept_.insert(kept_.end(), page);
  } else {
    empty_.push_back(page);
  }
}

std::optional<PagePool::Known> PagePool::Find(Content before, absl::Span<const int32_t> ids) {
  const auto found = index_.find({before, {ids.begin(), ids.end()}});
  if (found == index_.end()) return std::nullopt;
  State& state = At(found->second.page);
  if (state.users++ == 0) kept_.erase(state.place);
  return found->second;
}

std::optional<PagePool::Known> PagePool::FindInUse(Content before,
                                                   absl::Span<const int32_t> ids) const {
  const auto found = index_.find({before, {ids.begin(), ids.end()}});
  if (found == index_.end()) return std::nullopt;
  if (pages_[static_cast<size_t>(found->second.page)].users == 0) return std::nullopt;
  return found->second;
}

PagePool::Content PagePool::Publish(Page page, Content before, absl::Span<const int32_t> ids) {
  State& state = At(page);
  TERCIO_CHECK(state.users > 0 && !state.published.has_value());
  const auto [at, is_new] =
      index_.insert({{before, {ids.begin(), ids.end()}}, {.page = page, .content = last_ + 1}});
  if (is_new) {
    ++last_;
    state.published = at;
  }
  return at->second.content;
}

}  // namespace tercio::inference
