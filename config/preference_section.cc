#include "config/preference_section.h"

#include "absl/strings/str_cat.h"
#include "config/yaml_text.h"
#include "plan/names.h"
#include "plan/preference.h"

namespace tercio::config {
namespace {

constexpr double kLeastBeta = 1e-6;
constexpr double kMostBeta = 1e6;
constexpr double kMostWeight = 1e6;
// With 0.5 no answer of a pair would be better than the other.
constexpr double kMostSwapped = 0.499;

// A key that has no effect would promise something else than what happens.
void RefuseOthers(Section& preference, const v1::TrainingSpec& training) {
  const bool dpo = training.objective() == v1::TRAINING_OBJECTIVE_DPO;
  const auto refuse = [&](const char* key, const char* objective) {
    if (!preference.Has(key)) return;
    preference.Fault(key,
                     absl::StrCat("only training.objective: ", objective, " has it; leave it out"));
  };
  if (!dpo) {
    refuse("loss", "dpo");
    refuse("label_smoothing", "dpo");
  }
  if (plan::HasDivergence(training)) return;
  refuse("desirable_weight", "kto");
  refuse("undesirable_weight", "kto");
}

void CheckPairs(Section& training, const v1::TrainingSpec& spec) {
  const int64_t together = plan::SequencesTogether(spec);
  const auto check = [&](const char* key, int64_t sequences) {
    if (sequences % together == 0) return;
    training.Fault(key, absl::StrCat(sequences, " is odd, and would cut a pair: it counts ",
                                     "sequences, two for each pair of answers"));
  };
  check("global_batch", spec.global_batch());
  check("micro_batch", spec.micro_batch());
  if (spec.lanes() < 1 || spec.global_batch() % together != 0) return;
  if (spec.global_batch() / spec.lanes() % together == 0) return;
  training.Fault("lanes",
                 absl::StrCat(spec.lanes(), " lanes of global_batch ", spec.global_batch(),
                              " would cut a pair of answers; use at most ", spec.lanes() / 2));
}

}  // namespace

void ParsePreference(Section& training, v1::TrainingSpec* out) {
  if (!plan::LearnsPreferences(*out)) {
    if (training.Has("preference")) {
      training.Fault("preference",
                     "only training.objective: dpo, orpo and kto learn preferences; leave it out");
    }
    return;
  }
  Section preference = training.Child("preference");
  RefuseOthers(preference, *out);
  v1::PreferenceSpec* spec = out->mutable_preference();
  spec->set_beta(preference.Number("beta", 0.1, kLeastBeta, kMostBeta));
  if (out->objective() == v1::TRAINING_OBJECTIVE_DPO) {
    spec->set_loss(preference.OneOf("loss", v1::PREFERENCE_LOSS_SIGMOID));
    spec->set_label_smoothing(preference.Number("label_smoothing", 0, 0, kMostSwapped));
    if (spec->label_smoothing() > 0 && spec->loss() != v1::PREFERENCE_LOSS_SIGMOID) {
      preference.Fault("label_smoothing", "only loss: sigmoid has it; leave it out");
    }
  }
  if (plan::HasDivergence(*out)) {
    spec->set_desirable_weight(preference.Number("desirable_weight", 1, 0, kMostWeight));
    spec->set_undesirable_weight(preference.Number("undesirable_weight", 1, 0, kMostWeight));
  }
  preference.Finish();
  if (out->label_smoothing() > 0) {
    training.Fault("label_smoothing",
                   absl::StrCat("changes probabilities of tokens, which objective ",
                                plan::TextOf(out->objective()), " compares; leave it out",
                                out->objective() == v1::TRAINING_OBJECTIVE_DPO
                                    ? ", or use training.preference.label_smoothing"
                                    : ""));
  }
  CheckPairs(training, *out);
}

std::string PreferenceYaml(const v1::TrainingSpec& training) {
  if (!plan::LearnsPreferences(training)) return "";
  const v1::PreferenceSpec& spec = training.preference();
  std::string yaml = absl::StrCat("\n  preference: {beta: ", Number(spec.beta()));
  if (training.objective() == v1::TRAINING_OBJECTIVE_DPO) {
    absl::StrAppend(&yaml, ", loss: ", plan::TextOf(spec.loss()),
                    ", label_smoothing: ", Number(spec.label_smoothing()));
  }
  if (plan::HasDivergence(training)) {
    absl::StrAppend(&yaml, ", desirable_weight: ", Number(spec.desirable_weight()),
                    ", undesirable_weight: ", Number(spec.undesirable_weight()));
  }
  return yaml + "}";
}

}  // namespace tercio::config
