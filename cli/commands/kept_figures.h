// What `tercio doctor --measure` has measured of this machine, kept for predictions: a file of its
// CPUs and one of its GPUs in DefaultStateDir(), each with the machine that it is of and the date.
// `plan`, `run`, `resume`, `evaluate --job`, `compare` and `tune` on this machine take figures of
// its own and ignore those of another one, as homes are shared by machines.
//
// Blocking. Functions may be called by any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/gpus/gpus.h"
#include "proto/tercio/v1/figures.pb.h"

namespace tercio::cli {

// Figures are of this machine where both are the same.
struct MachineIdentity {
  std::string model;  // what its processor, or its GPUs, are called
  int count = 0;      // number of cores or GPUs

  bool operator==(const MachineIdentity&) const = default;
};

MachineIdentity IdentityOfCpus();
MachineIdentity IdentityOfGpus(const Gpus& gpus);

struct KeptFigures {
  v1::MachineFigures figures;  // without products: there are none that count
  // Which figures are used, or why those of the file are not; empty: there is no file.
  std::string notice;
};

enum class FiguresOf { kCpus, kGpus };

std::string FiguresPath(const std::string& directory, FiguresOf of);

// Writes the file and its directory. Errors are those of files.
absl::Status KeepFigures(const std::string& path, const MachineIdentity& machine, absl::Time now,
                         const v1::MachineFigures& figures);

// Reads the file. One that cannot be read, is damaged or is of another machine than `machine` is
// ignored with a notice.
KeptFigures FindFigures(const std::string& path, const MachineIdentity& machine);

}  // namespace tercio::cli
