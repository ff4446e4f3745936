// The checkpoint that an import makes of weights from elsewhere: step 0, without moments, all
// tensors in one file.
//
// Threads: one at a time.
// Errors: those of the source and of OutputDirectory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/weight_source.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

struct ImportOptions {
  std::string tokenizer_json;  // as checkpoints hold it (tokenizer/tokenizer.h); empty: none
  WriteProgress progress = {};
};

struct ImportResult {
  v1::ModelSpec model;
  int64_t parameters = 0;
  int64_t bytes = 0;
  std::vector<std::string> kept;   // names of the files copied
  std::vector<std::string> notes;  // notices for the user, for stderr
};

// Writes these tensors of the source, and everything in *manifest that describes them. The progress
// counts their bytes alone, since everything beside them is small.
absl::Status WriteImportedWeights(const WeightSource& source,
                                  const std::vector<plan::LogicalTensor>& tensors,
                                  const ImportOptions& options, Manifest* manifest,
                                  OutputDirectory* output);

// Writes the tokenizer and, last, the manifest with all files that were written, and commits.
absl::Status CommitImport(const ImportOptions& options, Manifest* manifest,
                          OutputDirectory* output);

}  // namespace tercio::checkpoint
