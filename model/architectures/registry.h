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
// Zhang et al. 2022: GPT-2 with ReLU, and a table of positions that begins at its third row.
Architecture DescribeOpt(const v1::ModelSpec& model);
// Wang and Komatsuzaki 2021: parallel branches behind one norm, interleaved rotary positions.
Architecture DescribeGptJ(const v1::ModelSpec& model);
// Black et al. 2022: parallel branches with a norm each, or one after the other.
Architecture DescribeGptNeox(const v1::ModelSpec& model);
// Li et al. 2023 (Phi-1.5), Javaheripi and Bubeck 2023 (Phi-2): parallel branches behind one norm.
Architecture DescribePhi(const v1::ModelSpec& model);
// Abdin et al. 2024.
Architecture DescribePhi3(const v1::ModelSpec& model);
// Yang et al. 2024: biases of query, key and value.
Architecture DescribeQwen2(const v1::ModelSpec& model);
// Yang et al. 2025: norms of each head's query and key.
Architecture DescribeQwen3(const v1::ModelSpec& model);
// Jiang et al. 2023: a sliding window.
Architecture DescribeMistral(const v1::ModelSpec& model);
// Gemma Team 2024: norms before and after each branch, soft caps, windows in every other layer.
Architecture DescribeGemma2(const v1::ModelSpec& model);

}  // namespace tercio::model
