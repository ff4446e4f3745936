// A call that may never return, such as one into a driver that hangs, made by a thread that is left
// behind when it does not.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "absl/time/time.h"

namespace tercio {

// Nothing when the call has not returned within `patience`; then it must not use what may be gone
// by the time it does.
template <typename Result>
std::optional<Result> CallWithin(absl::Duration patience, std::function<Result()> call) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> result = promise->get_future();
  std::thread([promise, call = std::move(call)] { promise->set_value(call()); }).detach();
  if (result.wait_for(absl::ToChronoNanoseconds(patience)) != std::future_status::ready) {
    return std::nullopt;
  }
  return result.get();
}

}  // namespace tercio
