#include "worker/engine/rank_samples.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::engine {

RankSamples::RankSamples(const plan::StageShape& shape, Kind kind, Arena& arena)
    : shape_(shape), kind_(kind) {
  const auto sequences = static_cast<size_t>(shape.sequences_per_rank);
  const auto tokens = sequences * static_cast<size_t>(shape.streams.front().tokens);
  const auto predicted = sequences * static_cast<size_t>(shape.head_stream().tokens);
  const auto make = [&](const char* name, size_t count, Buffer* buffer) {
    const auto planned = static_cast<size_t>(arena.Bytes(name));
    if (planned == 0) return;  // this stage needs none
    // Copy writes whole buffers, and would overrun one that was planned smaller.
    TERCIO_CHECK_EQ(planned, count * sizeof(int32_t));
    buffer->host.resize(count);
    buffer->device = arena.Get<int32_t>(name);
  };
  make("tokens.inputs", tokens, &inputs_);
  make("tokens.decoder_inputs", predicted, &decoder_inputs_);
  make("tokens.targets", predicted, &targets_);
  if (kind.chooses_targets) {
    make("tokens.predicted", predicted, &predicted_);
    predicted_counts_.resize(sequences);
  }
  if (kind.packed) {
    make("tokens.document_starts", tokens, &document_starts_);
    make("tokens.positions", tokens, &positions_);
  }
  if (!kind.padded) return;
  make("tokens.types", tokens, &types_);
  make("tokens.lengths", sequences, &lengths_);
  make("tokens.labels", sequences, &labels_);
  make("tokens.first_rows", sequences, &first_rows_);
  tokens_.resize(sequences / static_cast<size_t>(shape.sequences));
}

void RankSamples::Store(int64_t micro_batch, int64_t sequence, const data::Sample& sample) {
  const int64_t of_rank = micro_batch * shape_.sequences + sequence;
  const auto store = [&](const std::vector<int32_t>& values, Buffer& buffer) {
    if (buffer.host.empty()) return;
    std::copy(values.begin(), values.end(),
              buffer.host.begin() + of_rank * static_cast<int64_t>(values.size()));
  };
  store(sample.inputs, inputs_);
  store(sample.decoder_inputs, decoder_inputs_);
  if (kind_.packed) StoreDocuments(of_rank, sample);
  // Chosen targets move together, so that the head works on dense rows.
  if (!kind_.chooses_targets) return store(sample.targets, targets_);
  const auto at = static_cast<size_t>(of_rank);
  // The head gathers from the rows of one micro-batch, so they are counted from its first.
  const int64_t tokens = shape_.head_stream().tokens;
  const int64_t first_row = sequence * tokens;
  int64_t count = 0;
  for (size_t i = 0; i < sample.targets.size(); ++i) {
    if (sample.targets[i] == data::kNoTarget) continue;
    const auto place = static_cast<size_t>(of_rank * tokens + count++);
    // Only the last stage has targets; the counts are kept on all of them.
    if (targets_.host.empty()) continue;
    targets_.host[place] = sample.targets[i];
    predicted_.host[place] = static_cast<int32_t>(first_row + static_cast<int64_t>(i));
  }
  predicted_counts_[at] = static_cast<int32_t>(count);
  if (!kind_.padded) return;
  store(sample.types, types_);
  lengths_.host[at] = sample.length;
  if (!labels_.host.empty()) labels_.host[at] = sample.label;
}

void RankSamples::StoreDocuments(int64_t sequence, const data::Sample& sample) {
  const size_t tokens = sample.inputs.size();
  const std::vector<int32_t>& starts = sample.document_starts;
  TERCIO_CHECK(starts.empty() || starts.size() == tokens);
  const size_t first = static_cast<size_t>(sequence) * tokens;
  for (size_t i = 0; i < tokens; ++i) {
    const int32_t start = starts.empty() ? 0 : starts[i];
    if (!document_starts_.host.empty()) document_starts_.host[first + i] = start;
    if (!positions_.host.empty()) positions_.host[first + i] = static_cast<int32_t>(i) - start;
  }
}

int64_t RankSamples::TokensOf(int64_t micro_batch) const {
  const auto first = lengths_.host.begin() + micro_batch * shape_.sequences;
  return plan::ComputedTokens(shape_, *std::max_element(first, first + shape_.sequences));
}

void RankSamples::LeaveOutPadding(int64_t micro_batch, int64_t tokens) {
  const int64_t context = shape_.streams.front().tokens;
  const int64_t start = micro_batch * shape_.sequences * context;
  for (int64_t i = 0; i < shape_.sequences; ++i) {
    if (!first_rows_.host.empty()) {
      first_rows_.host[static_cast<size_t>(micro_batch * shape_.sequences + i)] =
          static_cast<int32_t>(i * tokens);
    }
    if (i == 0 || tokens == context) continue;
    const int64_t from = start + i * context;
    for (Buffer* buffer : {&inputs_, &types_}) {
      if (buffer->host.empty()) continue;
      std::copy_n(buffer->host.begin() + from, tokens, buffer->host.begin() + start + i * tokens);
    }
    // The lists of predictions stay where they are; only the rows in them change.
    if (predicted_.host.empty()) continue;
    const int64_t count =
        predicted_counts_[static_cast<size_t>(micro_batch * shape_.sequences + i)];
    for (int64_t at = from; at < from + count; ++at) {
      predicted_.host[static_cast<size_t>(at)] -= static_cast<int32_t>(i * (context - tokens));
    }
  }
}

void RankSamples::Copy(device::Stream& stream) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    tokens_[i] = TokensOf(static_cast<int64_t>(i));
    LeaveOutPadding(static_cast<int64_t>(i), tokens_[i]);
  }
  for (const Buffer* buffer : {&inputs_, &decoder_inputs_, &targets_, &types_, &predicted_,
                               &lengths_, &labels_, &first_rows_, &document_starts_, &positions_}) {
    // The plan gives each stage only the buffers that it reads.
    if (buffer->host.empty()) continue;
    stream.CopyFromHost(buffer->device, buffer->host.data(),
                        static_cast<int64_t>(buffer->host.size() * sizeof(int32_t)));
  }
}

void RankSamples::Point(blocks::MicroBatch* batch) const {
  const int64_t row = batch->index * shape_.streams.front().rows;
  const int64_t predicted_row = batch->index * shape_.head_stream().rows;
  const auto at = [](const Buffer& buffer, int64_t offset) -> const int32_t* {
    return buffer.host.empty() ? nullptr : buffer.device + offset;
  };
  batch->inputs = at(inputs_, row);
  batch->decoder_inputs = at(decoder_inputs_, predicted_row);
  batch->targets = at(targets_, predicted_row);
  batch->document_starts = at(document_starts_, row);
  batch->positions = at(positions_, row);
  const int64_t sequence = batch->index * shape_.sequences;
  if (kind_.chooses_targets) {
    batch->predicted = at(predicted_, predicted_row);
    // Counts stay on the host, where the head cuts its chunks.
    batch->predicted_counts = predicted_counts_.data() + sequence;
  }
  if (!kind_.padded) return;
  batch->types = at(types_, row);
  batch->lengths = at(lengths_, sequence);
  batch->labels = at(labels_, sequence);
  batch->first_rows = at(first_rows_, sequence);
  batch->tokens = tokens_[static_cast<size_t>(batch->index)];
}

}  // namespace tercio::engine
