#include "config/job_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "config/adapter_section.h"
#include "config/data_section.h"
#include "config/distillation_section.h"
#include "config/job_changes.h"
#include "config/model_section.h"
#include "config/parallelism_section.h"
#include "config/preference_section.h"
#include "config/reader.h"
#include "config/yaml_text.h"
#include "nlohmann/json.hpp"
#include "plan/base_format.h"
#include "plan/combinations.h"
#include "plan/lanes.h"
#include "plan/limits.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/quality.h"
#include "plan/reproducibility.h"
#include "plan/save_timeout.h"
#include "plan/snapshots.h"
#include "plan/tensor_policy.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

// Larger numbers are mistakes; this is far below what a double can hold.
constexpr double kLargest = 1e30;
// The default is also written for jobs of versions that did not have the key.
constexpr double kSpikeThreshold = 10;
// The name is part of labels of metrics and of lines in tables.
constexpr size_t kMostNameBytes = 256;

// A preset says how large its published vocabulary is, which counts where nothing else says it.
bool HasVocabularyOfPreset(const YAML::Node& model) {
  // Null counts as missing, as for every key.
  const auto has = [&model](const char* key) {
    return model[key].IsDefined() && !model[key].IsNull();
  };
  return model.IsDefined() && model.IsMap() && has("preset") && !has("vocab_size");
}

// The data section is read first, and only the number of steps says whether it needs data to train.
TrainingData TrainingDataOf(const YAML::Node& training) {
  const bool named = training.IsDefined() && training.IsMap() && training["steps"].IsDefined();
  int64_t steps = 1;
  if (named && training["steps"].IsScalar())
    YAML::convert<int64_t>::decode(training["steps"], steps);
  return steps == 0 ? TrainingData::kMayBeMissing : TrainingData::kRequired;
}

// ParseTraining reports what is no objective.
v1::TrainingObjective ObjectiveOf(const YAML::Node& training) {
  const bool named = training.IsDefined() && training.IsMap() && training["objective"].IsDefined();
  if (!named || !training["objective"].IsScalar()) return v1::TRAINING_OBJECTIVE_PRETRAIN;
  return plan::Named<v1::TrainingObjective>(training["objective"].Scalar())
      .value_or(v1::TRAINING_OBJECTIVE_PRETRAIN);
}

class JobParser {
 public:
  JobParser(const YAML::Node& root, Faults* faults, std::string directory)
      : faults_(*faults), root_(root, "", faults), directory_(std::move(directory)) {}

  absl::StatusOr<v1::JobSpec> Parse() {
    // A job without a name is called "job"; one that is given and empty is a mistake.
    spec_.set_name(root_.Text("name", "job"));
    if (const std::string fault = FaultOfName(spec_.name()); !fault.empty()) {
      root_.Fault("name", fault);
    } else if (spec_.name().empty()) {
      root_.Fault("name", "empty; give the job a name, or leave the key out");
    }
    // The model is read first: its kind decides which keys the data section may have.
    ParseModel(root_.Child("model"), directory_, spec_.mutable_model());
    ParseAdapter(root_, directory_, spec_.mutable_model());
    const YAML::Node training = root_.Get("training");
    ParseData(root_.Child("data"), directory_, spec_.model(),
              {TrainingDataOf(training), ObjectiveOf(training)}, &faults_, spec_.mutable_data());
    ResolveDecoderContext(root_.Child("model"), spec_.data(), spec_.mutable_model());
    // The data's tokenizer knows the size exactly; a preset only says what was published.
    if (HasVocabularyOfPreset(root_.Get("model")) && !spec_.data().tokenizer().empty()) {
      spec_.mutable_model()->clear_vocab_size();
    }
    ParseTraining(root_.Child("training"));
    ParseParallelism(root_, spec_.mutable_parallelism());
    ParseOffload(root_.Child("offload"), spec_.mutable_offload());
    // Resources come after parallelism and training: they settle the ranks and the precision.
    ParseResources(root_.Child("resources"));
    ParseCheckpoint(root_.Child("checkpoint"));
    ParseFaultTolerance(root_.Child("fault_tolerance"));
    ParseTensorBoard();
    CheckCombinations();
    CheckBase();
    CheckStageLayers(root_, spec_);
    // The keys that nobody has asked for are known only when all sections were read.
    root_.Finish();
    // Sums over sizes are meaningful only where each size is possible.
    if (faults_.empty()) {
      const absl::Status sizes = plan::CheckSizes(spec_);
      if (!sizes.ok()) root_.Fault("model", std::string(sizes.message()));
    }
    // All faults are reported together, so that a file is mended in one go.
    TERCIO_RETURN_IF_ERROR(faults_.ToStatus());
    return std::move(spec_);
  }

