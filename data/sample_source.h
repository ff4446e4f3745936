// The source of the engine's samples, and the samples themselves.
//
// Threads: the thread that drives an engine calls its source; a source that several engines share
// must be safe to call from all their threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tercio::data {

// The position has no prediction.
inline constexpr int32_t kNoTarget = -1;

// One sequence of `context` positions; where the model has an encoder and a decoder, of the
// encoder, and `decoder_context` of the decoder, which has the targets. A source writes every
// field.
struct Sample {
  explicit Sample(int64_t context, int64_t decoder_context = 0)
      : inputs(static_cast<size_t>(context)),
        decoder_inputs(static_cast<size_t>(decoder_context)),
        targets(static_cast<size_t>(decoder_context > 0 ? decoder_context : context)),
        types(static_cast<size_t>(context)),
        length(static_cast<int32_t>(context)) {}

  std::vector<int32_t> inputs;
  std::vector<int32_t> decoder_inputs;
  std::vector<int32_t> targets;  // ids, or kNoTarget
  std::vector<int32_t> types;    // bert: the segment that a token belongs to
  int32_t length;                // positions from here on are padding, which no token attends to
  // Where a sequence holds several documents, which do not see each other: for each position the
  // first one of its document; else empty. What is padding is a document of its own.
  std::vector<int32_t> document_starts;
  // Class of the whole sequence; 1 for swapped segments, or for a desirable answer.
  int32_t label = kNoTarget;
  int64_t number = 0;  // where samples have numbers (SampleSource::numbered_samples)
  // Stored logits of a teacher: for each predicted token, in order, the ids and values of its k
  // largest logits. Empty where none are stored.
  std::vector<int32_t> teacher_ids;
  std::vector<float> teacher_logits;
  std::vector<int32_t> ids;  // working memory of sources; not part of the sample
};

// Samples that no step trains on: those that are evaluated while a job trains, and those that are
// evaluated once, at its end.
enum class HeldOut { kValidation, kTest };

// Implementations decide the order of samples (data/sample_order.h).
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Sequence `sequence` (0-based) of the global batch of step `step` (1-based).
  virtual void TrainingSample(int64_t step, int64_t sequence, Sample* out) = 0;
  // 0: the job has no such data.
  virtual int64_t held_out_samples(HeldOut set) const = 0;
  // REQUIRES: 0 <= index < held_out_samples(set).
  virtual void HeldOutSample(HeldOut set, int64_t index, Sample* out) = 0;

  // Samples that are the same whenever they are read have numbers from 0, whether they are trained
  // on or held out: answers, conversations that are not packed, pieces of a text. The numbers
  // depend on the data alone. Else 0. Samples of two answers to a prompt follow each other.
  virtual int64_t numbered_samples() const { return 0; }
  // REQUIRES: 0 <= number < numbered_samples(); where preferences are learnt, below twice as many.
  // From numbered_samples() on: the prompt of the sample `number` - numbered_samples(), with the
  // answer of another one.
  virtual void NumberedSample(int64_t /*number*/, Sample* /*out*/) {}
};

// A source of plain text for causal models: context + 1 ids, of which each predicts the next.
class CausalSource : public SampleSource {
 public:
  // Write context + 1 ids.
  virtual void ReadTraining(int64_t step, int64_t sequence, int32_t* out) = 0;
  virtual void ReadHeldOut(HeldOut set, int64_t index, int32_t* out) = 0;

  void TrainingSample(int64_t step, int64_t sequence, Sample* out) override {
    ReadTraining(step, sequence, RoomFor(out));
    Split(out);
  }
  void HeldOutSample(HeldOut set, int64_t index, Sample* out) override {
    ReadHeldOut(set, index, RoomFor(out));
    Split(out);
  }

 protected:
  // For context + 1 ids, of which Split makes the sample.
  static int32_t* RoomFor(Sample* out) {
    out->ids.resize(out->inputs.size() + 1);
    return out->ids.data();
  }
  static void Split(Sample* out) {
    out->inputs.assign(out->ids.begin(), out->ids.end() - 1);
    out->targets.assign(out->ids.begin() + 1, out->ids.end());
    out->types.assign(out->inputs.size(), 0);
    out->length = static_cast<int32_t>(out->inputs.size());
    out->label = kNoTarget;
    out->number = 0;
  }
};

}  // namespace tercio::data
