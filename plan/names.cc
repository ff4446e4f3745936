#include "plan/names.h"

#include "google/protobuf/descriptor.h"

namespace tercio::plan {
namespace {

constexpr Word kArchitectures[] = {
    {v1::ARCHITECTURE_GPT2, "gpt2"},       {v1::ARCHITECTURE_LLAMA, "llama"},
    {v1::ARCHITECTURE_BERT, "bert"},       {v1::ARCHITECTURE_OPT, "opt"},
    {v1::ARCHITECTURE_GPT_J, "gptj"},      {v1::ARCHITECTURE_GPT_NEOX, "gpt_neox"},
    {v1::ARCHITECTURE_PHI, "phi"},         {v1::ARCHITECTURE_PHI3, "phi3"},
    {v1::ARCHITECTURE_QWEN2, "qwen2"},     {v1::ARCHITECTURE_QWEN3, "qwen3"},
    {v1::ARCHITECTURE_MISTRAL, "mistral"}, {v1::ARCHITECTURE_GEMMA2, "gemma2"},
    {v1::ARCHITECTURE_T5, "t5"},
};
constexpr Word kActivations[] = {
    {v1::ACTIVATION_GELU, "gelu"},
    {v1::ACTIVATION_GELU_TANH, "gelu_tanh"},
    {v1::ACTIVATION_RELU, "relu"},
    {v1::ACTIVATION_SILU, "silu"},
};
constexpr Word kNormPlacements[] = {
    {v1::NORM_PLACEMENT_POST, "post"},
    {v1::NORM_PLACEMENT_PRE, "pre"},
};
constexpr Word kAdapterKinds[] = {
    {v1::ADAPTER_KIND_LORA, "lora"},
    {v1::ADAPTER_KIND_IA3, "ia3"},
};
constexpr Word kOptimizerKinds[] = {
    {v1::OPTIMIZER_KIND_ADAMW, "adamw"},
};
constexpr Word kLearningRateSchedules[] = {
    {v1::LEARNING_RATE_SCHEDULE_COSINE, "cosine"},
    {v1::LEARNING_RATE_SCHEDULE_CONSTANT, "constant"},
    {v1::LEARNING_RATE_SCHEDULE_LINEAR, "linear"},
    {v1::LEARNING_RATE_SCHEDULE_WSD, "wsd"},
    {v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT, "inverse_square_root"},
};
constexpr Word kPrecisions[] = {
    {v1::PRECISION_AUTO, "auto"},
    {v1::PRECISION_FP32, "fp32"},
    {v1::PRECISION_BF16, "bf16"},
    {v1::PRECISION_FP16, "fp16"},
};
constexpr Word kReproducibilities[] = {
    {v1::REPRODUCIBILITY_LAYOUT, "layout"},
    {v1::REPRODUCIBILITY_EXACT, "exact"},
};
constexpr Word kPipelineSchedules[] = {
    {v1::PIPELINE_SCHEDULE_GPIPE, "gpipe"},
    {v1::PIPELINE_SCHEDULE_1F1B, "1f1b"},
    {v1::PIPELINE_SCHEDULE_INTERLEAVED, "interleaved"},
};
constexpr Word kRecomputes[] = {
    {v1::RECOMPUTE_NONE, "none"},
    {v1::RECOMPUTE_SELECTIVE, "selective"},
    {v1::RECOMPUTE_FULL, "full"},
};
constexpr Word kDeviceKinds[] = {
    {v1::DEVICE_KIND_CPU, "cpu"},
    {v1::DEVICE_KIND_CUDA, "cuda"},
    {v1::DEVICE_KIND_AUTO, "auto"},
};
constexpr Word kCollectives[] = {
    {v1::COLLECTIVES_AUTO, "auto"},
    {v1::COLLECTIVES_NCCL, "nccl"},
    {v1::COLLECTIVES_HOST, "host"},
};
constexpr Word kOnNan[] = {
    {v1::ON_NAN_STOP, "stop"},
    {v1::ON_NAN_SKIP, "skip"},
};
constexpr Word kStragglerPolicies[] = {
    {v1::STRAGGLER_POLICY_REPORT, "report"},
    {v1::STRAGGLER_POLICY_EXCLUDE, "exclude"},
};
constexpr Word kOnSpike[] = {
    {v1::ON_SPIKE_OFF, "off"},
    {v1::ON_SPIKE_REPORT, "report"},
    {v1::ON_SPIKE_SKIP, "skip"},
    {v1::ON_SPIKE_ROLLBACK, "rollback"},
};
constexpr Word kSnapshotKinds[] = {
    {v1::SNAPSHOT_KIND_COPY, "copy"},
    {v1::SNAPSHOT_KIND_IN_PLACE, "in_place"},
};
constexpr Word kOffloadTiers[] = {
    {v1::OFFLOAD_TIER_NONE, "none"},
    {v1::OFFLOAD_TIER_HOST, "host"},
    {v1::OFFLOAD_TIER_NVME, "nvme"},
};
constexpr Word kBlockFormats[] = {
    {v1::BLOCK_FORMAT_NONE, "none"},
    {v1::BLOCK_FORMAT_INT8, "int8"},
    {v1::BLOCK_FORMAT_INT4, "int4"},
};
constexpr Word kBaseFormats[] = {
    {v1::BASE_FORMAT_NONE, "none"},
    {v1::BASE_FORMAT_NF4, "nf4"},
    {v1::BASE_FORMAT_INT8, "int8"},
};
constexpr Word kQualityMetrics[] = {
    {v1::QUALITY_METRIC_LOSS, "loss"},
    {v1::QUALITY_METRIC_ACCURACY, "accuracy"},
    {v1::QUALITY_METRIC_PRECISION, "precision"},
    {v1::QUALITY_METRIC_RECALL, "recall"},
    {v1::QUALITY_METRIC_F1, "f1"},
};
constexpr Word kTrainingObjectives[] = {
    {v1::TRAINING_OBJECTIVE_PRETRAIN, "pretrain"}, {v1::TRAINING_OBJECTIVE_SFT, "sft"},
    {v1::TRAINING_OBJECTIVE_DPO, "dpo"},           {v1::TRAINING_OBJECTIVE_ORPO, "orpo"},
    {v1::TRAINING_OBJECTIVE_KTO, "kto"},           {v1::TRAINING_OBJECTIVE_DISTILL, "distill"},
};
constexpr Word kPreferenceLosses[] = {
    {v1::PREFERENCE_LOSS_SIGMOID, "sigmoid"},
    {v1::PREFERENCE_LOSS_HINGE, "hinge"},
    {v1::PREFERENCE_LOSS_IPO, "ipo"},
};
constexpr Word kDistillationDirections[] = {
    {v1::DISTILLATION_DIRECTION_FORWARD, "forward"},
    {v1::DISTILLATION_DIRECTION_REVERSE, "reverse"},
};
constexpr Word kAnswerForms[] = {
    {v1::ANSWER_FORM_PAIR, "pair"},
    {v1::ANSWER_FORM_LABELLED, "labelled"},
};
constexpr Word kLossOn[] = {
    {v1::LOSS_ON_ASSISTANT, "assistant"},
    {v1::LOSS_ON_ALL, "all"},
    {v1::LOSS_ON_LAST, "last"},
};
constexpr Word kChatFormats[] = {
    {v1::CHAT_FORMAT_AUTO, "auto"},
    {v1::CHAT_FORMAT_MESSAGES, "messages"},
    {v1::CHAT_FORMAT_SHAREGPT, "sharegpt"},
    {v1::CHAT_FORMAT_ALPACA, "alpaca"},
    {v1::CHAT_FORMAT_PROMPT_COMPLETION, "prompt_completion"},
};

struct Set {
  const google::protobuf::EnumDescriptor* (*descriptor)();
  std::span<const Word> words;
};

constexpr Set kSets[] = {
    {v1::Architecture_descriptor, kArchitectures},
    {v1::Activation_descriptor, kActivations},
    {v1::NormPlacement_descriptor, kNormPlacements},
    {v1::AdapterKind_descriptor, kAdapterKinds},
    {v1::OptimizerKind_descriptor, kOptimizerKinds},
    {v1::LearningRateSchedule_descriptor, kLearningRateSchedules},
    {v1::Precision_descriptor, kPrecisions},
    {v1::Reproducibility_descriptor, kReproducibilities},
    {v1::BlockFormat_descriptor, kBlockFormats},
    {v1::BaseFormat_descriptor, kBaseFormats},
    {v1::PipelineSchedule_descriptor, kPipelineSchedules},
    {v1::Recompute_descriptor, kRecomputes},
    {v1::DeviceKind_descriptor, kDeviceKinds},
    {v1::Collectives_descriptor, kCollectives},
    {v1::OnNan_descriptor, kOnNan},
    {v1::StragglerPolicy_descriptor, kStragglerPolicies},
    {v1::OnSpike_descriptor, kOnSpike},
    {v1::SnapshotKind_descriptor, kSnapshotKinds},
    {v1::OffloadTier_descriptor, kOffloadTiers},
    {v1::QualityMetric_descriptor, kQualityMetrics},
    {v1::TrainingObjective_descriptor, kTrainingObjectives},
    {v1::LossOn_descriptor, kLossOn},
    {v1::ChatFormat_descriptor, kChatFormats},
    {v1::PreferenceLoss_descriptor, kPreferenceLosses},
    {v1::DistillationDirection_descriptor, kDistillationDirections},
    {v1::AnswerForm_descriptor, kAnswerForms},
};

}  // namespace

template <>
std::span<const Word> WordsOf<v1::Architecture>() {
  return kArchitectures;
}
template <>
std::span<const Word> WordsOf<v1::Activation>() {
  return kActivations;
}
template <>
std::span<const Word> WordsOf<v1::NormPlacement>() {
  return kNormPlacements;
}
template <>
std::span<const Word> WordsOf<v1::AdapterKind>() {
  return kAdapterKinds;
}
template <>
std::span<const Word> WordsOf<v1::OptimizerKind>() {
  return kOptimizerKinds;
}
template <>
std::span<const Word> WordsOf<v1::LearningRateSchedule>() {
  return kLearningRateSchedules;
}
template <>
std::span<const Word> WordsOf<v1::Precision>() {
  return kPrecisions;
}
template <>
std::span<const Word> WordsOf<v1::Reproducibility>() {
  return kReproducibilities;
}
template <>
std::span<const Word> WordsOf<v1::BlockFormat>() {
  return kBlockFormats;
}
template <>
std::span<const Word> WordsOf<v1::BaseFormat>() {
  return kBaseFormats;
}
template <>
std::span<const Word> WordsOf<v1::PipelineSchedule>() {
  return kPipelineSchedules;
}
template <>
std::span<const Word> WordsOf<v1::Recompute>() {
  return kRecomputes;
}
template <>
std::span<const Word> WordsOf<v1::DeviceKind>() {
  return kDeviceKinds;
}
template <>
std::span<const Word> WordsOf<v1::Collectives>() {
  return kCollectives;
}
template <>
std::span<const Word> WordsOf<v1::OnNan>() {
  return kOnNan;
}
template <>
std::span<const Word> WordsOf<v1::StragglerPolicy>() {
  return kStragglerPolicies;
}
template <>
std::span<const Word> WordsOf<v1::OnSpike>() {
  return kOnSpike;
}
template <>
std::span<const Word> WordsOf<v1::SnapshotKind>() {
  return kSnapshotKinds;
}
template <>
std::span<const Word> WordsOf<v1::OffloadTier>() {
  return kOffloadTiers;
}
template <>
std::span<const Word> WordsOf<v1::QualityMetric>() {
  return kQualityMetrics;
}
template <>
std::span<const Word> WordsOf<v1::TrainingObjective>() {
  return kTrainingObjectives;
}
template <>
std::span<const Word> WordsOf<v1::LossOn>() {
  return kLossOn;
}
template <>
std::span<const Word> WordsOf<v1::ChatFormat>() {
  return kChatFormats;
}
template <>
std::span<const Word> WordsOf<v1::PreferenceLoss>() {
  return kPreferenceLosses;
}
template <>
std::span<const Word> WordsOf<v1::DistillationDirection>() {
  return kDistillationDirections;
}
template <>
std::span<const Word> WordsOf<v1::AnswerForm>() {
  return kAnswerForms;
}

std::span<const Word> WordsOfEnum(std::string_view full_name) {
  for (const Set& set : kSets) {
    if (set.descriptor()->full_name() == full_name) return set.words;
  }
  return {};
}

}  // namespace tercio::plan