 private:
  void CheckCombinations() {
    // An open device becomes one of both when the job is admitted, and both must be possible then.
    for (const plan::Exclusion* broken : plan::BrokenBy(spec_)) {
      const std::pair<std::string, std::string> key = absl::StrSplit(broken->key, '.');
      root_.Child(key.first).Fault(key.second, broken->reason);
    }
  }

  // Without sizes the tensors are not known, and the missing sizes are faults already.
  void CheckBase() {
    if (spec_.model().hidden() <= 0 || spec_.model().heads() <= 0) return;
    if (const std::string fault = plan::FaultOfBaseFormat(spec_); !fault.empty()) {
      root_.Child("model").Fault("base_format", fault);
    }
  }

  void ParseTraining(Section training) {
    v1::TrainingSpec* out = spec_.mutable_training();
    out->set_objective(training.OneOf("objective", v1::TRAINING_OBJECTIVE_PRETRAIN));
    ParseLength(training);
    // The reading below would report a missing key as a default, which hides the mistake.
    if (!training.Has("global_batch")) training.Fault("global_batch", "missing; a job needs it");
    out->set_global_batch(training.Integer("global_batch", 1, 1, plan::kMostSequences));
    // `auto` is not a number; it stays 0, which lets the planner choose.
    if (training.Text("micro_batch", "auto") != "auto") {
      out->set_micro_batch(training.Integer("micro_batch", 1, 1, plan::kMostSequences));
    }
    ParseOptimizer(training.Child("optimizer"));
    ParseSchedule(training.Child("schedule"));
    out->set_clip_grad_norm(training.Number("clip_grad_norm", 1.0, 0, kLargest));
    // ParseResources knows what "auto" means.
    out->set_precision(training.OneOf("precision", v1::PRECISION_AUTO));
    out->set_reproducibility(training.OneOf("reproducibility", v1::REPRODUCIBILITY_LAYOUT));
    out->set_tf32(training.Flag("tf32", false));
    out->set_fp8(training.Flag("fp8", false));
    out->set_seed(static_cast<uint64_t>(
        // A seed is an unsigned number of 64 bits; YAML's integers are signed.
        training.Integer("seed", 1337, 0, std::numeric_limits<int64_t>::max())));
    ParseEvaluate(training.Child("evaluate"));
    out->set_label_smoothing(training.Number("label_smoothing", 0, 0, 0.999));
    ParsePatterns(training, "frozen", out->mutable_frozen());
    CheckTrained(training);
    out->set_trace_step(training.Integer("trace_step", 0, 0));
    ParseLanes(training);
    ParseBlockFormats(training);
    ParsePreference(training, out);
    ParseDistillation(training, directory_, &spec_);
    training.Finish();
  }

  // They are resolved here and not for a layout: every layout of the job has the same.
  void ParseLanes(Section& training) {
    v1::TrainingSpec* out = spec_.mutable_training();
    const int default_lanes = plan::UsualLanes(*out);
    out->set_lanes(default_lanes);
    if (training.Text("lanes", "auto") == "auto") return;
    const int64_t lanes = training.Integer("lanes", default_lanes, 1, plan::kMostLanes);
    if (!plan::CanHaveLanes(out->global_batch(), lanes)) {
      return training.Fault("lanes",
                            absl::StrCat(lanes, " is not a power of two that divides global_batch ",
                                         out->global_batch()));
    }
    out->set_lanes(static_cast<int32_t>(lanes));
  }

  void ParseBlockFormats(Section& training) {
    v1::TrainingSpec* out = spec_.mutable_training();
    out->set_weight_format(training.OneOf("weight_format", v1::BLOCK_FORMAT_NONE));
    out->set_gradient_format(training.OneOf("gradient_format", v1::BLOCK_FORMAT_NONE));
    if (out->weight_format() == v1::BLOCK_FORMAT_INT4) {
      training.Fault("weight_format", "int4 is for gradients only; use int8 or none");
    }
  }

  // A job is as long as its steps or its epochs; the steps of epochs follow from the data.
  void ParseLength(Section& training) {
    v1::TrainingSpec* out = spec_.mutable_training();
    const bool steps = training.Has("steps");
    const bool epochs = training.Has("epochs");
    if (!steps && !epochs) {
      training.Fault("steps", "missing; a job needs it, or training.epochs");
    } else if (steps && epochs) {
      training.Fault("epochs",
                     "conflicts with training.steps; leave one of the two out (--set "
                     "training.steps=null takes it away)");
    } else if (epochs) {
      out->set_epochs(training.Integer("epochs", 1, 1));
      CheckEpochs(training, "epochs", "give training.steps instead");
      return;
    }
    out->set_steps(training.Integer("steps", 1, 0));
    // A length of nothing is meant only where there is something else to do.
    if (out->steps() == 0 && (spec_.data().test_path().empty() || spec_.model().from().empty())) {
      training.Fault("steps",
                     "0 steps only evaluate data.test with the weights of model.from; name both, "
                     "or give at least 1 step");
    }
  }

