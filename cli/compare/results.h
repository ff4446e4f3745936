// The results of an experiment: all methods beside each other, as JSON, as a table for
// spreadsheets, and as figures. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/compare/method.h"
#include "cli/plot/svg.h"
#include "config/experiment_file.h"

namespace tercio::compare {

struct Results {
  std::string experiment;
  std::vector<Method> methods;  // the variants, then the baselines; compared, with their costs
  std::optional<config::DeviceCost> cost;
  std::vector<config::DifferentKey> different;  // values of the variants
};

// The methods that an experiment ends with: `variants` in its order, `baselines` with their labels.
Results ResultsOf(const config::Experiment& experiment, const std::vector<Method>& variants,
                  const std::vector<Method>& baselines);

// results.json: {"format", "experiment", "cost", "base", "different", "methods"}.
Json ResultsToJson(const Results& results);

// Its text.
std::string ResultsText(const Results& results);

// results.csv (RFC 4180): a line for each method, a column for each number and text of its JSON but
// those of single steps, named by dotted keys. Lists are JSON; null is an empty field.
std::string ResultsToCsv(const Results& results);

struct NamedFigure {
  std::string name;  // of its file, without ".svg"
  std::string svg;
};

// The figures for which something is known.
std::vector<NamedFigure> SpeedFigures(const Results& results, plot::SvgPlace place);
std::vector<NamedFigure> MemoryFigures(const Results& results, plot::SvgPlace place);
std::vector<NamedFigure> QualityFigures(const Results& results, plot::SvgPlace place);
// The names that any of them may have.
const std::vector<std::string>& FigureNames();
// All of them.
std::vector<NamedFigure> FiguresOf(const Results& results, plot::SvgPlace place);

}  // namespace tercio::compare
