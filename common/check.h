// Assertions that stay on in release builds: for programmer errors, never for input.
// A failed check prints file, line, condition and, for the comparing forms, both values, then
// aborts.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace tercio::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::abort();
}

template <typename A, typename B>
[[noreturn]] void CheckComparisonFailed(const char* file, int line, const char* condition,
                                        const A& a, const B& b) {
  std::ostringstream what;
  what << condition << " (" << a << " against " << b << ")";
  CheckFailed(file, line, what.str());
}

}  // namespace tercio::internal

#define TERCIO_CHECK(condition) \
  ((condition) ? (void)0 : ::tercio::internal::CheckFailed(__FILE__, __LINE__, #condition))

#define TERCIO_CHECK_COMPARE_(a, op, b)                                                \
  do {                                                                                 \
    const auto& tercio_check_a = (a);                                                  \
    const auto& tercio_check_b = (b);                                                  \
    if (!(tercio_check_a op tercio_check_b)) {                                         \
      ::tercio::internal::CheckComparisonFailed(__FILE__, __LINE__, #a " " #op " " #b, \
                                                tercio_check_a, tercio_check_b);       \
    }                                                                                  \
  } while (false)

#define TERCIO_CHECK_EQ(a, b) TERCIO_CHECK_COMPARE_(a, ==, b)
#define TERCIO_CHECK_NE(a, b) TERCIO_CHECK_COMPARE_(a, !=, b)
#define TERCIO_CHECK_LT(a, b) TERCIO_CHECK_COMPARE_(a, <, b)
#define TERCIO_CHECK_LE(a, b) TERCIO_CHECK_COMPARE_(a, <=, b)
#define TERCIO_CHECK_GT(a, b) TERCIO_CHECK_COMPARE_(a, >, b)
#define TERCIO_CHECK_GE(a, b) TERCIO_CHECK_COMPARE_(a, >=, b)
