// One number for the weights that an adapter was trained beside, so that it is not used with others
// of the same shapes. It catches mistakes, but does not protect against forgery.
//
// An adapter's directory has it in a file of its own, tercio_base.json: {"digest": 16 hexadecimal
// digits}, the digest of plan/state_digest.h over the tensors that the adapter leaves as they are.
//
// Threads: any.
// Errors: those of the source; DATA_LOSS for a file that is none.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

inline constexpr char kBaseDigestFile[] = "tercio_base.json";

// The digest of what `adapted`, a model with an adapter, leaves of the source's weights as it is.
// Reads them all.
absl::StatusOr<uint64_t> DigestOfBase(const WeightSource& source, const v1::ModelSpec& adapted);

// Likewise of all weights of the source's model.
absl::StatusOr<uint64_t> DigestOfWeights(const WeightSource& source);

// The content of the file.
std::string BaseDigestJson(uint64_t digest);

// FAILED_PRECONDITION: the adapter in `directory` names another digest than its base's, `source`.
// OK where it names none.
absl::Status CheckBaseDigest(const std::string& directory, const WeightSource& source,
                             const v1::ModelSpec& adapted);

}  // namespace tercio::checkpoint
