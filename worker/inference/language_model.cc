#include "worker/inference/language_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/weight_source.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/random.h"
#include "plan/memory_map.h"
#include "plan/plan_builder.h"
#include "worker/collective/communicator.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/arena.h"
#include "worker/engine/stage_model.h"

namespace tercio {
namespace {

// The job whose layout is one rank and one sequence.
v1::JobSpec SingleSequenceJob(const v1::ModelSpec& model) {
  v1::JobSpec spec;
  *spec.mutable_model() = model;
  spec.mutable_model()->set_dropout(0);
  spec.mutable_training()->set_global_batch(1);
  spec.mutable_training()->set_micro_batch(1);
  spec.mutable_resources()->set_ranks(1);
  return spec;
}

// A checkpoint's own tokenizer, or that of a Hugging Face directory, or the one that was imported
// with it; none where the model was trained on token files. One that is not known here is said, and
// left out: a prompt of ids needs none.
absl::StatusOr<std::optional<data::Tokenizer>> TokenizerOf(const checkpoint::WeightSource& source,
                                                           const std::string& directory) {
  const absl::StatusOr<std::string> json = source.TokenizerJson();
  if (json.ok()) {
    TERCIO_ASSIGN_OR_RETURN(data::Tokenizer tokenizer, data::Tokenizer::FromJson(*json));
    return tokenizer;
  }
  for (const std::string& path : {directory, directory + "/hf"}) {
    const absl::StatusOr<data::Tokenizer> tokenizer = data::Tokenizer::Load(path);
    if (tokenizer.ok()) return *tokenizer;
    if (!absl::IsNotFound(tokenizer.status()))
      LogWarning(std::string(tokenizer.status().message()));
  }
  return std::nullopt;
}

class LoadedModel : public LanguageModel {
 public:
  LoadedModel(const v1::JobSpec& spec, const v1::RankPlan& plan, std::unique_ptr<Device> device,
              Arena arena, std::optional<data::Tokenizer> tokenizer)
      : spec_(spec),
        device_(std::move(device)),
        stream_(device_->CreateStream(Device::StreamKind::kCompute)),
        group_(CreateCommunicator("self", std::move(CreateThreadTransports(1).front()),
                                  absl::Seconds(1))),
        arena_(std::move(arena)),
        shape_(plan::ShapeOfStage(spec, plan.layout(), 0)),
        tensors_(plan::TensorsOfStage(spec.model(), plan.layout(), 0)),
        model_(spec, plan, tensors_, arena_, *stream_, *group_),
        tokenizer_(std::move(tokenizer)),
        inputs_(arena_.Get<int32_t>("tokens.inputs")) {}

  absl::Status LoadWeights(const checkpoint::WeightSource& source) {
    float* parameters = arena_.Floats("parameters");
    for (const plan::StageTensor& entry : tensors_.tensors) {
      if (entry.role == plan::TensorRole::kHead) continue;  // the token embedding again
      v1::TensorSlice slice;
      slice.set_tensor(entry.tensor.name);
      slice.add_shape(entry.tensor.rows);
      if (!entry.tensor.is_vector) slice.add_shape(entry.tensor.columns);
      slice.set_row_end(entry.tensor.rows);
      slice.set_column_end(entry.tensor.columns);
      TERCIO_RETURN_IF_ERROR(
          checkpoint::ReadSliceFor(source, slice, parameters + entry.parameter_offset));
    }
    return absl::OkStatus();
  }

  const data::Tokenizer* tokenizer() const override {
    return tokenizer_.has_value() ? &*tokenizer_ : nullptr;
  }
  int64_t context() const override { return shape_.tokens; }
  int32_t vocab_size() const override { return spec_.model().vocab_size(); }

  absl::StatusOr<absl::Span<const float>> NextLogits(absl::Span<const int32_t> ids) override;
  absl::Status Generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(int32_t)>& on_token) override;
  absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens) override;

 private:
  MicroBatch Forward(absl::Span<const int32_t> ids);
  // Ids [first, size): those before are still in the activations.
  MicroBatch Extend(absl::Span<const int32_t> ids, size_t first);
  // What follows `ids`; the activations hold the first `known` of them already.
  const float* LogitsAfter(absl::Span<const int32_t> ids, size_t known);
  absl::Status CheckIds(absl::Span<const int32_t> ids) const;
  int32_t Sample(const float* logits, const GenerateOptions& options, double uniform) const;

  v1::JobSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> group_;
  Arena arena_;
  plan::StageShape shape_;
  plan::StageTensors tensors_;
  StageModel model_;
  std::optional<data::Tokenizer> tokenizer_;
  int32_t* inputs_;
};

// What follows the ids is padding: attention looks back only, so it changes nothing before it.
MicroBatch LoadedModel::Forward(absl::Span<const int32_t> ids) {
  std::fill(inputs_, inputs_ + shape_.tokens, 0);
  std::copy(ids.begin(), ids.end(), inputs_);
  MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  model_.Forward(batch);
  return batch;
}

