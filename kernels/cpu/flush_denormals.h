// While it lives, denormal numbers count as zero in the SSE and AVX arithmetic of this thread, both
// inputs and results. The destructor restores the previous mode.
//
// Call the arithmetic through a function that is not inlined: a compiler may move visible code
// across the change of mode.
#pragma once

#include <immintrin.h>

namespace tercio::kernels {

class FlushDenormals {
 public:
  FlushDenormals() : FlushDenormals(true) {}
  // on = false: does nothing.
  explicit FlushDenormals(bool on) : on_(on), before_(on ? _mm_getcsr() : 0) {
    constexpr unsigned kResultsToZero = 0x8000;
    constexpr unsigned kOperandsAreZero = 0x0040;
    if (on_) _mm_setcsr(before_ | kResultsToZero | kOperandsAreZero);
  }
  ~FlushDenormals() {
    if (on_) _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  const bool on_;
  const unsigned before_;
};

}  // namespace tercio::kernels
