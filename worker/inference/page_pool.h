// Which pages of a cache of keys and values are in use, by how many texts, and what those hold that
// any text may read. Decides numbers only: where a page lies is the caller's.
//
// A page that has been filled can be published: as the ids that it holds, behind what it follows.
// A text that begins with the same ids reads it instead of computing it. Such a page keeps its
// content when its last user returns it, until the pool needs it for something else, the page that
// was returned longest ago first.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tercio::inference {

class PagePool {
 public:
  using Page = int32_t;  // [0, total)
  // What a published page and all before it hold: equal numbers, equal ids. Positive, and never
  // given to another content. Callers number the beginnings of texts themselves, from 0 downwards.
  using Content = int64_t;

  struct Known {
    Page page = 0;
    Content content = 0;
  };

  // REQUIRES: pages >= 0.
  explicit PagePool(int32_t pages);

  int64_t total() const { return static_cast<int64_t>(pages_.size()); }
  // Pages that Take can give: those that no text uses.
  int64_t free() const { return static_cast<int64_t>(empty_.size() + kept_.size()); }

  // A page with one user, whose content is gone; nullopt: none is free.
  std::optional<Page> Take();
  // One user less. REQUIRES: the page has one.
  void Return(Page page);

  // The page that holds `ids` behind `before`, with one more user; nullopt: none does.
  std::optional<Known> Find(Content before, absl::Span<const int32_t> ids);
  // The same without a further user, and only a page that has one: to share it takes no free page.
  std::optional<Known> FindInUse(Content before, absl::Span<const int32_t> ids) const;
  // The page holds `ids` behind `before` from now on, as long as it is in use or kept. If another
  // one does already, this page's content stays its user's own. REQUIRES: it has a user, and was
  // not published since it was taken.
  Content Publish(Page page, Content before, absl::Span<const int32_t> ids);

 private:
  using Key = std::pair<Content, std::vector<int32_t>>;
  using Index = std::map<Key, Known>;
  struct State {
    int64_t users = 0;
    std::optional<Index::iterator> published;
    std::list<Page>::iterator place;  // in kept_, where it is published and without users
  };

  State& At(Page page) { return pages_[static_cast<size_t>(page)]; }

  std::vector<State> pages_;
  std::vector<Page> empty_;  // without users and content
  std::list<Page> kept_;     // without users, but with content: the longest kept first
  Index index_;
  Content last_ = 0;
};

}  // namespace tercio::inference
