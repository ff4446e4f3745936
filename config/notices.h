// Keys of a job that have no effect in it.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// A text for each key that cannot have an effect in this job, with the reason. A JobSpec does not
// tell which keys were written, so only keys that differ from their defaults count. Pure.
std::vector<std::string> KeysWithoutEffect(const v1::JobSpec& job);

}  // namespace tercio::config
