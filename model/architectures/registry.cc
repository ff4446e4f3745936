#include "model/architectures/registry.h"

#include "common/check.h"

namespace tercio::model {
namespace {

constexpr ArchitectureForm kForms[] = {
    {v1::ARCHITECTURE_GPT2, DescribeGpt2},       {v1::ARCHITECTURE_LLAMA, DescribeLlama},
    {v1::ARCHITECTURE_BERT, DescribeBert},       {v1::ARCHITECTURE_OPT, DescribeOpt},
    {v1::ARCHITECTURE_GPT_J, DescribeGptJ},      {v1::ARCHITECTURE_GPT_NEOX, DescribeGptNeox},
    {v1::ARCHITECTURE_PHI, DescribePhi},         {v1::ARCHITECTURE_PHI3, DescribePhi3},
    {v1::ARCHITECTURE_QWEN2, DescribeQwen2},     {v1::ARCHITECTURE_QWEN3, DescribeQwen3},
    {v1::ARCHITECTURE_MISTRAL, DescribeMistral}, {v1::ARCHITECTURE_GEMMA2, DescribeGemma2},
};

}  // namespace

const ArchitectureForm& FormOf(v1::Architecture architecture) {
  if (architecture == v1::ARCHITECTURE_UNSPECIFIED) return kForms[0];
  const ArchitectureForm* found = nullptr;
  for (const ArchitectureForm& form : kForms) {
    if (form.architecture == architecture) found = &form;
  }
  // Job files and directories with another architecture are refused where they are read.
  TERCIO_CHECK(found != nullptr);
  return *found;
}

}  // namespace tercio::model