  // Samples of a blend are drawn by weight: it never comes to an end.
  void CheckEpochs(Section& section, const char* key, const char* instead) {
    const int parts = spec_.data().train_blend_size();
    if (parts <= 1) return;
    section.Fault(key, absl::StrCat("data.train is a blend of ", parts,
                                    " weighted data sets, which has no epochs; ", instead));
  }

  bool HasValidation() const {
    const v1::DataSpec& data = spec_.data();
    return data.validation_fraction() > 0 || !data.validation_path().empty() ||
           !data.validation_blend().empty();
  }

  void ParseEvaluate(Section evaluate) {
    v1::EvaluateSpec* out = spec_.mutable_training()->mutable_evaluate();
    out->set_every_steps(evaluate.Integer("every_steps", 0, 0));
    out->set_every_epochs(evaluate.Integer("every_epochs", 0, 0));
    if (out->every_epochs() > 0) CheckEpochs(evaluate, "every_epochs", "use every_steps");
    out->set_batches(evaluate.Integer("batches", 0, 0));
    ParseMetrics(evaluate, out);
    ParseKeepBest(evaluate, out);
    evaluate.Finish();
  }

  // Why an evaluation of this model has no such metric; empty: it has.
  std::string WhyNotScored(v1::QualityMetric metric) const {
    const std::vector<v1::QualityMetric> all = plan::MetricsOf(spec_.model());
    if (std::find(all.begin(), all.end(), metric) != all.end()) return "";
    const std::string name = plan::TextOf(metric);
    if (spec_.model().labels() > plan::kMostScoredClasses) {
      return absl::StrCat(name, " of more than ", plan::kMostScoredClasses,
                          " classes is not supported by this version (model.labels has ",
                          spec_.model().labels(), ")");
    }
    return absl::StrCat(name, " is a classifier's: it needs architecture bert and model.labels");
  }

  void ParseMetrics(Section& evaluate, v1::EvaluateSpec* out) {
    const YAML::Node list = evaluate.Get("metrics");
    if (!list.IsDefined()) {
      // Without data to evaluate there is nothing to report.
      for (const v1::QualityMetric metric : plan::MetricsOf(spec_.model())) {
        if (HasValidation()) out->add_metrics(metric);
      }
      return;
    }
    const std::string names = absl::StrJoin(plan::NamesOf<v1::QualityMetric>(), ", ");
    if (!list.IsSequence() || list.size() == 0) {
      return evaluate.Fault("metrics", absl::StrCat("expected a list of ", names,
                                                    "; leave it out for all that the model has"));
    }
    if (!HasValidation()) {
      evaluate.Fault("metrics", "there is no data.validation to compute them from");
    }
    for (const YAML::Node& node : list) {
      const std::string word = node.IsScalar() ? node.Scalar() : "a list or map";
      const auto metric = plan::Named<v1::QualityMetric>(word);
      if (!metric.has_value()) {
        evaluate.Fault("metrics", absl::StrCat("'", word, "' is not one of ", names));
      } else if (const std::string why = WhyNotScored(*metric); !why.empty()) {
        evaluate.Fault("metrics", why);
      } else if (std::count(out->metrics().begin(), out->metrics().end(), *metric) > 0) {
        evaluate.Fault("metrics", absl::StrCat(word, " is given twice"));
      } else {
        out->add_metrics(*metric);
      }
    }
  }

  void ParseKeepBest(Section& evaluate, v1::EvaluateSpec* out) {
    if (!evaluate.Has("keep_best")) return;
    const v1::QualityMetric metric = evaluate.OneOf("keep_best", v1::QUALITY_METRIC_LOSS);
    const std::string why = WhyNotScored(metric);
    if (!HasValidation()) {
      evaluate.Fault("keep_best", "there is no data.validation to find the best checkpoint with");
    } else if (!why.empty()) {
      evaluate.Fault("keep_best", why);
    } else if (metric != v1::QUALITY_METRIC_LOSS && !out->metrics().empty() &&
               std::count(out->metrics().begin(), out->metrics().end(), metric) == 0) {
      // The loss of an evaluation is always reported.
      evaluate.Fault("keep_best", absl::StrCat(plan::TextOf(metric),
                                               " is not among training.evaluate.metrics; add it"));
    }
    out->set_keep_best(metric);
  }

