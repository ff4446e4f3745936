// The forms of all architectures, each in the file of its name. checkpoint/huggingface/form.h finds
// them by architecture and by model_type.
#pragma once

#include "checkpoint/huggingface/form.h"

namespace tercio::checkpoint {

const HuggingFaceForm& Gpt2Form();
const HuggingFaceForm& LlamaForm();
const HuggingFaceForm& BertForm();  // bert and megatron-bert
const HuggingFaceForm& OptForm();
const HuggingFaceForm& GptJForm();
const HuggingFaceForm& GptNeoxForm();
const HuggingFaceForm& PhiForm();
const HuggingFaceForm& Phi3Form();
const HuggingFaceForm& Qwen2Form();
const HuggingFaceForm& Qwen3Form();
const HuggingFaceForm& MistralForm();
const HuggingFaceForm& Gemma2Form();

}  // namespace tercio::checkpoint
