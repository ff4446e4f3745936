// The thread that runs the model: passes over the texts of a queue, as long as there are any.
//
// Threads: all methods from any.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "serve/request_queue.h"

namespace tercio::serve {

class ModelThread {
 public:
  struct Load {
    size_t waiting = 0;
    size_t growing = 0;
  };

  // Texts grow in `batch`, which nothing else uses meanwhile. `changed` is called when there is
  // news, from the thread. Of prompts `prompt_rows` ids are read in a pass.
  ModelThread(inference::TextBatch& batch, RequestQueue queue, int64_t prompt_rows,
              std::function<void()> changed);
  // Ends after the running pass.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  // Errors of RequestQueue::Submit.
  absl::Status Submit(RequestId request, std::vector<TextTask> tasks);
  void Cancel(RequestId request);
  std::vector<TextNews> TakeNews();
  Load load() const;

 private:
  void Run();

  inference::TextBatch& batch_;
  const int64_t prompt_rows_;
  const std::function<void()> changed_;
  mutable Mutex mutex_;
  ConditionVariable work_;
  RequestQueue queue_ TERCIO_GUARDED_BY(mutex_);
  std::vector<TextNews> news_ TERCIO_GUARDED_BY(mutex_);
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tercio::serve
