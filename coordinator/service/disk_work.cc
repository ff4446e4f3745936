#include "coordinator/service/disk_work.h"

#include <utility>

namespace tercio::coordinator {

void DiskWork::Run(const std::string& job, std::function<void()> task) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::deque<std::function<void()>>& tasks = tasks_[job];
  tasks.push_back(std::move(task));
  if (tasks.size() == 1) pool_.Run([this, job] { DoFirst(job); });
}

void DiskWork::DoFirst(const std::string& job) {
  std::function<void()> task;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    task = std::move(tasks_.at(job).front());
  }
  task();
  std::lock_guard<std::mutex> lock(mutex_);
  const auto tasks = tasks_.find(job);
  tasks->second.pop_front();
  if (tasks->second.empty()) {
    tasks_.erase(tasks);
  } else {
    pool_.Run([this, job] { DoFirst(job); });
  }
}

}  // namespace tercio::coordinator
