// Mutexes, locks and condition variables that clang checks. //tests/tidy:thread_safety
// (bazel/thread_safety.bzl) cannot be built where a member is used without the mutex that its
// TERCIO_GUARDED_BY names, or a function is called without the one that its TERCIO_REQUIRES names.
// For gcc the macros are empty. Underneath are the classes of the standard library, which
// ThreadSanitizer knows.
//
// The check sees one function at a time, and a lambda is a function of its own, which says what its
// caller holds:
//   changed_.WaitFor(mutex_, kInterval, [this]() TERCIO_REQUIRES(mutex_) { return stopping_; });
// A wait without a deadline is a loop:
//   while (queue_.empty()) changed_.Wait(mutex_);
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define TERCIO_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define TERCIO_THREAD_SAFETY(attribute)
#endif

#define TERCIO_CAPABILITY(name) TERCIO_THREAD_SAFETY(capability(name))
#define TERCIO_SCOPED_CAPABILITY TERCIO_THREAD_SAFETY(scoped_lockable)

// A member that is used under this mutex only; PT: what the member points to.
#define TERCIO_GUARDED_BY(mutex) TERCIO_THREAD_SAFETY(guarded_by(mutex))
#define TERCIO_PT_GUARDED_BY(mutex) TERCIO_THREAD_SAFETY(pt_guarded_by(mutex))

// A function whose caller holds these mutexes, or must not hold them.
#define TERCIO_REQUIRES(...) TERCIO_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define TERCIO_EXCLUDES(...) TERCIO_THREAD_SAFETY(locks_excluded(__VA_ARGS__))

// A function that returns with the mutexes locked, locked where it returns `success`, or unlocked.
#define TERCIO_ACQUIRE(...) TERCIO_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TERCIO_TRY_ACQUIRE(...) TERCIO_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define TERCIO_RELEASE(...) TERCIO_THREAD_SAFETY(release_capability(__VA_ARGS__))

// A function that returns a reference to this mutex.
#define TERCIO_RETURN_CAPABILITY(mutex) TERCIO_THREAD_SAFETY(lock_returned(mutex))

// A function that is not checked, for a reason that stands beside it.
#define TERCIO_NO_THREAD_SAFETY_ANALYSIS TERCIO_THREAD_SAFETY(no_thread_safety_analysis)

namespace tercio {

class TERCIO_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() TERCIO_ACQUIRE() { mutex_.lock(); }
  void Unlock() TERCIO_RELEASE() { mutex_.unlock(); }
  bool TryLock() TERCIO_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// A mutex for which a thread waits no longer than it wants to.
class TERCIO_CAPABILITY("mutex") TimedMutex {
 public:
  TimedMutex() = default;
  TimedMutex(const TimedMutex&) = delete;
  TimedMutex& operator=(const TimedMutex&) = delete;

  void Lock() TERCIO_ACQUIRE() { mutex_.lock(); }
  void Unlock() TERCIO_RELEASE() { mutex_.unlock(); }
  template <typename Rep, typename Period>
  bool TryLockFor(std::chrono::duration<Rep, Period> most) TERCIO_TRY_ACQUIRE(true) {
    return mutex_.try_lock_for(most);
  }

 private:
  std::timed_mutex mutex_;
};

// A mutex that its thread may lock again, for code that a library calls back from within a call.
class TERCIO_CAPABILITY("mutex") RecursiveMutex {
 public:
  RecursiveMutex() = default;
  RecursiveMutex(const RecursiveMutex&) = delete;
  RecursiveMutex& operator=(const RecursiveMutex&) = delete;

  void Lock() TERCIO_ACQUIRE() { mutex_.lock(); }
  void Unlock() TERCIO_RELEASE() { mutex_.unlock(); }

 private:
  std::recursive_mutex mutex_;
};

// Holds a mutex until the end of the block; in between it can be unlocked and locked again.
template <typename Lockable>
class TERCIO_SCOPED_CAPABILITY BasicMutexLock {
 public:
  explicit BasicMutexLock(Lockable& mutex) TERCIO_ACQUIRE(mutex) : mutex_(mutex) { mutex.Lock(); }
  ~BasicMutexLock() TERCIO_RELEASE() {
    if (held_) mutex_.Unlock();
  }
  BasicMutexLock(const BasicMutexLock&) = delete;
  BasicMutexLock& operator=(const BasicMutexLock&) = delete;

  void Unlock() TERCIO_RELEASE() {
    held_ = false;
    mutex_.Unlock();
  }
  void Lock() TERCIO_ACQUIRE() {
    mutex_.Lock();
    held_ = true;
  }

 private:
  Lockable& mutex_;
  bool held_ = true;
};
using MutexLock = BasicMutexLock<Mutex>;
using TimedMutexLock = BasicMutexLock<TimedMutex>;
using RecursiveMutexLock = BasicMutexLock<RecursiveMutex>;

// As std::condition_variable: waits let the mutex go and return with it locked, perhaps without a
// notification. Deadlines are of the clock that they name, durations of the steady one.
class ConditionVariable {
 public:
  ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;

  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  void Wait(Mutex& mutex) TERCIO_REQUIRES(mutex) {
    Borrowed held(mutex);
    changed_.wait(held.lock);
  }
  // Whether it was woken in time.
  template <typename Rep, typename Period>
  bool WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> most) TERCIO_REQUIRES(mutex) {
    Borrowed held(mutex);
    return changed_.wait_for(held.lock, most) == std::cv_status::no_timeout;
  }
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline)
      TERCIO_REQUIRES(mutex) {
    Borrowed held(mutex);
    return changed_.wait_until(held.lock, deadline) == std::cv_status::no_timeout;
  }
  // Until `condition` holds or the time is up; returns whether it holds.
  template <typename Rep, typename Period, typename Condition>
  bool WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> most, Condition condition)
      TERCIO_REQUIRES(mutex) {
    Borrowed held(mutex);
    return changed_.wait_for(held.lock, most, std::move(condition));
  }
  template <typename Clock, typename Duration, typename Condition>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline,
                 Condition condition) TERCIO_REQUIRES(mutex) {
    Borrowed held(mutex);
    return changed_.wait_until(held.lock, deadline, std::move(condition));
  }

 private:
  // The caller's lock in the form that the library wants; it stays the caller's.
  struct Borrowed {
    explicit Borrowed(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Borrowed() { lock.release(); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace tercio
