#include "config/faults_section.h"

#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "config/quantity.h"

namespace tercio::config {
namespace {

std::optional<double> ParsePlain(std::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(std::string(text), &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

struct FaultKey {
  const char* name;
  std::optional<double> FaultFigures::*figure;
  std::optional<double> (*parse)(std::string_view);
  const char* expected;
  double least;
  double most;
  bool whole = false;
};

constexpr double kMostSeconds = 1e10;  // three hundred years
constexpr char kTime[] = "a time such as 30s, 10m, 2h or 240d";
constexpr char kShare[] = "a share such as 0.02, at most 1";

const std::array<FaultKey, 12>& Keys() {
  using F = FaultFigures;
  static const std::array<FaultKey, 12> kKeys = {{
      {"node_mtbf", &F::node_mtbf, ParseDuration, "a time above 0 such as 240d", 1, kMostSeconds},
      {"detect", &F::detect, ParseDuration, kTime, 0, kMostSeconds},
      {"restart", &F::restart, ParseDuration, kTime, 0, kMostSeconds},
      {"spare_nodes", &F::spare_nodes, ParsePlain, "a whole number", 0, 1 << 20, true},
      {"replace", &F::replace, ParseDuration, kTime, 0, kMostSeconds},
      {"checkpoint_pause", &F::checkpoint_pause, ParseDuration, kTime, 0, kMostSeconds},
      {"checkpoint_write", &F::checkpoint_write, ParseDuration, kTime, 0, kMostSeconds},
      {"checkpoint_bandwidth", &F::checkpoint_bandwidth, ParseBytesPerSecond,
       "a rate above 0 such as 60GB/s", 1, 1e18},
      {"pass_jitter", &F::pass_jitter, ParsePlain, kShare, 0, 1},
      {"step_jitter", &F::step_jitter, ParsePlain, kShare, 0, 1},
      {"slow_gpus", &F::slow_gpus, ParsePlain, kShare, 0, 1},
      {"slow_by", &F::slow_by, ParsePlain, "a share such as 0.1, at most 100", 0, 100},
  }};
  return kKeys;
}

constexpr char kPrefix[] = "faults.";

// nullopt: not what the key expects.
std::optional<double> FigureOf(const FaultKey& key, const std::string& text) {
  const std::optional<double> value = key.parse(text);
  if (!value.has_value() || !(*value >= key.least) || !(*value <= key.most)) return std::nullopt;
  if (key.whole && *value != std::floor(*value)) return std::nullopt;
  return value;
}

}  // namespace

FaultFigures ParseFaults(Section section) {
  FaultFigures figures;
  for (const FaultKey& key : Keys()) {
    if (!section.Has(key.name)) continue;
    const std::string text = section.Text(key.name, "");
    const std::optional<double> value = FigureOf(key, text);
    if (value.has_value()) {
      figures.*key.figure = value;
    } else {
      section.Fault(key.name, absl::StrCat("is '", text, "'; expected ", key.expected));
    }
  }
  // Two ways to say the same.
  if (figures.checkpoint_write.has_value() && figures.checkpoint_bandwidth.has_value()) {
    section.Fault("checkpoint_bandwidth", "is given beside checkpoint_write; remove one of them");
  }
  section.Finish();
  return figures;
}

std::vector<std::string> FaultKeys() {
  std::vector<std::string> keys;
  for (const FaultKey& key : Keys()) keys.push_back(absl::StrCat(kPrefix, key.name));
  return keys;
}

absl::Status ChangeFault(std::string_view key, const std::string& value, FaultFigures* figures) {
  for (const FaultKey& each : Keys()) {
    if (key != absl::StrCat(kPrefix, each.name)) continue;
    const std::optional<double> figure = FigureOf(each, value);
    if (!figure.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", value, "' is no such figure; expected ", each.expected));
    }
    figures->*each.figure = figure;
    // The one that was changed last counts.
    if (each.figure == &FaultFigures::checkpoint_write) figures->checkpoint_bandwidth.reset();
    if (each.figure == &FaultFigures::checkpoint_bandwidth) figures->checkpoint_write.reset();
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("no figure of faults: ", std::string(key)));
}

}  // namespace tercio::config
