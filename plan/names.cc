#include "plan/names.h"

#include "google/protobuf/descriptor.h"

namespace tercio::plan {
namespace {

constexpr Word kOnNan[] = {
    {v1::ON_NAN_STOP, "stop"},
    {v1::ON_NAN_SKIP, "skip"},
};
constexpr Word kStragglerPolicies[] = {
    {v1::STRAGGLER_POLICY_REPORT, "report"},
    {v1::STRAGGLER_POLICY_EXCLUDE, "exclude"},
};
constexpr Word kOnSpike[] = {
    {v1::ON_SPIKE_OFF, "off"},
    {v1::ON_SPIKE_REPORT, "report"},
    {v1::ON_SPIKE_SKIP, "skip"},
    {v1::ON_SPIKE_ROLLBACK, "rollback"},
};

struct Set {
  const google::protobuf::EnumDescriptor* (*descriptor)();
  std::span<const Word> words;
};

constexpr Set kSets[] = {
    {v1::OnNan_descriptor, kOnNan},
    {v1::StragglerPolicy_descriptor, kStragglerPolicies},
    {v1::OnSpike_descriptor, kOnSpike},
};

}  // namespace

template <>
std::span<const Word> WordsOf<v1::OnNan>() {
  return kOnNan;
}
template <>
std::span<const Word> WordsOf<v1::StragglerPolicy>() {
  return kStragglerPolicies;
}
template <>
std::span<const Word> WordsOf<v1::OnSpike>() {
  return kOnSpike;
}

std::span<const Word> WordsOfEnum(std::string_view full_name) {
  for (const Set& set : kSets) {
    if (set.descriptor()->full_name() == full_name) return set.words;
  }
  return {};
}

}  // namespace tercio::plan
