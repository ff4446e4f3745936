#include "config/experiment_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "config/flat_job.h"
#include "config/job_changes.h"
#include "config/job_file.h"
#include "config/reader.h"
#include "config/yaml_text.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

// Names are heads of columns and entries of legends.
constexpr size_t kMostMethodNameBytes = 48;
constexpr size_t kMostMethods = 64;
// A job file has three levels. The bounds also end what an alias of YAML makes endless.
constexpr int kMostLevels = 8;
constexpr int kMostKeys = 1000;
// Beyond the costs of any device, and far below what a sum of them can hold.
constexpr double kMostCost = 1e9;

// A variant as the file has it.
struct RawVariant {
  std::string name;
  std::vector<JobChange> changes;
};

struct RawExperiment {
  Experiment experiment;  // without variants
  std::string job_file;
  std::vector<RawVariant> variants;
};

// The leaves of a nested map, as changes. `place` names a line of the experiment file.
class ChangeReader {
 public:
  ChangeReader(std::string file, Section* variant, std::vector<JobChange>* out)
      : file_(std::move(file)), variant_(*variant), out_(*out) {}

  void Read(const YAML::Node& map, std::vector<std::string> path) {
    if (path.size() >= kMostLevels) return Complain("nested too deeply for a job file");
    std::set<std::string> seen;
    for (const auto& entry : map) {
      if (complained_) return;
      if (++visited_ > kMostKeys) return Complain("too many keys for a job file");
      if (!entry.first.IsScalar()) return Complain("a key that is no word");
      if (!seen.insert(entry.first.Scalar()).second) {
        return Complain(absl::StrCat("'", entry.first.Scalar(), "' is given twice; keep one"));
      }
      path.push_back(entry.first.Scalar());
      if (entry.second.IsMap()) {
        Read(entry.second, path);
      } else {
        out_.push_back({path, entry.second, absl::StrCat(file_, ":", entry.first.Mark().line + 1)});
      }
      path.pop_back();
    }
  }

 private:
  // The first fault ends the reading: an endless map has endlessly many.
  void Complain(const std::string& what) {
    if (!complained_) variant_.Fault("set", what);
    complained_ = true;
  }

  const std::string file_;
  Section& variant_;
  std::vector<JobChange>& out_;
  int visited_ = 0;
  bool complained_ = false;
};

class ExperimentParser {
 public:
  ExperimentParser(const YAML::Node& root, std::string file, std::string directory, Faults* faults)
      : file_(std::move(file)),
        directory_(std::move(directory)),
        faults_(*faults),
        root_(root, "", faults) {}

  RawExperiment Parse() {
    out_.experiment.name = root_.Text("name", "experiment");
    if (const std::string fault = FaultOfName(out_.experiment.name); !fault.empty()) {
      root_.Fault("name", fault);
    }
    if (!root_.Has("job"))
      root_.Fault("job", "missing; name the job file that the variants change");
    out_.job_file = Resolved(root_.Text("job", ""));
    ForEach("variants", [this](Section variant) { ParseVariant(std::move(variant)); });
    if (out_.variants.empty()) {
      root_.Fault("variants", "missing; list at least one, such as {name: one device}");
    }
    ForEach("baselines", [this](Section baseline) { ParseBaseline(std::move(baseline)); });
    if (root_.Has("cost")) out_.experiment.cost = ParseDeviceCost(root_.Child("cost"));
    root_.Finish();
    return std::move(out_);
  }

 private:
  template <typename Take>
  void ForEach(const std::string& key, const Take& take) {
    const YAML::Node list = root_.Get(key);
    if (!list.IsDefined()) return;
    if (!list.IsSequence()) return root_.Fault(key, "expected a list");
    if (list.size() > kMostMethods) {
      return root_.Fault(key, absl::StrCat("expected at most ", kMostMethods));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const int line = list[i].Mark().line + 1;
      const std::string path = absl::StrCat(key, "[", i, "]");
      // A null would read as an empty map, whose faults have no line.
      if (!list[i].IsMap()) {
        faults_.Add(line, path, "expected a map of keys");
        continue;
      }
      take(Section(list[i], path, &faults_, line));
    }
  }

