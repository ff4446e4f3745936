// Published measurements of training steps (testdata/published.csv, made from public papers and
// repositories; docs/planner.md), as inputs of the cost model.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/planner/cost/step_cost.h"

namespace tercio::plan::cost {

struct PublishedRow {
  std::map<std::string, std::string> fields;  // by column

  const std::string& id() const { return fields.at("id"); }
  const std::string& source() const { return fields.at("source"); }
  const std::string& metric() const { return fields.at("metric"); }
  const std::string& text(const std::string& column) const { return fields.at(column); }
  double value() const { return number("value", 0); }
  // Empty: `otherwise`.
  double number(const std::string& column, double otherwise) const;
  int integer(const std::string& column, int otherwise) const;
};
std::vector<PublishedRow> ParseRows(const std::string& csv);

// What a source says once for all its rows, or leaves to be known from elsewhere.
struct Source {
  std::string_view name;
  std::string_view recipe;
  int interfaces = 8;
  double interface_gigabytes = 25;  // a second
  double link_gigabytes = 0;        // a second inside a node; 0: the catalogue's
  bool balances_stages = false;     // layers are divided so that stages take as long as each other
  bool llama = false;               // gated, without biases, untied head
  double dropout = 0;
  int vocabulary = 50304;
  int micro_batch = 1;
  int layers_of_chunk = 0;  // where interleaving is not given; 0: none
  std::string_view recompute = "none";
  bool sequence_parallel = false;
  bool causal_flops = false;  // operations counted with half of attention
  int zero_stage = 0;
};
std::span<const Source> Sources();
const Source* FindSource(std::string_view name);

struct PublishedCase {
  v1::JobSpec job;
  v1::Layout layout;
  ClusterModel cluster;
  Recipe recipe;
  std::vector<int> layers;      // of places; empty: LayersOfPlaces
  double measured_seconds = 0;  // of a step
};
// nullopt: the row does not say enough, or is not about steps.
std::optional<PublishedCase> CaseOf(const PublishedRow& row);

}  // namespace tercio::plan::cost
