#include "worker/progress/whereabouts.h"

#include <cstdio>

namespace tercio::progress {

// The thread that begins a step is the engine's: this is how the others are told apart from it.
void Whereabouts::BeginStep(int64_t step) {
  engine_ = std::this_thread::get_id();
  step_ = step;
  action_ = "";
  index_ = -1;
  if (page_ != nullptr) page_->BeginStep(step);
}

void Whereabouts::BeginAction(const char* name, int index) {
  engine_ = std::this_thread::get_id();
  action_ = name;
  index_ = index;
  if (page_ == nullptr) return;
  if (index < 0) return page_->BeginAction(name);
  // Every action of a step comes here, so it does not allocate.
  char text[48];
  const int length = std::snprintf(text, sizeof(text), "%s %d", name, index);
  page_->BeginAction(std::string_view(text, static_cast<size_t>(length)));
}

void Whereabouts::EndStep(int64_t step, double step_seconds, double compute_seconds) {
  if (page_ != nullptr) page_->EndStep(step, step_seconds, compute_seconds);
}

void Whereabouts::BeginJoin(const std::string& group, const std::string& other) {
  if (page_ == nullptr) return;
  MutexLock lock(mutex_);
  joining_ = {group, other};
  // The other thread may have been waiting before the engine came to wait for it.
  for (const auto& [thread, position] : beside_) {
    if (IsJoining(position.group)) page_->BeginWait(position);
  }
}

void Whereabouts::EndJoin(double seconds) {
  CountWait(seconds);
  if (page_ == nullptr) return;
  MutexLock lock(mutex_);
  joining_ = {};
  page_->EndWait();
}

void Whereabouts::BeginWait(const CollectivePosition& position) {
  if (page_ == nullptr) return;
  if (OnEngineThread()) return page_->BeginWait(position);
  MutexLock lock(mutex_);
  beside_[std::this_thread::get_id()] = position;
  // While the engine works, the wait of another thread holds nothing up.
  if (IsJoining(position.group)) page_->BeginWait(position);
}

void Whereabouts::EndWait(double seconds) {
  const bool engine = OnEngineThread();
  if (engine) CountWait(seconds);
  if (page_ == nullptr) return;
  if (engine) return page_->EndWait();
  MutexLock lock(mutex_);
  const auto mine = beside_.find(std::this_thread::get_id());
  // Without an entry the page shows no wait of this thread.
  if (mine == beside_.end()) return;
  if (IsJoining(mine->second.group)) page_->EndWait();
  beside_.erase(mine);
}

std::string Whereabouts::action() const {
  // Name and index may belong to two actions, if the
  // engine moves on just now: people read the text.
  const char* name = action_;
  const int index = index_;
  return index < 0 ? std::string(name) : name + (" " + std::to_string(index));
}

}  // namespace tercio::progress