  // The names of all methods stand beside each other, so that no two may be equal.
  std::string ParseName(Section& section) {
    const std::string name = section.Text("name", "");
    if (name.empty()) {
      section.Fault("name", "missing; it heads the column of its results");
    } else if (name.size() > kMostMethodNameBytes) {
      section.Fault("name", absl::StrCat("has ", name.size(), " bytes; expected at most ",
                                         kMostMethodNameBytes));
    } else if (const std::string fault = FaultOfName(name); !fault.empty()) {
      section.Fault("name", fault);
    } else if (!names_.insert(name).second) {
      section.Fault("name", absl::StrCat("'", name, "' is the name of another one"));
    }
    return name;
  }

  void ParseVariant(Section variant) {
    RawVariant raw;
    raw.name = ParseName(variant);
    const YAML::Node set = variant.Get("set");
    if (set.IsDefined() && !set.IsMap()) {
      variant.Fault("set", "expected a map of keys as in a job file");
    } else if (set.IsDefined()) {
      ChangeReader(file_, &variant, &raw.changes).Read(set, {});
    }
    variant.Finish();
    out_.variants.push_back(std::move(raw));
  }

  void ParseBaseline(Section baseline) {
    Baseline parsed;
    parsed.name = ParseName(baseline);
    const std::string results = baseline.Text("results", "");
    if (results.empty()) baseline.Fault("results", "missing; name the file of its results");
    parsed.results = Resolved(results);
    baseline.Finish();
    out_.experiment.baselines.push_back(std::move(parsed));
  }

  std::string Resolved(const std::filesystem::path& path) const {
    if (path.empty()) return "";
    return (path.is_absolute() ? path : std::filesystem::path(directory_) / path)
        .lexically_normal()
        .string();
  }

  const std::string file_;
  const std::string directory_;
  Faults& faults_;
  Section root_;
  std::set<std::string> names_;
  RawExperiment out_;
};

absl::StatusOr<RawExperiment> ReadExperiment(const std::string& text, const std::string& path,
                                             const std::string& directory) {
  TERCIO_RETURN_IF_ERROR(CheckUtf8(text, path));
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected an experiment (a map of keys)"));
    }
    Faults faults(path);
    if (const int line = LineOfSecondDocument(text); line > 0) {
      faults.Add(line, "", "a second document (after ---); a file holds one experiment");
    }
    RawExperiment raw = ExperimentParser(root, path, directory, &faults).Parse();
    TERCIO_RETURN_IF_ERROR(faults.ToStatus());
    return raw;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

// A fault of the job file itself is one of every variant, and is reported once.
absl::Status JobFaults(const std::vector<std::pair<std::string, absl::Status>>& faulty,
                       size_t variants) {
  std::map<std::string, size_t> counts;
  for (const auto& [name, status] : faulty) {
    const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
    for (const std::string& line : std::set<std::string>(lines.begin(), lines.end()))
      ++counts[line];
  }
  std::vector<std::string> lines;
  std::set<std::string> of_all;
  for (const auto& [name, status] : faulty) {
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(status.message(), '\n'))) {
      if (counts[line] < variants) {
        lines.push_back(absl::StrCat("variant '", name, "': ", line));
      } else if (of_all.insert(line).second) {
        lines.push_back(line);
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

// The job of a variant, without one that it names itself.
std::string NameOfJob(const std::string& job, const std::string& variant) {
  const std::string name = absl::StrCat(job, ": ", variant);
  return FaultOfName(name).empty() ? name : variant;
}

absl::StatusOr<std::vector<Variant>> ParseVariants(const RawExperiment& raw) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(raw.job_file, kMostYamlBytes));
  const std::string directory = std::filesystem::path(raw.job_file).parent_path().string();
  std::vector<Variant> variants;
  std::vector<std::pair<std::string, absl::Status>> faulty;
  for (const RawVariant& variant : raw.variants) {
    absl::StatusOr<v1::JobSpec> job =
        ParseChangedJob(text, raw.job_file, directory, variant.changes);
    if (!job.ok()) {
      faulty.emplace_back(variant.name, job.status());
      continue;
    }
    const bool named = std::any_of(variant.changes.begin(), variant.changes.end(),
                                   [](const JobChange& change) { return change.key[0] == "name"; });
    if (!named) job->set_name(NameOfJob(job->name(), variant.name));
    variants.push_back({variant.name, *std::move(job)});
  }
  if (!faulty.empty()) return JobFaults(faulty, raw.variants.size());
  return variants;
}

