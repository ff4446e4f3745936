// A call that may never return, such as one into a hanging driver, made by a thread that is
// abandoned if it does not.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "absl/time/time.h"

namespace tercio {

// nullopt if the call has not returned within `patience`; the call must then not use anything that
// may be destroyed by the time it does.
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
