// Reads a committed checkpoint: any rectangle of any logical tensor, whatever layout wrote it.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND when there is no checkpoint, DATA_LOSS when it is damaged (naming file and
// fault).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

struct Finding {
  std::string path;
  std::string problem;  // empty: good
};

// Reads everything and compares every digest; one finding per file.
std::vector<Finding> VerifyCheckpoint(const std::string& directory);

class Reader : public WeightSource {
 public:
  // Checks the manifest, and that every file is there with its full size; with `digests` also their
  // content.
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const std::string& directory, bool digests);

  // Compares the content of every file, on all cores. DATA_LOSS names the first that differs.
  absl::Status CheckDigests() const;

  const Manifest& manifest() const { return manifest_; }
  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override;
  bool Has(const std::string& tensor) const override { return manifest_.tensors.contains(tensor); }

  // NOT_FOUND when the tensor is missing, INVALID_ARGUMENT when it has another shape or the slice
  // lies outside of it.
  absl::Status CheckSlice(const v1::TensorSlice& slice) const;
  // Writes the slice's values row-major; the same errors.
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;

 private:
  std::string directory_;
  Manifest manifest_;
  v1::ModelSpec model_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace tercio::checkpoint
