// Bounds the memory that messages of all uploads hold together, so that hundreds of ranks that
// upload at once are slow and gRPC's own limit (common/security/channel.h) is never reached, at
// which it breaks off calls. An upload asks for room before it reads a message; where there is none
// its sender waits.
//
// No job can take what others need: a job gets more as long as it will hold no more than was free,
// so that those whose disks hang, however many, leave room. A read for which nothing has come for
// `patience` holds no memory: what was meant for it is lent to others.
//
// Threads: any. `begin` functions are called without a lock, by whichever call makes room, or by a
// thread of the budget's own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::coordinator {

class UploadBudget {
 public:
  struct Limits {
    int64_t bytes = int64_t{256} << 20;  // a quarter of what gRPC may hold
    // Reserved for a message before it has come. A larger one is taken, and others wait for it.
    int64_t message_bytes = int64_t{1} << 20;
    absl::Duration patience = absl::Seconds(10);
  };

  explicit UploadBudget(const Limits& limits);
  // Makes no more calls. REQUIRES: everything that was asked for is released.
  ~UploadBudget();
  UploadBudget(const UploadBudget&) = delete;
  UploadBudget& operator=(const UploadBudget&) = delete;

  // One message, from the wish to read it until it is handled.
  using Id = uint64_t;
  // Asks for room for the next message of an upload of `job`. True: it may be read now. False: it
  // may when `begin` is called, once.
  bool Ask(const std::string& job, Id* id, std::function<void()> begin);
  // The message has arrived, with this many bytes.
  void Arrived(Id id, int64_t bytes);
  // It is handled, or will not be read. What has not begun does not begin, unless that is under way
  // in another thread.
  void Release(Id id);

  struct Figures {
    int64_t held = 0;       // bytes
    int64_t most_held = 0;  // ever
    int64_t waiting = 0;    // messages that are not read yet
  };
  Figures figures() const;

 private:
  enum class Stage { kWaiting, kReading, kLent, kArrived };
  struct Message {
    std::string job;
    Stage stage = Stage::kWaiting;
    int64_t bytes = 0;  // its share of the budget
    std::function<void()> begin;
    absl::Time since;               // start of a read
    std::list<Id>::iterator place;  // in reading_
  };
  struct Job {
    int64_t bytes = 0;  // its share of the budget
    int messages = 0;
    std::deque<Id> waiting;
  };
  using Begins = std::vector<std::function<void()>>;

  void Watch();
  bool Fits(const Job& job) const TERCIO_REQUIRES(mutex_);
  void Hold(Message& message, int64_t bytes) TERCIO_REQUIRES(mutex_);
  void StartReading(Id id, Message& message) TERCIO_REQUIRES(mutex_);
  void LendIdle() TERCIO_REQUIRES(mutex_);
  Begins Grant() TERCIO_REQUIRES(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<Id, Message> messages_ TERCIO_GUARDED_BY(mutex_);
  std::map<std::string, Job> jobs_ TERCIO_GUARDED_BY(mutex_);  // that have messages
  std::list<Id> reading_ TERCIO_GUARDED_BY(mutex_);            // kReading, the oldest first
  std::string turn_ TERCIO_GUARDED_BY(mutex_);                 // the job that was given room last
  Id next_ TERCIO_GUARDED_BY(mutex_) = 1;
  Figures figures_ TERCIO_GUARDED_BY(mutex_);
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace tercio::coordinator
