// The job file: strict YAML in, a complete JobSpec out, and back (docs/configuration.md).
//
// Every fault of a file is reported in one message, one line each: FILE:LINE: KEY: what; how to
// fix it. A fault of a change begins with "--set KEY=VALUE: " instead.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// The default of fault_tolerance.elastic_wait.
inline constexpr double kElasticWaitSeconds = 300;

// `path` "-" is the standard input; its data paths are relative to the working directory.
// `overrides` are KEY=VALUE with dotted keys, as given to --set; VALUE is YAML. NOT_FOUND when
// there is no such file, INVALID_ARGUMENT with all faults, or when it has more than 1 MiB.
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& path,
                                         const std::vector<std::string>& overrides);

// The same for text; data paths are resolved against `directory`, messages name `name`.
absl::StatusOr<v1::JobSpec> ParseJobText(const std::string& text, const std::string& name,
                                         const std::string& directory,
                                         const std::vector<std::string>& overrides);

// The complete job as YAML: every key with its value. Parsing it gives the same spec.
std::string EffectiveYaml(const v1::JobSpec& spec);

// The fault of a job's name, which is shown on many terminals and pages; empty: none.
std::string FaultOfName(const std::string& name);

// What resources.device `auto` means: cuda where there are GPUs.
enum class AutoDevice { kCpu, kCuda };

// Resolves `auto` of resources.device and training.precision (bf16 on GPUs, fp32 on CPUs).
void ResolveDevice(v1::JobSpec* spec, AutoDevice meant);

// `changes` (as --set) made to an existing job, for resume.
absl::StatusOr<v1::JobSpec> ChangeJob(const v1::JobSpec& spec,
                                      const std::vector<std::string>& changes);

}  // namespace tercio::config
