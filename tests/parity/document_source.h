// Synthetic documents that share sequences, as packed conversations do, or lie in sequences of
// their own.
#pragma once

#include <array>
#include <cstdint>

#include "tests/parity/thread_ranks.h"

namespace tercio::testing {

// How documents lie in sequences. kBlurred: as if a packed sequence were one document.
enum class Places { kPacked, kAlone, kBlurred };

// Three documents for each packed sequence, one of them a single position now and then, with
// padding behind some of them. Most tokens count.
class DocumentSource : public data::SampleSource {
 public:
  static constexpr int64_t kDocuments = 3;

  DocumentSource(const v1::ModelSpec& model, Places places)
      : source_(model.vocab_size(), model.context()), places_(places) {}

  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    out->targets.assign(out->targets.size(), data::kNoTarget);
    out->inputs.assign(out->inputs.size(), 0);
    out->types.assign(out->types.size(), 0);
    out->document_starts.clear();
    int64_t end = 0;
    if (places_ == Places::kAlone) {
      end = Append(step, sequence / kDocuments, sequence % kDocuments, 0, out);
    } else {
      for (int64_t i = 0; i < kDocuments; ++i) {
        const int64_t next = Append(step, sequence, i, end, out);
        out->document_starts.resize(static_cast<size_t>(next), static_cast<int32_t>(end));
        end = next;
      }
      out->document_starts.resize(out->inputs.size(), static_cast<int32_t>(end));
      if (places_ == Places::kBlurred) out->document_starts.clear();
    }
    out->length = static_cast<int32_t>(end);
  }
  int64_t held_out_samples(data::HeldOut) const override {
    return places_ == Places::kAlone ? 5 * kDocuments : 5;
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    TrainingSample(StepOf(set), index, out);
  }

 private:
  // A document of the `sequence`th packed one; returns where it ends.
  int64_t Append(int64_t step, int64_t sequence, int64_t document, int64_t begin,
                 data::Sample* out) {
    // Sums of 22, 20 and 24 positions.
    constexpr std::array<std::array<int64_t, kDocuments>, 3> kLengths = {
        {{9, 1, 12}, {3, 13, 4}, {8, 7, 9}}};
    const int64_t length =
        kLengths[static_cast<size_t>((sequence + step) % 3)][static_cast<size_t>(document)];
    std::array<int32_t, 64> ids;
    source_.ReadTraining(step * 31 + document, sequence, ids.data());
    for (int64_t i = 0; i < length; ++i) {
      const auto at = static_cast<size_t>(begin + i);
      out->inputs[at] = ids[static_cast<size_t>(i)];
      if (i % 4 != 2) out->targets[at] = ids[static_cast<size_t>(i) + 1];
    }
    return begin + length;
  }

  SyntheticSource source_;
  const Places places_;
};

inline v1::JobSpec Packed(v1::JobSpec spec) {
  spec.mutable_data()->mutable_chat()->set_template_("chatml");
  spec.mutable_data()->mutable_chat()->set_packing(true);
  return spec;
}

}  // namespace tercio::testing