  void ParseOptimizer(Section optimizer) {
    v1::OptimizerSpec* out = spec_.mutable_training()->mutable_optimizer();
    out->set_name(optimizer.OneOf("name", v1::OPTIMIZER_KIND_ADAMW));
    // No default suits every model, and a wrong one is noticed late.
    if (!optimizer.Has("learning_rate")) {
      optimizer.Fault("learning_rate", "missing; a job needs it (3e-4 is a common start)");
    }
    out->set_learning_rate(optimizer.Number("learning_rate", 3e-4, 0, kLargest));
    out->set_beta1(0.9);
    out->set_beta2(0.95);
    // Both numbers are checked here: a list has no range that Section could check.
    const YAML::Node betas = optimizer.Get("betas");
    if (betas.IsDefined()) {
      double first = 0;
      double second = 0;
      if (betas.IsSequence() && betas.size() == 2 &&
          YAML::convert<double>::decode(betas[0], first) &&
          YAML::convert<double>::decode(betas[1], second) && first >= 0 && first < 1 &&
          second >= 0 && second < 1) {
        out->set_beta1(first);
        out->set_beta2(second);
      } else {
        optimizer.Fault("betas", "expected two numbers from 0 to below 1, like [0.9, 0.95]");
      }
    }
    out->set_eps(optimizer.Number("eps", 1e-8, 0, kLargest));
    out->set_weight_decay(optimizer.Number("weight_decay", 0.1, 0, kLargest));
    ParsePatterns(optimizer, "no_decay", out->mutable_no_decay());
    optimizer.Finish();
  }

  // A list of names of tensors, in which * stands for anything.
  void ParsePatterns(Section& section, const char* key,
                     google::protobuf::RepeatedPtrField<std::string>* out) {
    const YAML::Node list = section.Get(key);
    if (!list.IsDefined()) return;
    if (!list.IsSequence()) return section.Fault(key, "expected a list of tensor names");
    for (const YAML::Node& pattern : list) {
      *out->Add() = pattern.IsScalar() ? pattern.Scalar() : "";
      // Without sizes the tensors are not known, and the missing sizes are faults already.
      if (spec_.model().hidden() > 0 && spec_.model().heads() > 0 &&
          !plan::MatchesAnyTensor(spec_.model(), out->at(out->size() - 1))) {
        section.Fault(key, absl::StrCat("no tensor of the model is named '",
                                        out->at(out->size() - 1), "' (docs/formats.md)"));
      }
    }
  }

  void CheckTrained(Section& training) {
    const bool is_sized = spec_.model().hidden() > 0 && spec_.model().heads() > 0;
    if (spec_.training().frozen().empty() || !is_sized || plan::TrainsAnything(spec_)) return;
    training.Fault("frozen",
                   "names every tensor of the model, so that nothing is left to train; "
                   "leave out a pattern");
  }

  void ParseSchedule(Section schedule) {
    v1::TrainingSpec* training = spec_.mutable_training();
    v1::ScheduleSpec* out = training->mutable_schedule();
    out->set_kind(schedule.OneOf("kind", v1::LEARNING_RATE_SCHEDULE_COSINE));
    out->set_warmup_steps(schedule.Integer("warmup_steps", 0, 0));
    out->set_min_learning_rate(schedule.Number("min_learning_rate", 0, 0, kLargest));
    // Without a key the rate decays until the last step, which a job of epochs does not know yet:
    // it has none until then (plan/epochs.h).
    const int64_t least = training->epochs() > 0 && schedule.Has("decay_steps") ? 1 : 0;
    out->set_decay_steps(schedule.Integer("decay_steps", training->steps(), least));
    if (out->kind() == v1::LEARNING_RATE_SCHEDULE_WSD) {
      // The other kinds have no such phase, so that the key is unknown there and reported.
      out->set_decay_fraction(schedule.Number("decay_fraction", 0.2, 0, 1));
    }
    schedule.Finish();
  }

