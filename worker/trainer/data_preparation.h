// tercio-trainer --prepare: reads the data of one job for an agent, which may be root and therefore
// parses nothing itself. The request comes by the standard input, the answer goes to the standard
// output (proto/tercio/v1/prepare.proto).
//
// Threads: one, besides those that tokenise.
#pragma once

#include <memory>
#include <vector>

#include "common/file.h"
#include "proto/tercio/v1/prepare.pb.h"

namespace tercio::trainer {

struct Preparation {
  v1::PrepareAnswer answer;
  // As long as these live, the entries of the cache that were read stay there.
  std::vector<std::shared_ptr<const FileLock>> uses;
};

// Checks the paths of the job, tokenises its texts into the cache, and checks model.from. Takes
// long.
Preparation PrepareFor(const v1::PrepareRequest& request);

// Answers one request, then holds the entries that it has read until the standard input ends.
// Returns the exit code; running out of memory ends the process anywhere, with
// data::kExitOutOfMemory.
int ServePreparation();

}  // namespace tercio::trainer
