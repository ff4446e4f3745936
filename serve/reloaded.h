// What is made of files, and made again when they change, so that keys and certificates are
// renewed without a restart. Where new content cannot be used, the old value stays in use; this is
// logged once, and the new content is tried again: it may have been half written.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/security/file_watch.h"
#include "common/status_macros.h"

namespace tercio::serve {

// The files are looked at no more often.
inline constexpr absl::Duration kBetweenLooks = absl::Seconds(1);
inline constexpr absl::Duration kBetweenTries = absl::Seconds(10);

template <typename T>
class Reloaded {
 public:
  using Load = std::function<absl::StatusOr<T>()>;
  // `what`: for the log. Errors of `load`, which is called at once, and reads the files in `paths`.
  static absl::StatusOr<std::unique_ptr<Reloaded>> Make(std::string what,
                                                        std::vector<std::string> paths, Load load) {
    // In this order, so that a change in between is noticed.
    FileWatch watch(std::move(paths), kBetweenTries);
    TERCIO_ASSIGN_OR_RETURN(T first, load());
    return std::unique_ptr<Reloaded>(
        new Reloaded(std::move(what), std::move(watch), std::move(load), std::move(first)));
  }

  // Valid until the next call. `now`: on the steady clock.
  const T& Current(absl::Time now) {
    if (now < next_look_) return current_;
    next_look_ = now + kBetweenLooks;
    const FileWatch::Due due = watch_.Look(now);
    if (due == FileWatch::Due::kNo) return current_;
    absl::StatusOr<T> changed = load_();
    watch_.Tried(changed.ok(), now);
    if (changed.ok()) {
      current_ = *std::move(changed);
      LogInfo(absl::StrCat(what_, " reloaded"));
    } else if (due == FileWatch::Due::kChanged) {
      LogWarning(absl::StrCat("the previous ", what_,
                              " stays in use: ", std::string(changed.status().message())));
    }
    return current_;
  }

 private:
  Reloaded(std::string what, FileWatch watch, Load load, T first)
      : what_(std::move(what)),
        load_(std::move(load)),
        watch_(std::move(watch)),
        current_(std::move(first)) {}

  const std::string what_;
  const Load load_;
  FileWatch watch_;
  absl::Time next_look_ = absl::InfinitePast();
  T current_;
};

}  // namespace tercio::serve
