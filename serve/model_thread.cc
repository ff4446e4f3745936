#include "serve/model_thread.h"

#include <iterator>
#include <utility>

#include "common/steady_time.h"

namespace tercio::serve {
namespace {

void Append(std::vector<TextNews> more, std::vector<TextNews>* all) {
  all->insert(all->end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

}  // namespace

ModelThread::ModelThread(inference::TextBatch& batch, RequestQueue queue, int64_t prompt_rows,
                         std::function<void()> changed)
    : batch_(batch),
      prompt_rows_(prompt_rows),
      changed_(std::move(changed)),
      queue_(std::move(queue)),
      thread_([this] { Run(); }) {}

ModelThread::~ModelThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  thread_.join();
}

absl::Status ModelThread::Submit(RequestId request, std::vector<TextTask> tasks) {
  MutexLock lock(mutex_);
  work_.NotifyAll();
  return queue_.Submit(request, std::move(tasks), SteadyNow());
}

void ModelThread::Cancel(RequestId request) {
  MutexLock lock(mutex_);
  queue_.Cancel(request);
}

std::vector<TextNews> ModelThread::TakeNews() {
  MutexLock lock(mutex_);
  return std::exchange(news_, {});
}

ModelThread::Load ModelThread::load() const {
  MutexLock lock(mutex_);
  return {queue_.waiting(), queue_.growing()};
}

void ModelThread::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (queue_.idle()) {
      work_.Wait(mutex_);
      continue;
    }
    Append(queue_.Fill(batch_), &news_);
    // Requests come and go while the model computes.
    lock.Unlock();
    const absl::Span<const inference::TextBatch::News> made = batch_.Step(prompt_rows_);
    lock.Lock();
    Append(queue_.Take(batch_, made, SteadyNow()), &news_);
    if (!news_.empty()) changed_();
  }
}

}  // namespace tercio::serve
