// The input of one pass through a stage.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "plan/preference.h"

namespace tercio::blocks {

class ChosenAdapter;

// Rows of one sequence that follow those whose keys and values are still in the slot, or in pages.
struct SequencePart {
  int64_t sequence = 0;  // within the micro-batch; without pages
  int64_t first_position = 0;
  int64_t rows = 0;
  const int32_t* pages = nullptr;          // of a KeyCache, for all positions to the last row's
  const ChosenAdapter* adapter = nullptr;  // null: the model as it is
};

// Pages of keys and values outside of the slot (kernels::KeyPages), alike for all layers.
struct KeyCache {
  float* data = nullptr;  // of the first layer
  int64_t pages = 0;
  int64_t page_tokens = 0;
  int64_t page_elements = 0;  // from a page of a layer to the next
};

struct MicroBatch {
  int index = 0;  // within the step
  int slot = 0;
  int chunk = 0;  // which of the stage's runs of layers (plan/schedule.h)
  int64_t step = 0;
  int64_t first_sequence = 0;  // in the global batch
  bool training = true;        // dropout applies
  // Forward of a causal model on one rank only: these parts of its sequences, whose rows lie
  // densely one after another in every buffer but that of queries, keys and values. Empty: all of
  // the micro-batch.
  absl::Span<const SequencePart> parts;
  // Where parts have pages: what these are of. The batch says `positions`, too.
  const KeyCache* cache = nullptr;
  // Forward on one rank only, of a model with several streams: the one that is computed; -1: all.
  // The others are in the slot.
  int only_stream = -1;
  bool memory_known = false;  // with the keys and values that other streams have made of the first
  // Positions of each sequence that are computed, no shorter than the longest sequence; 0: all of
  // the context. Rows of a sequence begin at multiples of it. Results do not depend on it.
  int64_t tokens = 0;
  const int32_t* inputs = nullptr;          // rows ids, from row 0; first stage
  const int32_t* decoder_inputs = nullptr;  // likewise of the second stream
  const int32_t* targets = nullptr;         // rows ids; last stage
  // Where samples choose their targets, else null. Of each sequence the targets of its predicted
  // positions come first, and `predicted` holds the rows of those positions, counted from the
  // micro-batch's first.
  const int32_t* predicted = nullptr;
  const int32_t* predicted_counts = nullptr;  // (sequences), on the host
  int64_t step_predictions = 0;               // predictions of the whole global batch
  // (rows) Where sequences hold several documents, which do not see each other: for each row the
  // first position of its document, and its own position in it. Else null, but for the positions of
  // parts with pages.
  const int32_t* document_starts = nullptr;
  const int32_t* positions = nullptr;
  // Where preferences are learnt, else null; on the host: what is known of each sequence's answer
  // before its log-probability is, and the batch's divergence.
  const plan::Answer* answers = nullptr;  // (sequences)
  double divergence = 0;
  // Where a teacher's logits were stored, else null (plan/token_buffers.h): rows as those of
  // `targets`, of each as many ids and their logits as the job says; last stage.
  const int32_t* teacher_ids = nullptr;   // (rows, k)
  const float* teacher_logits = nullptr;  // (rows, k)
  // bert only.
  const int32_t* types = nullptr;       // (rows); first stage
  const int32_t* lengths = nullptr;     // (sequences)
  const int32_t* labels = nullptr;      // (sequences)
  const int32_t* first_rows = nullptr;  // (sequences): of each one's first token
};

// The sums that losses are added to, in the order of the micro-batch's sequences.
struct LossSums {
  double* tokens = nullptr;     // the sum over a sequence's predicted tokens
  double* sequences = nullptr;  // loss of the sequence as a whole; bert only
  // Those tokens' divergences from a teacher, where one is learnt from.
  double* divergences = nullptr;
};

}  // namespace tercio::blocks
