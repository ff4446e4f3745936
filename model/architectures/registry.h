// The architectures that this version knows: each describes itself in a file of this folder, and
// nothing else asks for an architecture by name. Pure.
#pragma once

#include "model/architecture.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::model {

struct ArchitectureForm {
  v1::Architecture architecture;
  Architecture (*describe)(const v1::ModelSpec& model);
};

// An unset architecture means gpt2. REQUIRES: one of these.
const ArchitectureForm& FormOf(v1::Architecture architecture);

// Radford et al. 2019: pre-norm, learned positions, GELU.
Architecture DescribeGpt2(const v1::ModelSpec& model);
// Touvron et al. 2023 (RMSNorm, rotary positions, SwiGLU), with the grouped-query attention of
// Ainslie et al. 2023.
Architecture DescribeLlama(const v1::ModelSpec& model);
// Devlin et al. 2019, or with the norms where Megatron-LM has them (Shoeybi et al. 2019, section
// 5.3); sentence order: Lan et al. 2020.
Architecture DescribeBert(const v1::ModelSpec& model);

}  // namespace tercio::model
