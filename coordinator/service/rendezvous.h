// The ranks of an attempt exchange addresses and unique ids here: keys that are put once and waited
// for. A wait costs no thread, and a put wakes only the waiters for its key.
//
// Threads: any. Answers are given from the thread of the call that brings them about, without a
// lock held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/tercio/v1/node_service.pb.h"

namespace tercio::coordinator {

class Rendezvous {
 public:
  using Values = std::vector<std::string>;  // in the order of the keys
  using Answer = std::function<void(absl::StatusOr<Values>)>;

  // A later attempt of a job drops what belongs to an earlier one.
  void Put(const v1::RunId& run, const std::string& key, const std::string& value);

  // Answers once: when every key is there, or by Expire or Cancel. Returns a number for Cancel.
  int64_t Get(const v1::RunId& run, const std::vector<std::string>& keys, absl::Time deadline,
              Answer answer);

  // The caller has stopped waiting: the answer is given immediately, as CANCELLED, unless it was
  // given.
  void Cancel(int64_t waiter);

  // DEADLINE_EXCEEDED, naming the missing keys, where the deadline has come; ABORTED where
  // `is_present` says that the attempt is over, whose values are dropped. To be called now and
  // then.
  void Expire(absl::Time now, const std::function<bool(const v1::RunId&)>& is_present);

 private:
  struct Waiter {
    v1::RunId run;
    std::vector<std::string> keys;
    absl::Time deadline;
    size_t missing = 0;
    Answer answer;
  };
  struct Attempt {
    int number = 0;
    std::map<std::string, std::string> values;
    std::multimap<std::string, int64_t> waiting;  // key -> waiter
  };
  // The attempt's values; those of an older attempt are dropped.
  Attempt& Of(const v1::RunId& run) TERCIO_REQUIRES(mutex_);
  Values Collect(const Attempt& attempt, const Waiter& waiter) const;

  Mutex mutex_;
  std::map<std::string, Attempt> attempts_ TERCIO_GUARDED_BY(mutex_);  // by job
  std::map<int64_t, Waiter> waiters_ TERCIO_GUARDED_BY(mutex_);
  int64_t next_ TERCIO_GUARDED_BY(mutex_) = 1;
};

}  // namespace tercio::coordinator
