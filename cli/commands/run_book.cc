#include "cli/commands/run_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "nlohmann/json.hpp"

namespace tercio::cli {
namespace {

using BookJson = nlohmann::ordered_json;

constexpr char kRunsFormat[] = "tercio-runs-1";

bool IsRun(const BookJson& run) {
  for (const char* key : {"digest", "job", "variant"}) {
    if (!run.is_object() || !run.contains(key) || !run[key].is_string()) return false;
  }
  return true;
}

bool IsBook(const BookJson& json) {
  return json.is_object() && json.contains("format") && json["format"] == kRunsFormat &&
         json.contains("runs") && json["runs"].is_array() &&
         std::all_of(json["runs"].begin(), json["runs"].end(), IsRun);
}

}  // namespace

std::string DigestOfJob(const v1::JobSpec& spec) {
  v1::JobSpec nameless = spec;
  nameless.clear_name();
  return Sha256Hex(config::EffectiveYaml(nameless));
}

absl::StatusOr<RunBook> RunBook::Open(const std::string& path) {
  RunBook book(path);
  if (!PathExists(path)) return book;
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const BookJson json = BookJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!IsBook(json)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": not a list of runs of `tercio compare`; remove it to run all variants again, or "
        "give another --output"));
  }
  for (const BookJson& run : json["runs"]) {
    book.runs_.push_back({run["digest"].get<std::string>(), run["job"].get<std::string>(),
                          run["variant"].get<std::string>()});
  }
  return book;
}

absl::Status RunBook::Record(RecordedRun run, const std::string& instead_of) {
  const auto place = std::find_if(runs_.begin(), runs_.end(), [&](const RecordedRun& recorded) {
    return !instead_of.empty() && recorded.job == instead_of;
  });
  if (place == runs_.end()) {
    runs_.push_back(std::move(run));
  } else {
    *place = std::move(run);
  }
  BookJson json = {{"format", kRunsFormat}, {"runs", BookJson::array()}};
  for (const RecordedRun& recorded : runs_) {
    json["runs"].push_back(
        {{"variant", recorded.variant}, {"job", recorded.job}, {"digest", recorded.digest}});
  }
  return AsConflict(WriteFileDurably(path_, json.dump(2) + "\n"));
}

std::vector<PlannedRun> PlanRuns(const std::vector<std::string>& digests, int repeat,
                                 const std::vector<RecordedRun>& recorded) {
  std::vector<bool> taken(recorded.size(), false);
  std::vector<PlannedRun> planned;
  for (int repetition = 0; repetition < repeat; ++repetition) {
    for (size_t variant = 0; variant < digests.size(); ++variant) {
      PlannedRun run{variant, repetition, digests[variant], ""};
      for (size_t i = 0; i < recorded.size() && run.job.empty(); ++i) {
        if (taken[i] || recorded[i].digest != run.digest) continue;
        taken[i] = true;
        run.job = recorded[i].job;
      }
      planned.push_back(std::move(run));
    }
  }
  return planned;
}

}  // namespace tercio::cli
