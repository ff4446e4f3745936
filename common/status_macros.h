// Early return on errors.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TERCIO_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                        \
    if (absl::Status tercio_status = (expression); !tercio_status.ok()) return tercio_status; \
  } while (false)

#define TERCIO_CONCAT_INNER_(a, b) a##b
#define TERCIO_CONCAT_(a, b) TERCIO_CONCAT_INNER_(a, b)

// TERCIO_ASSIGN_OR_RETURN(auto value, FunctionReturningStatusOr());
#define TERCIO_ASSIGN_OR_RETURN(left, expression) \
  TERCIO_ASSIGN_OR_RETURN_(TERCIO_CONCAT_(tercio_status_or_, __LINE__), left, expression)

#define TERCIO_ASSIGN_OR_RETURN_(holder, left, expression) \
  auto holder = (expression);                              \
  if (!holder.ok()) return std::move(holder).status();     \
  left = *std::move(holder)
