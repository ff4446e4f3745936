#include "worker/inference/page_pool.h"

#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace tercio::inference {
namespace {

using Ids = std::vector<int32_t>;

TEST(PagePool, GivesEachPageOnce) {
  PagePool pool(3);
  EXPECT_EQ(pool.total(), 3);
  std::set<PagePool::Page> pages;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.free(), 3 - i);
    pages.insert(pool.Take().value());
  }
  EXPECT_EQ(pages, (std::set<PagePool::Page>{0, 1, 2}));
  EXPECT_FALSE(pool.Take().has_value());
  pool.Return(1);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_FALSE(PagePool(0).Take().has_value());
}

TEST(PagePool, ReturningWhatNobodyUsesIsAFault) {
  PagePool pool(2);
  pool.Return(pool.Take().value());
  EXPECT_DEATH(pool.Return(0), "check failed");
}

TEST(PagePool, FindsWhatIsPublished) {
  PagePool pool(4);
  const PagePool::Page first = pool.Take().value();
  const PagePool::Page second = pool.Take().value();
  const PagePool::Content a = pool.Publish(first, 0, Ids{1, 2});
  const PagePool::Content ab = pool.Publish(second, a, Ids{3, 4});
  EXPECT_NE(a, ab);
  // The same ids behind something else are another content.
  EXPECT_FALSE(pool.Find(0, Ids{3, 4}).has_value());
  EXPECT_FALSE(pool.Find(-1, Ids{1, 2}).has_value());
  EXPECT_FALSE(pool.Find(0, Ids{1}).has_value());
  const auto found = pool.Find(a, Ids{3, 4});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->page, second);
  EXPECT_EQ(found->content, ab);
  // It has two users now.
  EXPECT_EQ(pool.FindInUse(a, Ids{3, 4})->page, second);
  pool.Return(second);
  EXPECT_EQ(pool.free(), 2);
  pool.Return(second);
  EXPECT_EQ(pool.free(), 3);
  EXPECT_FALSE(pool.FindInUse(a, Ids{3, 4}).has_value());
  EXPECT_FALSE(pool.FindInUse(a, Ids{3}).has_value());
  // What a text computes beside another one is its own, but what follows it is found behind both.
  const PagePool::Page other = pool.Take().value();
  EXPECT_EQ(pool.Publish(other, 0, Ids{1, 2}), a);
  EXPECT_EQ(pool.Find(0, Ids{1, 2})->page, first);
}

TEST(PagePool, KeepsContentsUntilPagesAreNeeded) {
  PagePool pool(3);
  PagePool::Page pages[3];
  PagePool::Content contents[2];
  for (PagePool::Page& page : pages) page = pool.Take().value();
  contents[0] = pool.Publish(pages[0], 0, Ids{1});
  contents[1] = pool.Publish(pages[1], contents[0], Ids{2});
  // What follows is returned first, and so needed first.
  for (int i = 2; i >= 0; --i) pool.Return(pages[i]);
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.Take(), pages[2]);  // nothing is lost with it
  EXPECT_EQ(pool.Take(), pages[1]);
  EXPECT_FALSE(pool.Find(contents[0], Ids{2}).has_value());
  const auto found = pool.Find(0, Ids{1});
  ASSERT_TRUE(found.has_value());
  // In use again, it is nobody else's to take.
  EXPECT_FALSE(pool.Take().has_value());
  pool.Return(found->page);
  EXPECT_EQ(pool.Take(), pages[0]);
  // A content that comes back has a new number: what followed the old one is not behind it.
  EXPECT_NE(pool.Publish(pages[0], 0, Ids{1}), contents[0]);
}

TEST(PagePool, CountsUnderRandomUse) {
  constexpr uint64_t kSeed = 20261129;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  PagePool pool(17);
  std::multiset<PagePool::Page> held;
  std::map<PagePool::Page, int32_t> published;  // ids of pages in use
  for (int step = 0; step < 20000; ++step) {
    const auto id = static_cast<int32_t>(random() % 12);
    if (random() % 3 != 0 && !held.empty()) {
      auto one = held.begin();
      std::advance(one, static_cast<ptrdiff_t>(random() % held.size()));
      const PagePool::Page page = *one;
      held.erase(one);
      if (held.count(page) == 0) published.erase(page);
      pool.Return(page);
    } else if (random() % 2 == 0) {
      const auto found = pool.Find(0, Ids{id});
      if (!found.has_value()) continue;
      if (held.count(found->page) > 0) {
        EXPECT_EQ(published.at(found->page), id);
      }
      published[found->page] = id;
      held.insert(found->page);
    } else if (const auto page = pool.Take(); page.has_value()) {
      ASSERT_EQ(held.count(*page), 0u);
      held.insert(*page);
      const PagePool::Content content = pool.Publish(*page, 0, Ids{id});
      const auto known = pool.Find(0, Ids{id});
      ASSERT_TRUE(known.has_value());
      EXPECT_EQ(known->content, content);
      if (known->page == *page) published[*page] = id;
      pool.Return(known->page);
    } else {
      EXPECT_EQ(pool.free(), 0);
    }
    const std::set<PagePool::Page> distinct(held.begin(), held.end());
    ASSERT_EQ(pool.free(), pool.total() - static_cast<int64_t>(distinct.size()));
  }
}

}  // namespace
}  // namespace tercio::inference
