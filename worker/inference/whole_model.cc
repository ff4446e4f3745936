#include "worker/inference/whole_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "plan/memory_map.h"
#include "plan/plan_builder.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/inference/load_weights.h"

namespace tercio::inference {
namespace {

// A job whose layout is one rank and one micro-batch.
v1::JobSpec SingleRankJob(const v1::ModelSpec& model, int64_t sequences) {
  v1::JobSpec spec;
  *spec.mutable_model() = model;
  // Without dropout the plan has no buffer for the gradients of branches.
  spec.mutable_model()->set_dropout(0);
  spec.mutable_training()->set_global_batch(sequences);
  spec.mutable_training()->set_micro_batch(sequences);
  spec.mutable_resources()->set_ranks(1);
  return spec;
}

// A job of one rank, and how it is executed.
struct WholePlan {
  v1::JobSpec spec;
  v1::Plan plan;
  CachePlan cache;
};

// Texts with a cache need activations for the rows of a pass only: an id of each, and a part of a
// prompt, in sequences of the whole context, which evaluation reads at once. The layers take turns
// with them.
void PlanRowsOfTexts(PassSize pass, v1::JobSpec* spec) {
  const int64_t context = spec->model().context();
  const int64_t rows = std::min(pass.sequences * context, pass.sequences + kPromptRows);
  const auto sequences = static_cast<int32_t>((rows + context - 1) / context);
  spec->mutable_training()->set_global_batch(sequences);
  spec->mutable_training()->set_micro_batch(sequences);
  spec->mutable_parallelism()->set_recompute(v1::RECOMPUTE_FULL);
}

absl::StatusOr<WholePlan> PlanFor(const OpenedModel& opened, int threads, PassSize pass) {
  TERCIO_RETURN_IF_ERROR(CheckContext(opened, pass.context));
  WholePlan whole = {.spec = SingleRankJob(opened.spec(), pass.sequences)};
  v1::ModelSpec& model = *whole.spec.mutable_model();
  if (pass.context > 0) model.set_context(static_cast<int32_t>(pass.context));
  if (pass.decoder_context > 0) {
    model.set_decoder_context(static_cast<int32_t>(pass.decoder_context));
  }
  if (HasCache(model)) {
    TERCIO_ASSIGN_OR_RETURN(whole.cache, PlanCache(model, pass.sequences, pass.cache_tokens));
    PlanRowsOfTexts(pass, &whole.spec);
  }
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(whole.spec));
  TERCIO_ASSIGN_OR_RETURN(whole.plan, plan::BuildPlan(whole.spec, layout, {{"here", 0}}, threads));
  return whole;
}

// The checkpoint's own tokenizer, or that of a Hugging Face directory, or the one that was imported
// with it; none if the model was trained on token files. An unsupported one is logged and ignored:
// a prompt of ids needs none.
absl::StatusOr<std::optional<tokenizer::Tokenizer>> TokenizerOf(
    const checkpoint::WeightSource& source, const std::string& directory) {
  const absl::StatusOr<std::string> json = source.TokenizerJson();
  if (json.ok()) {
    TERCIO_ASSIGN_OR_RETURN(tokenizer::Tokenizer tokenizer, tokenizer::Tokenizer::FromJson(*json));
    return tokenizer;
  }
  for (const std::string& path : {checkpoint::TokenizerDirectoryOf(directory), directory + "/hf"}) {
    const absl::StatusOr<tokenizer::Tokenizer> tokenizer = tokenizer::Tokenizer::Load(path);
    if (tokenizer.ok()) return *tokenizer;
    if (!absl::IsNotFound(tokenizer.status()))
      LogWarning(std::string(tokenizer.status().message()));
  }
  return std::nullopt;
}

}  // namespace

WholeModel::WholeModel(const v1::JobSpec& spec, const v1::RankPlan& plan,
                       std::unique_ptr<device::Device> device, engine::Arena arena,
                       std::optional<tokenizer::Tokenizer> tokenizer)
    : spec_(spec),
      device_(std::move(device)),
      stream_(*device_->CreateStream(device::Device::StreamKind::kCompute)),
      group_(collective::CreateCommunicator(
          {"self", absl::Seconds(1)}, std::move(collective::CreateThreadTransports(1).front()))),
      arena_(std::move(arena)),
      shape_(plan::ShapeOfStage(spec, plan.layout(), 0)),
      tensors_(plan::TensorsOfStage(spec, plan.layout(), 0)),
      model_(spec, plan, tensors_, arena_, *stream_, *group_),
      tokenizer_(std::move(tokenizer)) {}

