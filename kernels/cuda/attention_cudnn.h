// Attention by cuDNN (version 9, loaded at run time), where it accepts the call and has earned
// trust; our own kernel (attention.cu, attention_backward.cu) does the rest and is the reference.
//
// A plan is made at the first call of a shape and kept. Gradients have the same bits every time:
// the graph does not ask for sums that are added in any order, and it is used on GPUs of compute
// capability 8 and 9, for which the library's documentation guarantees this for the graph (its
// plans do not: none of 9.19 has the numerical note "nondeterministic"), and on 10 and 12
// where RepetitionOf says so. That form needs a workspace for the gradients of all scores, and
// dropout one for its mask, which is our own kernel's: a call is cut by sequences, then by heads,
// into parts that fit; if one head of one sequence does not, our own kernel does it.
//
// Trust. From the first call of a shape on, the library's results are compared with our own
// kernel's for up to eight pairs of a sequence and a key head, spread over the call, on the device:
// nothing waits. After it our own kernel for the whole call is enqueued, which does nothing unless
// the comparison found a difference; so every call leaves right results. The host checks, without
// waiting, whether a verdict has arrived: from then on only the library computes, or never again,
// which a warning reports. Since the device acts on the verdict from the first call on, bits do not
// depend on when the host learns it. Calls with NaN or infinity (an overflow of fp16) and with
// nothing but zeros decide nothing. Sequences of one token have gradients of queries and keys that
// are nothing but rounding: calls with one alone are not taken, and one among longer ones may cost
// the library our trust.
//
// Notes report for each shape what computes it: the library with its version, or our own kernel and
// why.
//
// Threads: thread-compatible. Errors: a plan of the library that cannot be executed is reported; a
// shape that it does not plan for is a note.
#pragma once

#include <memory>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/notes.h"
#include "kernels/cuda/parts.h"

namespace tercio::kernels::cuda {

// Whether the call is one that cuDNN's graph expresses: bf16 or fp16, all queries, keys and values
// in the same rows, at least two tokens, not all weights dropped, heads of a multiple of 8 up to
// 256, all rows at multiples of 16 bytes. Pure; attention_choice.h decides what does not depend on
// addresses.
bool CudnnTakes(const AttentionArgs& args);
bool CudnnTakes(const AttentionBackwardArgs& args);

class CudnnAttention {
 public:
  // `notes` (or null) and `errors` outlive the object. All calls have this context.
  CudnnAttention(const CudaContext& context, OperationNotes* notes, OperationErrors* errors);
  ~CudnnAttention();

  // Returns whether it was done; otherwise nothing was written, and our own kernel is to do it.
  bool Attention(const AttentionArgs& args);
  bool AttentionBackward(const AttentionBackwardArgs& args);

  // Whether the library is trusted or refused for each shape so far. While one is open, a stream
  // that is captured would keep our own kernel for ever. Waits for nothing.
  bool HasVerdicts();

 private:
  class Library;
  std::unique_ptr<Library> library_;
};

}  // namespace tercio::kernels::cuda