  void ParseResources(Section resources) {
    v1::ResourcesSpec* out = spec_.mutable_resources();
    out->set_device(resources.OneOf("device", v1::DEVICE_KIND_CPU));
    out->set_collectives(resources.OneOf("collectives", v1::COLLECTIVES_AUTO));
    // The message stores the exception, so that its default of false is the usual case.
    out->set_no_cuda_graphs(!resources.Flag("cuda_graphs", true));
    if (out->device() != v1::DEVICE_KIND_AUTO) {
      ResolveDevice(&spec_,
                    out->device() == v1::DEVICE_KIND_CUDA ? AutoDevice::kCuda : AutoDevice::kCpu);
    }
    const v1::ParallelismSpec& parallelism = spec_.parallelism();
    // The section's ranks are not read yet, so the degrees alone give this number.
    const int named = plan::RanksOfJob(spec_);  // product of its degrees
    const bool given = resources.Has("ranks");
    out->set_ranks(static_cast<int32_t>(resources.Integer("ranks", named, 1, plan::kMostRanks)));
    if (named > plan::kMostRanks) {
      root_.Fault("parallelism",
                  absl::StrCat("tensor ", parallelism.tensor(), " x pipeline ",
                               parallelism.pipeline(), " x data ", std::max(1, parallelism.data()),
                               ": a job has at most ", plan::kMostRanks, " ranks"));
    } else if (given && !parallelism.automatic() && parallelism.data() > 0 &&
               out->ranks() != named) {
      // Where a degree is left out it follows from the ranks; where all are named they must agree.
      resources.Fault("ranks",
                      absl::StrCat(out->ranks(), ", but parallelism names tensor ",
                                   parallelism.tensor(), " x pipeline ", parallelism.pipeline(),
                                   " x data ", parallelism.data(), " = ", named, " ranks"));
    }
    if (resources.Text("threads_per_rank", "auto") != "auto") {
      out->set_threads_per_rank(
          static_cast<int32_t>(resources.Integer("threads_per_rank", 1, 1, 1024)));
    }
    resources.Finish();
  }

  void ParseCheckpoint(Section checkpoint) {
    v1::CheckpointSpec* out = spec_.mutable_checkpoint();
    out->set_every_steps(checkpoint.Integer("every_steps", 500, 0));
    out->set_keep_last(static_cast<int32_t>(checkpoint.Integer("keep_last", 3, 1, 1 << 20)));
    // null and a missing key mean the same: no interval in time.
    if (checkpoint.Text("every_seconds", "null") != "null") {
      out->set_every_seconds(checkpoint.Seconds("every_seconds", 0));
    }
    out->set_keep_every(checkpoint.Integer("keep_every", 0, 0));
    out->set_peer_copies(
        static_cast<int32_t>(checkpoint.Integer("peer_copies", 0, 0, plan::kMostPeerCopies)));
    out->set_snapshot(checkpoint.OneOf("snapshot", v1::SNAPSHOT_KIND_COPY));
    out->set_timeout_seconds(checkpoint.Seconds("timeout", plan::kSaveTimeoutSeconds));
    // Seconds has no lower bound of its own.
    if (out->timeout_seconds() == 0) {
      checkpoint.Fault("timeout", "expected more than 0; 10m is the default");
    }
    const std::string path = checkpoint.Text("path", "");
    // Such a text would otherwise become a directory named after the protocol.
    if (absl::StrContains(path, "://")) {
      checkpoint.Fault("path", NotYet(absl::StrCat("'", path, "', which is not a directory,")));
    } else if (checkpoint.Has("path") && path.empty()) {
      checkpoint.Fault("path", "expected the directory for the job's checkpoints");
    } else if (!path.empty()) {
      // Paths are relative to the job file, not to where the command was started.
      out->set_path(Resolved(path));
    }
    checkpoint.Finish();
  }

  void ParseFaultTolerance(Section fault_tolerance) {
    v1::FaultToleranceSpec* out = spec_.mutable_fault_tolerance();
    out->set_max_restarts(
        static_cast<int32_t>(fault_tolerance.Integer("max_restarts", 3, 0, 1 << 20)));
    out->set_elastic_min_ranks(
        static_cast<int32_t>(fault_tolerance.Integer("elastic_min_ranks", 0, 0, 1 << 20)));
    out->set_elastic_wait_seconds(fault_tolerance.Seconds("elastic_wait", kElasticWaitSeconds));
    // `auto` is 0: the deadline is learned from the steps (coordinator/core/watchdog.h).
    if (fault_tolerance.Text("hang_timeout", "auto") != "auto") {
      out->set_hang_timeout_seconds(fault_tolerance.Seconds("hang_timeout", 1));
      if (out->hang_timeout_seconds() == 0) {
        fault_tolerance.Fault("hang_timeout",
                              "expected more than 0; auto learns it from the steps");
      }
    }
    out->set_on_nan(fault_tolerance.OneOf("on_nan", v1::ON_NAN_STOP));
    out->set_stragglers(fault_tolerance.OneOf("stragglers", v1::STRAGGLER_POLICY_REPORT));
    out->set_on_spike(fault_tolerance.OneOf("on_spike", v1::ON_SPIKE_REPORT));
    out->set_spike_threshold(
        // A threshold below three deviations would take ordinary steps for spikes.
        fault_tolerance.Number("spike_threshold", kSpikeThreshold, 3, kLargest));
    out->set_check_replicas_every(fault_tolerance.Integer("check_replicas_every", 100, 0));
    fault_tolerance.Finish();
  }

