#include "cli/commands/kept_figures.h"

#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/planner/cost/measured.h"
#include "plan/text_form.h"

namespace tercio::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHowToMeasure[] = "to replace it, run `tercio doctor --measure`";

struct Contents {
  MachineIdentity machine;
  std::string measured;  // date
  v1::MachineFigures figures;
};

std::string TextOf(const MachineIdentity& machine) {
  return absl::StrCat(machine.count, " x ", machine.model);
}

absl::StatusOr<Contents> Parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto has = [&json](const char* key, Json::value_t type) {
    return json.contains(key) && json[key].type() == type;
  };
  if (!json.is_object() || !has("machine", Json::value_t::string) ||
      !has("count", Json::value_t::number_unsigned) || !has("measured", Json::value_t::string) ||
      !has("figures", Json::value_t::object)) {
    return absl::InvalidArgumentError("it has no machine, count, measured and figures");
  }
  Contents contents;
  contents.machine = {json["machine"].get<std::string>(), json["count"].get<int>()};
  contents.measured = json["measured"].get<std::string>();
  TERCIO_RETURN_IF_ERROR(plan::FromJson(json["figures"].dump(), &contents.figures));
  TERCIO_RETURN_IF_ERROR(plan::cost::CheckFigures(contents.figures));
  return contents;
}

}  // namespace

MachineIdentity IdentityOfCpus() { return {ProcessorName(), MachineCores()}; }

MachineIdentity IdentityOfGpus(const Gpus& gpus) {
  MachineIdentity machine;
  machine.count = static_cast<int>(gpus.list.size());
  for (const Gpu& gpu : gpus.list) {
    // A GPU that is lost has no name.
    if (machine.model.empty()) machine.model = gpu.model;
  }
  return machine;
}

std::string FiguresPath(const std::string& directory, FiguresOf of) {
  return absl::StrCat(directory,
                      of == FiguresOf::kCpus ? "/cpu-figures.json" : "/gpu-figures.json");
}

absl::Status KeepFigures(const std::string& path, const MachineIdentity& machine, absl::Time now,
                         const v1::MachineFigures& figures) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  TERCIO_ASSIGN_OR_RETURN(const std::string text, plan::ToJson(figures, options));
  const Json json = {{"machine", machine.model},
                     {"count", machine.count},
                     {"measured", absl::FormatTime("%Y-%m-%d", now, absl::UTCTimeZone())},
                     {"figures", Json::parse(text, nullptr, /*allow_exceptions=*/false)}};
  TERCIO_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path().string()));
  return WriteFileDurably(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

KeptFigures FindFigures(const std::string& path, const MachineIdentity& machine) {
  KeptFigures kept;
  if (!PathExists(path)) return kept;
  absl::StatusOr<std::string> text = ReadFile(path);
  absl::StatusOr<Contents> contents =
      text.ok() ? Parse(*text) : absl::StatusOr<Contents>(text.status());
  if (!contents.ok()) {
    kept.notice = absl::StrCat(path, " is not used, and speeds are assumed: ",
                               std::string(contents.status().message()), "; ", kHowToMeasure);
  } else if (contents->machine != machine) {
    kept.notice = absl::StrCat(path, " is not used, and speeds are assumed: it was measured on ",
                               TextOf(contents->machine), ", this machine has ", TextOf(machine),
                               "; ", kHowToMeasure);
  } else {
    kept.figures = contents->figures;
    kept.notice = absl::StrCat("predictions use what was measured on this machine on ",
                               contents->measured, " (", path, ")");
  }
  return kept;
}

}  // namespace tercio::cli
