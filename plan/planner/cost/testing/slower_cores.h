// Figures of a machine like another one whose cores take longer. Pure.
#pragma once

#include "proto/tercio/v1/figures.pb.h"

namespace tercio::plan::cost {

// `figures` of cores that take `times` as long for everything; links are as fast as before.
inline v1::MachineFigures SlowerCores(v1::MachineFigures figures, double times) {
  for (v1::ProductRate& rate : *figures.mutable_products()) {
    rate.set_flops_per_second(rate.flops_per_second() / times);
  }
  for (v1::AttentionRate& rate : *figures.mutable_attention()) {
    rate.set_forward_flops_per_second(rate.forward_flops_per_second() / times);
    rate.set_backward_flops_per_second(rate.backward_flops_per_second() / times);
  }
  figures.set_memory_bytes_per_second(figures.memory_bytes_per_second() / times);
  figures.set_norm_bytes_per_second(figures.norm_bytes_per_second() / times);
  figures.set_activation_bytes_per_second(figures.activation_bytes_per_second() / times);
  figures.set_loss_bytes_per_second(figures.loss_bytes_per_second() / times);
  figures.set_update_bytes_per_second(figures.update_bytes_per_second() / times);
  figures.set_operation_seconds(figures.operation_seconds() * times);
  figures.set_step_seconds(figures.step_seconds() * times);
  figures.set_reference_step_seconds(figures.reference_step_seconds() * times);
  return figures;
}

}  // namespace tercio::plan::cost