  void ParseTensorBoard() {
    const std::string text = root_.Text("tensorboard", "");
    if (root_.Has("tensorboard") && text.empty()) {
      root_.Fault("tensorboard", "expected the directory for TensorBoard's event files");
    }
    if (!text.empty()) spec_.set_tensorboard(Resolved(text));
  }

  // The absolute form of a path in the job file, which is relative to that file.
  std::string Resolved(const std::filesystem::path& path) const {
    return (path.is_absolute() ? path : std::filesystem::path(directory_) / path)
        .lexically_normal()
        .string();
  }

  Faults& faults_;
  Section root_;
  std::string directory_;
  v1::JobSpec spec_;
};

// A change from the command line, KEY=VALUE; nullopt: it has been reported as a fault.
std::optional<JobChange> ReadOverride(const std::string& text, Faults* faults) {
  // The value may contain the sign as well; keys do not.
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  JobChange change{absl::StrSplit(key, '.'), YAML::Node(), absl::StrCat("--set ", text)};
  // Faults of this key point to the command line from now on, even a fault of its form.
  faults->Overridden(key, change.place);
  if (equals == std::string::npos || equals == 0) {
    faults->Add(0, key, "expected KEY=VALUE");
    return std::nullopt;
  }
  try {
    // The value is YAML, so that lists and maps can be given, too.
    change.value = YAML::Load(text.substr(equals + 1));
  } catch (const YAML::Exception& error) {
    faults->Add(0, key, absl::StrCat("not YAML: ", error.msg));
    return std::nullopt;
  }
  return change;
}

// Sets a key in the tree, making the maps on the way.
void Apply(YAML::Node root, const JobChange& change, Faults* faults) {
  const std::string key = absl::StrJoin(change.key, ".");
  // Faults of this key, and below it, point to the change from now on.
  faults->Overridden(key, change.place);
  try {
    YAML::Node node = root;
    for (size_t i = 0; i + 1 < change.key.size(); ++i) {
      YAML::Node child = node[change.key[i]];
      // `parallelism: auto` gives way to a map when one of its keys is set.
      if (!child.IsDefined() || !child.IsMap())
        node[change.key[i]] = YAML::Node(YAML::NodeType::Map);
      node.reset(node[change.key[i]]);
    }
    node[change.key.back()] = change.value;
  } catch (const YAML::Exception& error) {
    faults->Add(0, key, absl::StrCat("not YAML: ", error.msg));
  }
}

// Reads `text`, makes what `changes` returns to it, and parses the job.
absl::StatusOr<v1::JobSpec> ParseTree(
    const std::string& text, const std::string& name, const std::string& directory,
    absl::FunctionRef<std::vector<JobChange>(Faults* faults)> changes) {
  TERCIO_RETURN_IF_ERROR(CheckUtf8(text, name));
  try {
    YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected a job (a map of keys)"));
    }
    Faults faults(name);
    // YAML::Load reads the first document only, and the rest would be ignored silently.
    if (const int line = LineOfSecondDocument(text); line > 0) {
      faults.Add(line, "", "a second document (after ---); a file holds one job");
    }
    // Changes are made to the tree, so that they are checked like the file itself.
    for (const JobChange& change : changes(&faults)) Apply(root, change, &faults);
    return JobParser(root, &faults, directory).Parse();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobText(const std::string& text, const std::string& name,
                                         const std::string& directory,
                                         const std::vector<std::string>& overrides) {
  // Texts from the command line end up in the same tree.
  for (const std::string& change : overrides) {
    TERCIO_RETURN_IF_ERROR(CheckUtf8(change, "--set"));
  }
  return ParseTree(text, name, directory, [&](Faults* faults) {
    std::vector<JobChange> changes;
    for (const std::string& text_of_change : overrides) {
      std::optional<JobChange> change = ReadOverride(text_of_change, faults);
      if (change.has_value()) changes.push_back(*std::move(change));
    }
    return changes;
  });
}

absl::StatusOr<v1::JobSpec> ParseChangedJob(const std::string& text, const std::string& name,
                                            const std::string& directory,
                                            const std::vector<JobChange>& changes) {
  return ParseTree(text, name, directory, [&](Faults*) { return changes; });
}

absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& path,
                                         const std::vector<std::string>& overrides) {
  // The size is bounded before parsing: YAML of a gigabyte would take many times as much.
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kMostYamlBytes));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  // Without the directory relative paths would have no meaning.
  if (error) return FileError(error.value(), "cannot determine the working directory of", path);
  return ParseJobText(text, path == "-" ? "stdin" : path, absolute.parent_path().string(),
                      overrides);
}