// Whether the key decides what is trained, rather than how.
bool DecidesTraining(const std::string& key) {
  static constexpr const char* kKeys[] = {"training.steps", "training.epochs",
                                          "training.global_batch", "training.seed"};
  return absl::StartsWith(key, "model.") || absl::StartsWith(key, "data.") ||
         std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

// In the order of the variants' files.
std::vector<DifferentKey> DifferencesIn(const std::vector<Variant>& variants) {
  std::vector<std::map<std::string, std::string>> jobs;
  std::vector<std::string> keys;
  std::set<std::string> known;
  for (const Variant& variant : variants) {
    std::map<std::string, std::string>& job = jobs.emplace_back();
    for (auto& [key, value] : FlatJob(variant.job)) {
      if (!DecidesTraining(key)) continue;
      if (known.insert(key).second) keys.push_back(key);
      job[key] = value;
    }
  }
  std::vector<DifferentKey> differences;
  for (const std::string& key : keys) {
    DifferentKey different{key, {}};
    for (std::map<std::string, std::string>& job : jobs) different.values.push_back(job[key]);
    const bool differ =
        std::any_of(different.values.begin(), different.values.end(),
                    [&](const std::string& value) { return value != different.values.front(); });
    if (differ) differences.push_back(std::move(different));
  }
  return differences;
}

absl::Status NotComparable(const RawExperiment& raw, const std::string& file,
                           const std::vector<DifferentKey>& differences) {
  const auto shown = [](const std::string& value) {
    return value.empty() ? std::string("not set") : value;
  };
  std::vector<std::string> lines;
  for (const DifferentKey& different : differences) {
    for (size_t i = 1; i < different.values.size(); ++i) {
      if (different.values[i] == different.values[0]) continue;
      lines.push_back(absl::StrCat(file, ": variant '", raw.variants[i].name, "': ", different.key,
                                   " is ", shown(different.values[i]), ", but ",
                                   shown(different.values[0]), " in '", raw.variants[0].name, "'"));
    }
  }
  lines.push_back(
      "the variants are not comparable: they must train the same model on the same data for as "
      "long; --allow-different runs them anyway");
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace

DeviceCost ParseDeviceCost(Section cost) {
  DeviceCost parsed;
  if (!cost.Has("per_device_hour")) cost.Fault("per_device_hour", "missing; expected a number");
  parsed.per_device_hour = cost.Number("per_device_hour", 0, 0, kMostCost);
  parsed.currency = cost.Text("currency", "");
  if (const std::string fault = FaultOfName(parsed.currency); !fault.empty()) {
    cost.Fault("currency", fault);
  }
  cost.Finish();
  return parsed;
}

absl::StatusOr<Experiment> ParseExperimentFile(const std::string& path,
                                               DifferentTraining different) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kMostYamlBytes));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  // Without the directory relative paths would have no meaning.
  if (error) return FileError(error.value(), "cannot determine the working directory of", path);
  const std::string name = path == "-" ? "stdin" : path;
  TERCIO_ASSIGN_OR_RETURN(RawExperiment raw,
                          ReadExperiment(text, name, absolute.parent_path().string()));
  TERCIO_ASSIGN_OR_RETURN(std::vector<Variant> variants, ParseVariants(raw));
  std::vector<DifferentKey> differences = DifferencesIn(variants);
  if (!differences.empty() && different == DifferentTraining::kRefuse) {
    return NotComparable(raw, name, differences);
  }
  Experiment experiment = std::move(raw.experiment);
  experiment.variants = std::move(variants);
  experiment.different = std::move(differences);
  return experiment;
}

}  // namespace tercio::config
