// The words of a job's closed sets, as job files and JSON have them. Each stands in one table of
// names.cc and nowhere else: readers turn text into enumerators and writers turn them back
// (config/, cli/format.h, plan/text_form.h), and everything between compares enumerators.
//
// Habit: a switch over one of these enums has no `default:`, so that the compiler finds a case that
// was forgotten. It therefore lists protobuf's two sentinels (..._INT_MIN_SENTINEL_DO_NOT_USE_ and
// ..._INT_MAX_SENTINEL_DO_NOT_USE_) beside ..._UNSPECIFIED, and a return after it handles numbers
// of later versions, which proto3 passes on.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

struct Word {
  int value;
  std::string_view text;
};

// The words of a set, in the order in which messages list them. ..._UNSPECIFIED has none.
template <typename E>
std::span<const Word> WordsOf();
template <>
std::span<const Word> WordsOf<v1::Architecture>();
template <>
std::span<const Word> WordsOf<v1::Activation>();
template <>
std::span<const Word> WordsOf<v1::NormPlacement>();
template <>
std::span<const Word> WordsOf<v1::AdapterKind>();
template <>
std::span<const Word> WordsOf<v1::OptimizerKind>();
template <>
std::span<const Word> WordsOf<v1::LearningRateSchedule>();
template <>
std::span<const Word> WordsOf<v1::Precision>();
template <>
std::span<const Word> WordsOf<v1::Reproducibility>();
template <>
std::span<const Word> WordsOf<v1::BlockFormat>();
template <>
std::span<const Word> WordsOf<v1::BaseFormat>();
template <>
std::span<const Word> WordsOf<v1::PipelineSchedule>();
template <>
std::span<const Word> WordsOf<v1::Recompute>();
template <>
std::span<const Word> WordsOf<v1::DeviceKind>();
template <>
std::span<const Word> WordsOf<v1::Collectives>();
template <>
std::span<const Word> WordsOf<v1::OnNan>();
template <>
std::span<const Word> WordsOf<v1::StragglerPolicy>();
template <>
std::span<const Word> WordsOf<v1::OnSpike>();
template <>
std::span<const Word> WordsOf<v1::SnapshotKind>();
template <>
std::span<const Word> WordsOf<v1::OffloadTier>();
template <>
std::span<const Word> WordsOf<v1::QualityMetric>();
template <>
std::span<const Word> WordsOf<v1::TrainingObjective>();
template <>
std::span<const Word> WordsOf<v1::LossOn>();
template <>
std::span<const Word> WordsOf<v1::ChatFormat>();
template <>
std::span<const Word> WordsOf<v1::PreferenceLoss>();
template <>
std::span<const Word> WordsOf<v1::DistillationDirection>();
template <>
std::span<const Word> WordsOf<v1::AnswerForm>();

// The same by the full name of the enum ("tercio.v1.OnNan"); empty if it has no words.
std::span<const Word> WordsOfEnum(std::string_view full_name);

// Empty for ..._UNSPECIFIED and for numbers of later versions.
template <typename E>
std::string_view NameOf(E value) {
  for (const Word& word : WordsOf<E>()) {
    if (word.value == static_cast<int>(value)) return word.text;
  }
  return "";
}

// The same as a string.
template <typename E>
std::string TextOf(E value) {
  return std::string(NameOf(value));
}

template <typename E>
std::optional<E> Named(std::string_view text) {
  for (const Word& word : WordsOf<E>()) {
    if (word.text == text) return static_cast<E>(word.value);
  }
  return std::nullopt;
}

template <typename E>
std::vector<std::string> NamesOf() {
  std::vector<std::string> names;
  for (const Word& word : WordsOf<E>()) names.emplace_back(word.text);
  return names;
}

// Whether this version knows the value; ..._UNSPECIFIED is none.
template <typename E>
bool IsNamed(E value) {
  return !NameOf(value).empty();
}

}  // namespace tercio::plan