absl::StatusOr<OpenedModel> OpenModel(const std::string& directory,
                                      std::optional<tokenizer::Tokenizer> tokenizer) {
  OpenedModel opened;
  opened.directory = directory;
  TERCIO_ASSIGN_OR_RETURN(
      opened.weights, checkpoint::OpenWeightSource(directory, checkpoint::DigestCheck::kEveryByte));
  opened.tokenizer = std::move(tokenizer);
  if (!opened.tokenizer.has_value()) {
    // A tokenizer that is given may replace one that cannot even be read.
    TERCIO_ASSIGN_OR_RETURN(opened.tokenizer, TokenizerOf(*opened.weights, directory));
  }
  return opened;
}

absl::Status AddAdapter(const std::string& directory, OpenedModel* opened) {
  TERCIO_ASSIGN_OR_RETURN(auto adapted, checkpoint::OpenAdapterOf(*opened->weights, directory));
  const auto& trained = adapted->model().adapter().train();
  if (!trained.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the adapter in ", directory, " brings tensors of the model that were trained with it (",
        absl::StrJoin(trained, ", "),
        "), of which there is one copy for all; serve it alone, as a model of its own"));
  }
  opened->adapters.push_back(std::move(adapted));
  return absl::OkStatus();
}

absl::Status CheckContext(const OpenedModel& opened, int64_t context) {
  if (context <= opened.spec().context()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a context of ", context, " is longer than the ",
                                                 opened.spec().context(), " of ",
                                                 opened.directory));
}

absl::StatusOr<PlannedBytes> PlanBytes(const OpenedModel& opened, int threads, PassSize pass) {
  TERCIO_ASSIGN_OR_RETURN(const WholePlan whole, PlanFor(opened, threads, pass));
  PlannedBytes bytes;
  for (const v1::Buffer& buffer : whole.plan.stages(0).memory().buffers()) {
    // Pages of gradients, moments and their copies are never touched.
    const bool trains = buffer.kind() == v1::BUFFER_KIND_GRADIENT ||
                        buffer.kind() == v1::BUFFER_KIND_OPTIMIZER ||
                        buffer.kind() == v1::BUFFER_KIND_SNAPSHOT;
    int64_t& sum = buffer.kind() == v1::BUFFER_KIND_PARAMETER    ? bytes.weights
                   : buffer.kind() == v1::BUFFER_KIND_ACTIVATION ? bytes.texts
                                                                 : bytes.workspace;
    if (!trains) sum += buffer.size_bytes();
  }
  bytes.cache = whole.cache.bytes();
  bytes.cache_tokens = whole.cache.tokens();
  bytes.texts += bytes.cache;
  std::vector<v1::ModelSpec> adapted;
  for (const auto& adapter : opened.adapters) adapted.push_back(adapter->model());
  bytes.adapters =
      AdapterSet::PlanBytes(adapted, plan::ShapeOfStage(whole.spec, whole.plan.layout(), 0));
  return bytes;
}

absl::StatusOr<std::unique_ptr<WholeModel>> WholeModel::Load(const OpenedModel& opened, int threads,
                                                             PassSize pass) {
  TERCIO_ASSIGN_OR_RETURN(const WholePlan whole, PlanFor(opened, threads, pass));
  std::unique_ptr<device::Device> device = device::CreateCpuDevice(threads);
  // Gradients and moments are part of the table, but pages that are never touched take no memory.
  TERCIO_ASSIGN_OR_RETURN(engine::Arena arena,
                          engine::Arena::Allocate(whole.plan.stages(0).memory(), *device));
  std::unique_ptr<WholeModel> model(new WholeModel(whole.spec, plan::SliceForRank(whole.plan, 0),
                                                   std::move(device), std::move(arena),
                                                   opened.tokenizer));
  model->texts_ = pass.sequences;
  model->cache_plan_ = whole.cache;
  TERCIO_ASSIGN_OR_RETURN(model->cache_memory_, model->device_->Allocate(whole.cache.bytes()));
  model->cache_ = {.data = reinterpret_cast<float*>(model->cache_memory_->data()),
                   .pages = whole.cache.pages,
                   .page_tokens = whole.cache.page_tokens,
                   .page_elements = whole.cache.page_elements};
  TERCIO_RETURN_IF_ERROR(
      LoadWeights(*opened.weights, model->tensors_, threads, model->arena_.Floats("parameters")));
  TERCIO_ASSIGN_OR_RETURN(
      model->adapters_, AdapterSet::Load(opened.adapters, model->shape_, *model->device_, threads));
  return model;
}

}  // namespace tercio::inference
