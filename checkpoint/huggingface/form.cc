#include "checkpoint/huggingface/form.h"

#include "common/check.h"

namespace tercio::checkpoint {

// A form is a file of forms/, and a line here and in the list below.
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
const HuggingFaceForm& T5Form();

absl::Span<const HuggingFaceForm* const> HuggingFaceForms() {
  static const HuggingFaceForm* const forms[] = {
      &Gpt2Form(),    &LlamaForm(),  &BertForm(), &OptForm(),   &GptJForm(),
      &GptNeoxForm(), &PhiForm(),    &Phi3Form(), &Qwen2Form(), &Qwen3Form(),
      &MistralForm(), &Gemma2Form(), &T5Form()};
  return forms;
}

const HuggingFaceForm* FindForm(v1::Architecture architecture) {
  for (const HuggingFaceForm* form : HuggingFaceForms()) {
    if (form->architecture == architecture) return form;
  }
  return nullptr;
}

const HuggingFaceForm* FindForm(std::string_view model_type) {
  for (const HuggingFaceForm* form : HuggingFaceForms()) {
    for (const std::string_view known : form->model_types) {
      if (known == model_type) return form;
    }
  }
  return nullptr;
}

const HuggingFaceForm& FormOf(const v1::ModelSpec& model) {
  const HuggingFaceForm* const form = FindForm(model.architecture());
  TERCIO_CHECK(form != nullptr);
  return *form;
}

}  // namespace tercio::checkpoint
