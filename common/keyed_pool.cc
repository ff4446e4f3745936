#include "common/keyed_pool.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/catch_all.h"
#include "common/check.h"
#include "common/log.h"

namespace tercio {

KeyedPool::KeyedPool(int per_key, int most, Start start)
    : per_key_(per_key),
      most_(most),
      start_(start != nullptr ? std::move(start) : [](std::function<void()> run) {
        return std::thread(std::move(run));
      }) {
  TERCIO_CHECK(per_key >= 1 && most >= 1);
  // One thread exists from the start, so that work is done even if no other can be started.
  threads_.push_back(start_([this] { Work(); }));
}

KeyedPool::~KeyedPool() {
  std::vector<std::thread> threads;
  {
    // The mark is set under the lock, so that no thread is added after it.
    MutexLock lock(mutex_);
    stop_ = true;
    threads = std::move(threads_);
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
}

void KeyedPool::Run(const std::string& key, std::function<void()> task) {
  MutexLock lock(mutex_);
  Queue& queue = queues_[key];
  queue.tasks.push_back(std::move(task));
  MakeReady(key, queue);
  // A thread is added only when all others have something to do.
  if (idle_ < static_cast<int>(ready_.size())) AddThread();
  changed_.NotifyAll();
}

void KeyedPool::MakeReady(const std::string& key, Queue& queue) {
  // A key waits once, however many tasks it has: keys take turns.
  if (queue.waits || queue.tasks.empty() || queue.running == per_key_) return;
  queue.waits = true;
  ready_.push_back(key);
}

void KeyedPool::AddThread() {
  if (stop_ || static_cast<int>(threads_.size()) >= most_) return;
  try {
    threads_.push_back(start_([this] { Work(); }));
  } catch (const std::system_error& error) {
    // The threads that run will do the work later.
    LogWarning(absl::StrCat("cannot start another thread for disk work; ", threads_.size(),
                            " are running: ", error.what()));
  }
}

void KeyedPool::Work() {
  MutexLock lock(mutex_);
  while (true) {
    ++idle_;
    while (!stop_ && ready_.empty()) changed_.Wait(mutex_);
    --idle_;
    // Pending tasks are done before the end: only an empty queue ends a thread.
    if (ready_.empty()) return;
    const std::string key = std::move(ready_.front());
    ready_.pop_front();
    Queue& queue = queues_.at(key);
    queue.waits = false;
    std::function<void()> task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    ++queue.running;
    ++busy_;
    // The key goes to the end of the line before its task runs, if it may run another.
    MakeReady(key, queue);
    if (idle_ < static_cast<int>(ready_.size())) AddThread();
    changed_.NotifyAll();
    lock.Unlock();
    // A task that throws must not take the thread with it.
    const absl::Status done = CatchAll([&task] {
      task();
      return absl::OkStatus();
    });
    if (!done.ok()) LogError(absl::StrCat("work for ", key, ": ", std::string(done.message())));
    task = nullptr;  // destroys its captures without holding the lock
    lock.Lock();
    --busy_;
    // The map may have changed meanwhile, so that the queue is looked up again.
    Queue& after = queues_.at(key);
    --after.running;
    MakeReady(key, after);
    // Keys are jobs, which come and go.
    if (after.running == 0 && after.tasks.empty()) queues_.erase(key);
    changed_.NotifyAll();
  }
}

bool KeyedPool::Drain(absl::Duration patience) {
  MutexLock lock(mutex_);
  return changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(patience),
                          [this]() TERCIO_REQUIRES(mutex_) { return queues_.empty(); });
}

}  // namespace tercio
