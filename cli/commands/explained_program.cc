#include "cli/commands/explained_program.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/program.h"
#include "plan/schedule.h"

namespace tercio::cli {
namespace {

std::vector<std::string> StepsOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  const plan::ProgramShape shape = plan::ShapeOfProgram(job, layout, stage);
  std::vector<std::string> texts;
  for (const plan::ProgramStep& step :
       plan::TrainingProgram(shape, plan::StageActions(plan::ShapeOfSchedule(layout), stage))) {
    texts.push_back(plan::TextOf(shape, step));
  }
  return texts;
}

}  // namespace

std::string ProgramText(const v1::JobSpec& job, const v1::Layout& layout) {
  std::string text;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    absl::StrAppend(&text, "stage ", stage, "\n");
    for (const std::string& step : StepsOfStage(job, layout, stage)) {
      absl::StrAppend(&text, "  ", step, "\n");
    }
  }
  return text;
}

nlohmann::ordered_json ProgramJson(const v1::JobSpec& job, const v1::Layout& layout) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    stages.push_back(StepsOfStage(job, layout, stage));
  }
  const nlohmann::ordered_json degrees = {
      {"tensor", layout.tensor()}, {"pipeline", layout.pipeline()}, {"data", layout.data()}};
  return {{"layout", degrees}, {"stages", stages}};
}

}  // namespace tercio::cli
