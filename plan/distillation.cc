#include "plan/distillation.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "model/architecture.h"
#include "plan/stage_layers.h"

namespace tercio::plan {
namespace {

absl::Status Fault(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("training.distillation: ", what));
}

// Predicts each token from those before it.
bool ContinuesTexts(const v1::ModelSpec& model) {
  const model::Architecture architecture = model::ArchitectureOf(model);
  return architecture.causal && architecture.streams.size() == 1 &&
         architecture.head.language.has_value();
}

absl::Status CheckNumbers(const v1::TrainingSpec& training) {
  const v1::DistillationSpec& spec = training.distillation();
  if (spec.teacher().empty() == spec.logits().empty()) {
    return Fault("name either a teacher or logits that one has left");
  }
  if (!(spec.temperature() > 0)) return Fault("temperature is not above 0");
  if (!(spec.weight() > 0 && spec.weight() <= 1)) return Fault("weight is not in (0, 1]");
  if (!spec.logits().empty() && spec.direction() == v1::DISTILLATION_DIRECTION_REVERSE) {
    return Fault(
        absl::StrCat("direction: reverse needs all logits of the teacher, and logits that ",
                     "are stored are the largest ones; use direction: forward, or teacher"));
  }
  if (training.label_smoothing() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.label_smoothing changes what a token teaches, and the teacher does "
                     "that already; ",
                     "leave it out"));
  }
  return absl::OkStatus();
}

absl::Status CheckTeacherModel(const v1::JobSpec& job) {
  const v1::DistillationSpec& spec = job.training().distillation();
  const v1::ModelSpec& teacher = spec.model();
  const auto fault = [&](const std::string& what) {
    return Fault(absl::StrCat("teacher ", spec.teacher(), " ", what));
  };
  if (!ContinuesTexts(teacher)) {
    return fault("gives no distribution over the next token; use a decoder such as gpt2 or llama");
  }
  if (teacher.has_adapter()) {
    return fault("has an adapter; merge it first (`tercio checkpoint export --merge`)");
  }
  if (teacher.context() < job.model().context()) {
    return fault(absl::StrCat("reads at most ", teacher.context(), " tokens, and model.context is ",
                              job.model().context(), "; shorten that"));
  }
  // The student's may not be known yet.
  if (job.model().vocab_size() > 0 && teacher.vocab_size() != job.model().vocab_size()) {
    return fault(absl::StrCat("has another vocabulary, of ", teacher.vocab_size(),
                              " tokens, than the model, of ", job.model().vocab_size(),
                              "; their distributions can be compared only over the same tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

bool LearnsFromTeacher(const v1::TrainingSpec& training) {
  return training.objective() == v1::TRAINING_OBJECTIVE_DISTILL;
}

bool HasTeacher(const v1::TrainingSpec& training) {
  return LearnsFromTeacher(training) && !training.distillation().teacher().empty();
}

absl::Status CheckDistillation(const v1::JobSpec& job) {
  if (!LearnsFromTeacher(job.training())) return absl::OkStatus();
  if (absl::Status numbers = CheckNumbers(job.training()); !numbers.ok()) return numbers;
  if (!ContinuesTexts(job.model())) {
    return absl::InvalidArgumentError(
        "training.objective: distill needs a decoder such as gpt2 or llama");
  }
  return HasTeacher(job.training()) ? CheckTeacherModel(job) : absl::OkStatus();
}

int32_t VocabularyOf(const v1::JobSpec& job, int32_t of_data) {
  if (!job.model().from().empty()) return job.model().vocab_size();
  const int32_t of_teacher = job.training().distillation().model().vocab_size();
  return LearnsFromTeacher(job.training()) && of_teacher > 0 ? of_teacher : of_data;
}

v1::JobSpec TeacherJob(const v1::JobSpec& job) {
  v1::JobSpec teacher;
  const v1::DistillationSpec& spec = job.training().distillation();
  *teacher.mutable_model() = spec.model();
  teacher.mutable_model()->set_context(job.model().context());
  teacher.mutable_model()->set_dropout(0);
  // Samples have the same form, and with it the head the same chunks of rows.
  *teacher.mutable_data() = job.data();
  *teacher.mutable_resources() = job.resources();
  v1::TrainingSpec& training = *teacher.mutable_training();
  training = job.training();
  training.clear_distillation();
  training.set_objective(job.data().has_chat() ? v1::TRAINING_OBJECTIVE_SFT
                                               : v1::TRAINING_OBJECTIVE_PRETRAIN);
  training.clear_frozen();
  training.add_frozen()->assign(1, '*');
  training.set_fp8(false);
  training.clear_weight_format();
  training.clear_gradient_format();
  *teacher.mutable_parallelism()->mutable_stage_layers() = spec.stage_layers();
  return teacher;
}

v1::Layout TeacherLayout(const v1::JobSpec& job, const v1::Layout& layout) {
  v1::Layout teacher;
  teacher.set_tensor(layout.tensor());
  teacher.set_pipeline(layout.pipeline());
  teacher.set_virtual_pipeline(1);
  teacher.set_context_parallel(layout.context_parallel());
  teacher.set_data(layout.data());
  teacher.set_micro_batch(layout.micro_batch());
  teacher.set_micro_batches(layout.micro_batches());
  teacher.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  // Nothing is kept for a backward pass: layers share what is within one of them.
  teacher.set_recompute(v1::RECOMPUTE_FULL);
  SetStageLayers(TeacherJob(job), &teacher);
  return teacher;
}

double DistillationLoss(const v1::DistillationSpec& spec, const DistillationMeans& means) {
  return (1 - spec.weight()) * means.cross_entropy +
         spec.weight() * spec.temperature() * spec.temperature() * means.divergence;
}

}  // namespace tercio::plan