MicroBatch LoadedModel::Extend(absl::Span<const int32_t> ids, size_t first) {
  std::copy(ids.begin() + static_cast<ptrdiff_t>(first), ids.end(), inputs_ + first);
  MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.first_row = static_cast<int64_t>(first);
  batch.rows = static_cast<int64_t>(ids.size() - first);
  model_.Forward(batch);
  return batch;
}

absl::Status LoadedModel::CheckIds(absl::Span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside of the model's vocabulary of ", vocab_size()));
    }
  }
  return absl::OkStatus();
}

int32_t LoadedModel::Sample(const float* logits, const GenerateOptions& options,
                            double uniform) const {
  std::vector<int32_t> order(static_cast<size_t>(vocab_size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [logits](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return order.front();
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t id : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[id]) - logits[order.front()]) / options.temperature));
    sum += weights.back();
  }
  if (options.top_p < 1) {
    // The likeliest that together have the probability top_p, at least one.
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && kept < options.top_p * sum) kept += weights[count++];
    weights.resize(std::max<size_t>(1, count));
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double left = uniform * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[weights.size() - 1];
}

const float* LoadedModel::LogitsAfter(absl::Span<const int32_t> ids, size_t known) {
  const size_t window = std::min(ids.size(), static_cast<size_t>(shape_.tokens));
  // Once the window slides every id has a new position, and nothing that is known helps.
  const MicroBatch batch =
      Extend(ids.subspan(ids.size() - window, window), window == ids.size() ? known : 0);
  return model_.Logits(batch, static_cast<int64_t>(window) - 1, 1);
}

absl::StatusOr<absl::Span<const float>> LoadedModel::NextLogits(absl::Span<const int32_t> ids) {
  if (ids.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(ids));
  return absl::MakeConstSpan(LogitsAfter(ids, 0), static_cast<size_t>(vocab_size()));
}

absl::Status LoadedModel::Generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                                   const std::function<bool(int32_t)>& on_token) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(prompt));
  std::vector<int32_t> ids = std::move(prompt);
  size_t known = 0;  // ids whose keys and values are in the activations
  for (int64_t i = 0; i < options.tokens; ++i) {
    const float* logits = LogitsAfter(ids, known);
    known = ids.size();
    const uint64_t word =
        kernels::SplitMix64(kernels::SplitMix64(options.seed) ^ static_cast<uint64_t>(i));
    const double uniform = static_cast<double>(word >> 11) * 0x1.0p-53;
    ids.push_back(Sample(logits, options, uniform));
    if (!on_token(ids.back())) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<LanguageModel::Evaluation> LoadedModel::Evaluate(const data::TokenDataset& tokens) {
  if (tokens.tokens() < 2) return absl::InvalidArgumentError("the data has fewer than two tokens");
  Evaluation result;
  double sum = 0;
  std::vector<int32_t> ids(static_cast<size_t>(shape_.tokens + 1));
  for (int64_t begin = 0; begin + 1 < tokens.tokens(); begin += shape_.tokens) {
    const int64_t inputs = std::min(shape_.tokens, tokens.tokens() - 1 - begin);
    tokens.Read(begin, inputs + 1, ids.data());
    const auto window = absl::MakeConstSpan(ids.data(), static_cast<size_t>(inputs + 1));
    TERCIO_RETURN_IF_ERROR(CheckIds(window));
    const MicroBatch batch = Forward(window.subspan(0, static_cast<size_t>(inputs)));
    for (int64_t row = 0; row < inputs; ++row) {
      const float* logits = model_.Logits(batch, row, 1);
      const float max = *std::max_element(logits, logits + vocab_size());
      double total = 0;
      for (int32_t id = 0; id < vocab_size(); ++id) {
        total += std::exp(static_cast<double>(logits[id]) - max);
      }
      sum += max + std::log(total) - logits[window[static_cast<size_t>(row + 1)]];
    }
    result.tokens += inputs;
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(const std::string& directory,
                                                                   int threads, int64_t context) {
  TERCIO_ASSIGN_OR_RETURN(const auto source,
                          checkpoint::OpenWeightSource(directory, /*digests=*/true));
  TERCIO_ASSIGN_OR_RETURN(std::optional<data::Tokenizer> tokenizer,
                          TokenizerOf(*source, directory));
  v1::JobSpec spec = SingleSequenceJob(source->model());
  if (context > spec.model().context()) {
    return absl::InvalidArgumentError(absl::StrCat("a context of ", context, " is longer than the ",
                                                   spec.model().context(), " of ", directory));
  }
  if (context > 0) spec.mutable_model()->set_context(static_cast<int32_t>(context));
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(spec));
  TERCIO_ASSIGN_OR_RETURN(const v1::Plan plan,
                          plan::BuildPlan(spec, layout, {{"here", 0}}, threads));
  std::unique_ptr<Device> device = CreateCpuDevice(threads);
  // Gradients and moments are part of the table, but pages that nobody touches take no memory.
  TERCIO_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(plan.stages(0).memory(), *device));
  auto model = std::make_unique<LoadedModel>(spec, plan::SliceForRank(plan, 0), std::move(device),
                                             std::move(arena), std::move(tokenizer));
  TERCIO_RETURN_IF_ERROR(model->LoadWeights(*source));
  return std::unique_ptr<LanguageModel>(std::move(model));
}

}  // namespace tercio
