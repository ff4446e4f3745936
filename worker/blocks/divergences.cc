#include "worker/blocks/divergences.h"

namespace tercio::blocks {

Divergences::Divergences(const v1::DistillationSpec& spec, const Tools& tools,
                         device::Stream& stream)
    : tools_(tools),
      stream_(stream),
      temperature_(static_cast<float>(spec.temperature())),
      weight_(static_cast<float>(spec.weight())),
      reverse_(spec.direction() == v1::DISTILLATION_DIRECTION_REVERSE),
      stats_(tools.arena.Floats("head.distillation_stats")),
      all_stats_(tools.arena.Floats("head.all_distillation_stats")),
      student_lse_(tools.arena.Floats("head.student_lse")),
      teacher_lse_(tools.arena.Floats("head.teacher_lse")),
      divergence_(tools.arena.Floats("head.divergence")) {}

void Divergences::Add(const TokenRows& rows, kernels::ConstValues teacher, double* sums) {
  tools_.ops.DistillationLocal({.student = rows.logits,
                                .teacher = teacher,
                                .stats = stats_,
                                .rows = rows.rows,
                                .valid = rows.valid,
                                .stride = rows.stride,
                                .temperature = temperature_,
                                .reverse = reverse_});
  collective::Communicator& ranks = tools_.tensor.communicator();
  const float* all_stats = stats_;
  if (ranks.size() > 1) {
    ranks.AllGather(stream_, stats_, all_stats_, rows.rows * kernels::kDistillationStats);
    all_stats = all_stats_;
  }
  tools_.ops.DistillationCombine({.stats = all_stats,
                                  .student_lse = student_lse_,
                                  .teacher_lse = teacher_lse_,
                                  .divergence = divergence_,
                                  .rows = rows.rows,
                                  .ranks = ranks.size(),
                                  .temperature = temperature_,
                                  .reverse = reverse_});
  tools_.ops.AddLosses({.loss = divergence_,
                        .sums = sums,
                        .rows = rows.rows,
                        .first_row = rows.first_row,
                        .rows_per_sum = rows.rows_per_sum});
}

void Divergences::Gradients(const TokenRows& rows, kernels::ConstValues teacher, float scale) {
  tools_.ops.DistillationBackward({.student = rows.logits,
                                   .teacher = teacher,
                                   .lse = rows.lse,
                                   .targets = rows.targets,
                                   .student_lse = student_lse_,
                                   .teacher_lse = teacher_lse_,
                                   .divergence = divergence_,
                                   .rows = rows.rows,
                                   .valid = rows.valid,
                                   .stride = rows.stride,
                                   .vocabulary_begin = rows.vocabulary_begin,
                                   .scale = scale,
                                   .weight = weight_,
                                   .temperature = temperature_,
                                   .reverse = reverse_,
                                   .softcap = rows.softcap});
}

}  // namespace tercio::blocks
