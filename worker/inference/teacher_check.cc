#include "worker/inference/teacher_check.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "checkpoint/weight_source.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "tokenizer/tokenizer.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {
namespace {

using tokenizer::Tokenizer;

std::string TextOf(const Tokenizer& tokenizer, int32_t id) {
  const absl::StatusOr<std::string> text = tokenizer.Decode({&id, 1});
  return text.ok() ? absl::StrCat("'", ForDisplay(*text), "'") : "no token";
}

// How two tokenizers differ, for people; empty: an id means the same to both. What they do to a
// text, and their files, may differ.
std::string DifferenceOf(const Tokenizer& data, const Tokenizer& teacher) {
  if (data == teacher) return "";
  if (data.vocab_size() != teacher.vocab_size()) {
    return absl::StrCat("it has ", teacher.vocab_size(), " tokens, and the data's tokenizer has ",
                        data.vocab_size());
  }
  for (int32_t id = 0; id < data.vocab_size(); ++id) {
    const std::string here = TextOf(data, id);
    const std::string there = TextOf(teacher, id);
    if (here == there) continue;
    return absl::StrCat("its token ", id, " is ", there, ", and that of the data's tokenizer is ",
                        here);
  }
  return "";
}

}  // namespace

absl::Status CheckTeacher(const v1::DistillationSpec& spec, const std::string& tokenizer_json,
                          int32_t data_vocabulary) {
  const std::string where = absl::StrCat("training.distillation.teacher ", spec.teacher(), ": ");
  const auto opened = OpenModel(spec.teacher(), std::nullopt);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat(where, std::string(opened.status().message())));
  }
  if (const absl::Status same = checkpoint::CheckStartsFrom(spec.model(), opened->spec());
      !same.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, std::string(same.message()), "; submit the job again"));
  }
  if (data_vocabulary > spec.model().vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, "the data has ", data_vocabulary, " token ids, but the teacher has another ",
        "vocabulary, of ", spec.model().vocab_size(), "; use its tokenizer"));
  }
  if (tokenizer_json.empty() || !opened->tokenizer.has_value()) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const Tokenizer data, Tokenizer::FromJson(tokenizer_json));
  const std::string difference = DifferenceOf(data, *opened->tokenizer);
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, "it has another vocabulary: ", difference,
                                                 "; name its tokenizer as data.tokenizer"));
}

}  // namespace tercio::inference
