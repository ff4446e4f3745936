#include "cli/commands/checkpoint_path.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

absl::Status NoSuchStep(const std::string& directory, int64_t step) {
  return absl::NotFoundError(absl::StrCat(directory, " holds no checkpoint of step ", step));
}

}  // namespace

absl::StatusOr<std::string> FindCheckpoint(const std::string& given, int64_t step) {
  // A manifest makes a directory a checkpoint, whatever its name is.
  if (PathExists(given + "/manifest.json")) {
    if (step == 0) return given;
    TERCIO_ASSIGN_OR_RETURN(const auto reader,
                            checkpoint::Reader::Open(given, checkpoint::DigestCheck::kNone));
    if (reader->manifest().step != step) return NoSuchStep(given, step);
    return given;
  }
  // Directories of Hugging Face and Megatron-LM are known by other names in them.
  if (checkpoint::FormatOfModel(given).ok()) return given;
  std::string newest;
  int64_t highest = -1;  // names have eight digits, or more
  for (const std::string& name : ListDirectory(given)) {
    int64_t number = 0;
    // Other names are remains of saves, or files of people.
    if (!absl::StartsWith(name, "step-") || !absl::SimpleAtoi(name.substr(5), &number)) continue;
    // Names are compared as numbers, since longer ones would sort wrongly.
    if (number <= highest || (step > 0 && number != step)) continue;
    highest = number;
    newest = name;
  }
  if (!newest.empty()) return absl::StrCat(given, "/", newest);
  if (step > 0) return NoSuchStep(given, step);
  return absl::NotFoundError(
      absl::StrCat(given, PathExists(given) ? " holds no checkpoint" : " does not exist"));
}

absl::StatusOr<int64_t> ParseSize(const std::string& text) {
  // Longer units come first, as each of them ends with B.
  constexpr struct {
    const char* name;
    double bytes;
  } kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},
                {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"B", 1},        {"", 1}};
  for (const auto& unit : kUnits) {
    if (!absl::EndsWith(text, unit.name)) continue;
    double number = 0;
    const std::string digits = text.substr(0, text.size() - std::string(unit.name).size());
    const bool good = absl::SimpleAtod(digits, &number) && std::isfinite(number);
    const double bytes = number * unit.bytes;
    // The bound keeps the number within 64 bits.
    if (good && bytes >= 1 && bytes < 1e18) return static_cast<int64_t>(bytes);
    break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a size; give a number with a unit, such as 5GB or 500MiB"));
}

}  // namespace tercio::cli