namespace {

// Jobs of older versions lack some words.
template <typename E>
std::string WordOr(E value, E otherwise) {
  return plan::TextOf(plan::IsNamed(value) ? value : otherwise);
}

// A list after its key; nothing where it is empty.
std::string Patterns(const char* key, const google::protobuf::RepeatedPtrField<std::string>& list) {
  // A key without values is left out, since an empty list is not what a person writes.
  if (list.empty()) return "";
  return absl::StrCat(key,
                      nlohmann::json(std::vector<std::string>(list.begin(), list.end())).dump());
}

std::string FaultToleranceYaml(const v1::FaultToleranceSpec& fault) {
  std::string yaml;
  absl::StrAppend(&yaml, "fault_tolerance: {max_restarts: ", fault.max_restarts(),
                  ", elastic_min_ranks: ",
                  fault.elastic_min_ranks() > 0 ? absl::StrCat(fault.elastic_min_ranks()) : "null",
                  ", elastic_wait: ", Number(fault.elastic_wait_seconds()), "s, hang_timeout: ");
  absl::StrAppend(&yaml,
                  fault.hang_timeout_seconds() > 0
                      ? absl::StrCat(Number(fault.hang_timeout_seconds()), "s")
                      : "auto",
                  ", on_nan: ", plan::TextOf(fault.on_nan()),
                  ", stragglers: ", plan::TextOf(fault.stragglers()));
  // Jobs of an older version have neither.
  absl::StrAppend(&yaml, ", on_spike: ", WordOr(fault.on_spike(), v1::ON_SPIKE_OFF),
                  ", spike_threshold: ",
                  Number(fault.spike_threshold() > 0 ? fault.spike_threshold() : kSpikeThreshold),
                  ", check_replicas_every: ", fault.check_replicas_every(), "}\n");
  return yaml;
}

std::string CheckpointYaml(const v1::JobSpec& spec) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  std::string yaml = absl::StrCat(
      "checkpoint: {every_steps: ", checkpoint.every_steps(), ", every_seconds: ",
      checkpoint.every_seconds() > 0 ? absl::StrCat(Number(checkpoint.every_seconds()), "s")
                                     : "null",
      ", keep_last: ", checkpoint.keep_last(), ", keep_every: ", checkpoint.keep_every());
  absl::StrAppend(&yaml, ", peer_copies: ", checkpoint.peer_copies(),
                  ", snapshot: ", WordOr(checkpoint.snapshot(), v1::SNAPSHOT_KIND_COPY),
                  ", timeout: ", Number(plan::SaveTimeoutSeconds(spec)), "s");
  if (!checkpoint.path().empty()) {
    // A JSON text is YAML, too, with every character that needs it escaped.
    absl::StrAppend(&yaml, ", path: ", nlohmann::json(checkpoint.path()).dump());
  }
  return yaml + "}\n";
}

// Jobs of older versions, and those without validation data, name no metrics.
std::string EvaluateYaml(const v1::EvaluateSpec& evaluate) {
  std::vector<std::string> metrics;
  for (const int metric : evaluate.metrics()) {
    metrics.push_back(plan::TextOf(static_cast<v1::QualityMetric>(metric)));
  }
  return absl::StrCat(
      "{every_steps: ", evaluate.every_steps(), ", every_epochs: ", evaluate.every_epochs(),
      ", batches: ", evaluate.batches(),
      metrics.empty() ? "" : absl::StrCat(", metrics: [", absl::StrJoin(metrics, ", "), "]"),
      ", keep_best: ",
      plan::IsNamed(evaluate.keep_best()) ? plan::TextOf(evaluate.keep_best()) : "null", "}");
}

std::string TensorBoardYaml(const v1::JobSpec& spec) {
  if (spec.tensorboard().empty()) return "";
  return absl::StrCat("tensorboard: ", nlohmann::json(spec.tensorboard()).dump(), "\n");
}

}  // namespace

std::string FaultOfName(const std::string& name) {
  if (name.size() > kMostNameBytes) {
    return absl::StrCat("has ", name.size(), " bytes; expected at most ", kMostNameBytes);
  }
  // What is displayed differently has characters that could steer a terminal.
  return ForDisplay(name) == name ? "" : "has control characters; leave them out";
}

void ResolveDevice(v1::JobSpec* spec, AutoDevice meant) {
  v1::ResourcesSpec& resources = *spec->mutable_resources();
  if (resources.device() == v1::DEVICE_KIND_AUTO) {
    resources.set_device(meant == AutoDevice::kCuda ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU);
    // Allowed where a device has it.
    if (meant == AutoDevice::kCpu) spec->mutable_training()->set_tf32(false);
  }
  v1::TrainingSpec& training = *spec->mutable_training();
  // bf16 is what GPUs are fast in; CPUs would only round to it.
  if (training.precision() == v1::PRECISION_AUTO) {
    training.set_precision(resources.device() == v1::DEVICE_KIND_CUDA ? v1::PRECISION_BF16
                                                                      : v1::PRECISION_FP32);
  }
}

