#include "plan/stage_layers.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "model/architecture.h"

namespace tercio::plan {
namespace {

int StagesOf(const v1::Layout& layout) { return std::max(1, layout.pipeline()); }
int ChunksOf(const v1::Layout& layout) { return std::max(1, layout.virtual_pipeline()); }
// Degrees of a job have no bounds before they are checked.
int64_t PlacesOf(const v1::Layout& layout) { return int64_t{StagesOf(layout)} * ChunksOf(layout); }

std::string PlacesText(const v1::Layout& layout) {
  const int chunks = ChunksOf(layout);
  return absl::StrCat("pipeline ", StagesOf(layout),
                      chunks > 1 ? absl::StrCat(" x virtual_pipeline ", chunks) : "");
}

std::string LayersText(const v1::ModelSpec& model) {
  return model.decoder_layers() > 0 ? "model.layers and model.decoder_layers together, "
                                    : "model.layers ";
}

absl::Status Fault(const std::string& what) {
  return absl::InvalidArgumentError("impossible layout: " + what);
}

// Embedding and head count as a layer each: the ends get less, the middle what is left over.
std::vector<int> WithRoomAtTheEnds(int layers, int places) {
  std::vector<int> result(static_cast<size_t>(places), 0);
  // With fewer layers than places the first ones have one each.
  if (layers < places) {
    std::fill(result.begin(), result.begin() + layers, 1);
    return result;
  }
  const int64_t all = int64_t{layers} + 2;
  for (int64_t i = 0; i < places; ++i) {
    result[static_cast<size_t>(i)] =
        static_cast<int>(all * (i + 1) / places) - static_cast<int>(all * i / places);
  }
  result.front() -= 1;
  result.back() -= 1;
  return result;
}

}  // namespace

std::vector<int> LayersOfPlaces(int layers, const v1::Layout& layout) {
  const int64_t places = PlacesOf(layout);
  if (!layout.stage_layers().empty()) {
    TERCIO_CHECK_EQ(int64_t{layout.stage_layers_size()}, places);
    return {layout.stage_layers().begin(), layout.stage_layers().end()};
  }
  if (layers % places == 0) {
    return std::vector<int>(static_cast<size_t>(places), static_cast<int>(layers / places));
  }
  return WithRoomAtTheEnds(layers, static_cast<int>(places));
}

void SetStageLayers(const v1::JobSpec& job, v1::Layout* layout) {
  layout->clear_stage_layers();
  const int layers = model::LayersOf(job.model());
  const int64_t places = PlacesOf(*layout);
  const auto& wanted = job.parallelism().stage_layers();
  if (!wanted.empty()) {
    const bool equal =
        wanted.size() == places && std::all_of(wanted.begin(), wanted.end(),
                                               [&](int each) { return each * places == layers; });
    if (!equal) *layout->mutable_stage_layers() = wanted;
    return;
  }
  if (layers % places == 0 || layers < places || job.model().decoder_layers() > 0) return;
  const std::vector<int> divided = LayersOfPlaces(layers, *layout);
  if (*std::min_element(divided.begin(), divided.end()) < 1) return;
  layout->mutable_stage_layers()->Add(divided.begin(), divided.end());
}

absl::Status CheckStageLayers(const v1::ModelSpec& model, const v1::Layout& layout) {
  const int layers = model::LayersOf(model);
  const int64_t places = PlacesOf(layout);
  const auto& given = layout.stage_layers();
  if (given.empty()) {
    if (layers % places == 0) return absl::OkStatus();
    return Fault(absl::StrCat(
        PlacesText(layout), " does not divide ", LayersText(model), layers,
        layers < places ? "" : "; parallelism.stage_layers can give stages different numbers"));
  }
  if (given.size() != places) {
    return Fault(absl::StrCat("parallelism.stage_layers has ", given.size(), " numbers, but ",
                              PlacesText(layout), " needs ", places));
  }
  for (int i = 0; i < given.size(); ++i) {
    if (given[i] > 0) continue;
    return Fault(absl::StrCat("parallelism.stage_layers gives stage ", i % StagesOf(layout), " ",
                              given[i], " layers; each number must be at least 1"));
  }
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  if (sum == layers) return absl::OkStatus();
  return Fault(absl::StrCat("parallelism.stage_layers adds up to ", sum, " layers, but needs ",
                            LayersText(model), layers));
}

std::vector<int> LayersOfStage(int layers, const v1::Layout& layout, int stage) {
  const std::vector<int> places = LayersOfPlaces(layers, layout);
  const auto stages = static_cast<size_t>(StagesOf(layout));
  std::vector<int> result;
  int first = 0;
  for (size_t place = 0; place < places.size(); ++place) {
    // Chunks go round the stages, so that a stage's chunks are pipeline runs apart.
    const bool here = place % stages == static_cast<size_t>(stage);
    for (int i = 0; here && i < places[place]; ++i) result.push_back(first + i);
    first += places[place];
  }
  TERCIO_CHECK_EQ(first, layers);
  return result;
}

std::string StageLayersText(const v1::Layout& layout) {
  const auto& layers = layout.stage_layers();
  std::string text;
  for (int i = 0; i < layers.size();) {
    int end = i + 1;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    constexpr int kFew = 4;  // that are as short one by one
    const bool together = end - i >= kFew;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    together ? absl::StrCat(end - i, " x ", layers[i]) : absl::StrCat(layers[i]));
    i = together ? end : i + 1;
  }
  return text;
}

StageRuns::StageRuns(const std::vector<int>& layers) {
  TERCIO_CHECK(!layers.empty());
  int end = 0;
  for (const int each : layers) {
    TERCIO_CHECK_GT(each, 0);
    ends_.push_back(end += each);
  }
}

int StageRuns::ChunkOf(int layer) const {
  const auto chunk = std::upper_bound(ends_.begin(), ends_.end(), layer);
  TERCIO_CHECK(chunk != ends_.end());
  return static_cast<int>(chunk - ends_.begin());
}

StageRuns RunsOfStage(int layers, const v1::Layout& layout, int stage) {
  const std::vector<int> places = LayersOfPlaces(layers, layout);
  std::vector<int> runs;
  for (int chunk = 0; chunk < ChunksOf(layout); ++chunk) {
    runs.push_back(places[static_cast<size_t>(chunk * StagesOf(layout) + stage)]);
  }
  return StageRuns(runs);
}

}  // namespace tercio::plan
