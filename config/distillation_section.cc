#include "config/distillation_section.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/model_description.h"
#include "config/stored_logits_keys.h"
#include "config/yaml_text.h"
#include "nlohmann/json.hpp"
#include "plan/distillation.h"
#include "plan/names.h"

namespace tercio::config {
namespace {

constexpr double kLeastTemperature = 1e-3;
constexpr double kMostTemperature = 1e3;
constexpr double kLeastWeight = 1e-6;

void ParseTeacher(Section& section, const std::string& directory, v1::DistillationSpec* out) {
  out->set_teacher(ResolvePath(section.Text("teacher", ""), directory));
  // Only the description is read here; weights stay with the trainers.
  const absl::StatusOr<v1::ModelSpec> model = checkpoint::DescribeModel(out->teacher());
  if (!model.ok()) return section.Fault("teacher", std::string(model.status().message()));
  *out->mutable_model() = *model;
  const YAML::Node layers = section.Get("stage_layers");
  if (!layers.IsDefined()) return;
  if (!layers.IsSequence()) {
    return section.Fault("stage_layers", "expected a list: the teacher's layers of each stage");
  }
  for (const YAML::Node& node : layers) {
    int32_t count = 0;
    if (!node.IsScalar() || !YAML::convert<int32_t>::decode(node, count) || count < 1) {
      return section.Fault("stage_layers", "expected numbers of layers, each at least 1");
    }
    out->add_stage_layers(count);
  }
}

}  // namespace

void ParseDistillation(Section& training, const std::string& directory, v1::JobSpec* job) {
  v1::TrainingSpec& spec = *job->mutable_training();
  if (!plan::LearnsFromTeacher(spec)) {
    if (training.Has("distillation")) {
      training.Fault("distillation",
                     "only training.objective: distill learns from a teacher; leave it out");
    }
    return;
  }
  v1::DistillationSpec* out = spec.mutable_distillation();
  Section section = training.Child("distillation");
  if (section.Has("teacher") == section.Has("logits")) {
    return section.Fault(section.Has("teacher") ? "logits" : "teacher",
                         section.Has("teacher")
                             ? "conflicts with teacher; leave one of the two out"
                             : "missing; name the directory of a model, or logits that one has "
                               "left (`tercio evaluate --write-logits`)");
  }
  if (section.Has("teacher")) ParseTeacher(section, directory, out);
  ParseStoredLogits(section, directory, out);
  out->set_temperature(section.Number("temperature", 1, kLeastTemperature, kMostTemperature));
  out->set_weight(section.Number("weight", 0.5, kLeastWeight, 1));
  out->set_direction(section.OneOf("direction", v1::DISTILLATION_DIRECTION_FORWARD));
  section.Finish();
  // A teacher that could not be read is a fault already, and a model without sizes has others.
  if (out->logits().empty() && out->model().hidden() == 0) return;
  if (job->model().hidden() <= 0 || job->model().heads() <= 0) return;
  if (const absl::Status status = plan::CheckDistillation(*job); !status.ok()) {
    training.Fault("distillation", std::string(status.message()));
  }
}

std::string DistillationYaml(const v1::TrainingSpec& training) {
  if (!plan::LearnsFromTeacher(training)) return "";
  const v1::DistillationSpec& spec = training.distillation();
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  const std::string source = spec.teacher().empty()
                                 ? StoredLogitsYaml(spec)
                                 : absl::StrCat("teacher: ", quoted(spec.teacher()));
  const std::string layers =
      spec.stage_layers().empty()
          ? ""
          : absl::StrCat(", stage_layers: [", absl::StrJoin(spec.stage_layers(), ", "), "]");
  return absl::StrCat("\n  distillation: {", source, ", temperature: ", Number(spec.temperature()),
                      ", weight: ", Number(spec.weight()),
                      ", direction: ", plan::TextOf(spec.direction()), layers, "}");
}

}  // namespace tercio::config