std::string EffectiveYaml(const v1::JobSpec& spec) {
  const v1::TrainingSpec& training = spec.training();
  const v1::OptimizerSpec& optimizer = training.optimizer();
  const v1::ParallelismSpec& parallelism = spec.parallelism();
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  const auto or_auto = [](int64_t value) {
    return value > 0 ? absl::StrCat(value) : std::string("auto");
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  // Texts of people are quoted; the keys' own values never need it.
  std::string yaml = absl::StrCat("name: ", quoted(spec.name()), "\n", ModelYaml(spec.model()),
                                  AdapterYaml(spec.model()));
  absl::StrAppend(&yaml, DataYaml(spec.data()), "training:\n  objective: ",
                  WordOr(training.objective(), v1::TRAINING_OBJECTIVE_PRETRAIN), "\n  ",
                  training.epochs() > 0 ? absl::StrCat("epochs: ", training.epochs())
                                        : absl::StrCat("steps: ", training.steps()),
                  "\n  global_batch: ", training.global_batch(),
                  "\n  micro_batch: ", or_auto(training.micro_batch()),
                  // A change of the batch changes lanes that nobody has chosen.
                  "\n  lanes: ", or_auto(plan::ChoosesLanes(training) ? training.lanes() : 0),
                  "\n  optimizer: {name: ", plan::TextOf(optimizer.name()),
                  ", learning_rate: ", Number(optimizer.learning_rate()));
  absl::StrAppend(&yaml, ", betas: [", Number(optimizer.beta1()), ", ", Number(optimizer.beta2()),
                  "], eps: ", Number(optimizer.eps()),
                  ", weight_decay: ", Number(optimizer.weight_decay()),
                  Patterns(", no_decay: ", optimizer.no_decay()), "}\n");
  absl::StrAppend(&yaml, "  schedule: {kind: ", plan::TextOf(training.schedule().kind()),
                  ", warmup_steps: ", training.schedule().warmup_steps(),
                  ", min_learning_rate: ", Number(training.schedule().min_learning_rate()),
                  // A job of epochs has none until its data is prepared.
                  training.epochs() > 0 && training.schedule().decay_steps() == 0
                      ? ""
                      : absl::StrCat(", decay_steps: ", training.schedule().decay_steps()),
                  training.schedule().kind() == v1::LEARNING_RATE_SCHEDULE_WSD
                      ? ", decay_fraction: " + Number(training.schedule().decay_fraction())
                      : "",
                  "}\n");
  absl::StrAppend(
      &yaml, "  clip_grad_norm: ", Number(training.clip_grad_norm()),
      "\n  label_smoothing: ", Number(training.label_smoothing()), PreferenceYaml(training),
      DistillationYaml(training), Patterns("\n  frozen: ", training.frozen()),
      training.trace_step() > 0 ? absl::StrCat("\n  trace_step: ", training.trace_step()) : "",
      "\n  precision: ", plan::TextOf(training.precision()), "\n  seed: ", training.seed(),
      "\n  reproducibility: ", WordOr(training.reproducibility(), v1::REPRODUCIBILITY_LAYOUT),
      "\n  weight_format: ", WordOr(training.weight_format(), v1::BLOCK_FORMAT_NONE),
      "\n  gradient_format: ", WordOr(training.gradient_format(), v1::BLOCK_FORMAT_NONE),
      "\n  tf32: ", flag(training.tf32()), "\n  fp8: ", flag(training.fp8()),
      "\n  evaluate: ", EvaluateYaml(training.evaluate()), "\n");
  absl::StrAppend(&yaml, ParallelismYaml(parallelism), OffloadYaml(spec.offload()));
  absl::StrAppend(&yaml, "resources: {device: ", plan::TextOf(spec.resources().device()),
                  ", cuda_graphs: ", flag(!spec.resources().no_cuda_graphs()),
                  ", collectives: ", WordOr(spec.resources().collectives(), v1::COLLECTIVES_AUTO),
                  ", ranks: ", spec.resources().ranks(),
                  ", threads_per_rank: ", or_auto(spec.resources().threads_per_rank()), "}\n");
  return yaml + CheckpointYaml(spec) + FaultToleranceYaml(spec.fault_tolerance()) +
         TensorBoardYaml(spec);
}

absl::StatusOr<v1::JobSpec> ChangeJob(const v1::JobSpec& spec,
                                      const std::vector<std::string>& changes) {
  // The job is written and read again, so that a change passes the
  // same checks as a file; the paths in it are absolute by now.
  return ParseJobText(EffectiveYaml(spec), "job " + spec.name(), "/", changes);
}

}  // namespace tercio::config
