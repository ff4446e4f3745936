#include "config/flat_job.h"

#include "absl/strings/str_cat.h"
#include "config/job_file.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

void Flatten(const YAML::Node& node, const std::string& path,
             std::vector<std::pair<std::string, std::string>>* out) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      Flatten(entry.second, path.empty() ? key : absl::StrCat(path, ".", key), out);
    }
    return;
  }
  // Scalars keep their text: 1e-3 and 0.001 are written alike by EffectiveYaml already.
  if (node.IsScalar()) {
    out->emplace_back(path, node.Scalar());
    return;
  }
  // Lists are one value: their elements have no names to compare.
  YAML::Emitter emitter;
  emitter << YAML::Flow << node;
  out->emplace_back(path, emitter.c_str());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> FlatJob(const v1::JobSpec& spec) {
  std::vector<std::pair<std::string, std::string>> out;
  // The complete file makes defaults visible that differ between versions.
  Flatten(YAML::Load(EffectiveYaml(spec)), "", &out);
  return out;
}

}  // namespace tercio::config
