// Which layers each stage of a pipeline has. Pure.
//
// The model is cut into runs of neighbouring layers: chunk c of stage s has run c * pipeline + s
// along the model (plan/schedule.h). The embedding is on the first stage, the head on the last.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Layers of each run: those of Layout.stage_layers, if it has any, else equal parts. Where these
// are none, embedding and head count as a layer each, so that the ends have fewer layers than the
// middle. REQUIRES: Layout.stage_layers has a number for each run.
std::vector<int> LayersOfPlaces(int layers, const v1::Layout& layout);

// Sets Layout.stage_layers to what the job asks for. A job that asks for nothing, and whose layers
// do not divide, gets LayersOfPlaces, unless that leaves a run without a layer, or the model is an
// encoder with a decoder, whose layers differ in cost. Equal parts are no numbers.
void SetStageLayers(const v1::JobSpec& job, v1::Layout* layout);

// Whether each run has a layer, and all of them together the model's. INVALID_ARGUMENT names the
// numbers. REQUIRES: positive degrees.
absl::Status CheckStageLayers(const v1::ModelSpec& model, const v1::Layout& layout);

// The model's layers that a stage holds, ascending: one run for each of its chunks. REQUIRES:
// CheckStageLayers.
std::vector<int> LayersOfStage(int layers, const v1::Layout& layout, int stage);

// For people: "7, 9, 9, 7", and of many equal ones "2, 6 x 3, 2"; empty for equal parts.
std::string StageLayersText(const v1::Layout& layout);

// The runs of layers that a stage has, one for each of its chunks, by the stage's own numbers of
// layers, which begin with 0.
class StageRuns {
 public:
  StageRuns() : StageRuns({1}) {}
  // Layers of each chunk. REQUIRES: one number at least, each positive.
  StageRuns(std::initializer_list<int> layers) : StageRuns(std::vector<int>(layers)) {}
  explicit StageRuns(const std::vector<int>& layers);

  int chunks() const { return static_cast<int>(ends_.size()); }
  int layers() const { return ends_.back(); }  // of all chunks
  // The layers of a chunk are [first, end).
  int first(int chunk) const { return chunk == 0 ? 0 : end(chunk - 1); }
  int end(int chunk) const { return ends_[static_cast<size_t>(chunk)]; }
  int ChunkOf(int layer) const;
  bool IsFirstOfChunk(int layer) const { return layer == first(ChunkOf(layer)); }
  bool IsLastOfChunk(int layer) const { return layer + 1 == end(ChunkOf(layer)); }

 private:
  std::vector<int> ends_;  // behind each chunk's layers
};
StageRuns RunsOfStage(int layers, const v1::Layout& layout, int stage);

}  // namespace tercio::plan
