// Distillation: a student learns from the distribution that a teacher gives each predicted token,
// beside the token itself.
//
//   loss of a token = (1 - weight) cross-entropy + weight T^2 divergence
//
// T is the temperature by which the logits of both are divided in the divergence (kernels/ops.h);
// T^2 keeps the gradients of both parts alike in size (Hinton, Vinyals, Dean 2015, "Distilling the
// Knowledge in a Neural Network", section 2). The divergence is KL(teacher, student), or in reverse
// KL(student, teacher) (Gu et al. 2024, "MiniLLM"; Agarwal et al. 2024, "On-Policy Distillation of
// Language Models"). The loss of a step is the mean over the predicted tokens of the global batch.
//
// A teacher in the job is a second model on the same ranks, of which only the forward pass runs,
// without dropout. It is cut by the student's tensor degree and number of stages, with layers of
// its own for each; all data ranks have it. What plans, checks and executes a model is given the
// teacher as a job of its own, whose tensors are all frozen.
//
// Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// The objective is distill.
bool LearnsFromTeacher(const v1::TrainingSpec& training);
// The teacher is a model that the ranks have beside the student.
bool HasTeacher(const v1::TrainingSpec& training);

// INVALID_ARGUMENT: the job's numbers are not those of its objective, its model or its teacher has
// no distribution over tokens that could be compared, or the two have different vocabularies.
absl::Status CheckDistillation(const v1::JobSpec& job);

// Tokens of the model of a job whose data has `of_data` of them: a model that starts from existing
// weights has theirs, another one those of its teacher.
int32_t VocabularyOf(const v1::JobSpec& job, int32_t of_data);

// REQUIRES of both: HasTeacher(job.training()).
v1::JobSpec TeacherJob(const v1::JobSpec& job);
v1::Layout TeacherLayout(const v1::JobSpec& job, const v1::Layout& layout);

// Means over predicted tokens, nats.
struct DistillationMeans {
  double cross_entropy = 0;
  double divergence = 0;  // from the teacher, at the temperature
};
double DistillationLoss(const v1::DistillationSpec& spec, const DistillationMeans& means);

}  // namespace tercio::plan
