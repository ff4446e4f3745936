// The verbs. Each prints its output and returns the exit code of the program.
#pragma once

#include <string>

#include "cli/options.h"

namespace tercio::cli {

// Verbs that talk to a coordinator (job_commands.cc).
int Submit(const Options& options);
int Get(const Options& options);
int List(const Options& options);
int Watch(const Options& options);
int Wait(const Options& options);
int History(const Options& options);
int Events(const Options& options);
int Logs(const Options& options);
int Cancel(const Options& options);
int Drill(const Options& options);
int Nodes(const Options& options);
int NodesDrain(const Options& options);
int NodesUndrain(const Options& options);
int NodesRelease(const Options& options);
int CheckpointList(const Options& options);
int CheckpointVerify(const Options& options);
int CheckpointPrune(const Options& options);
int CheckpointNow(const Options& options);
int Delete(const Options& options);

// Comparisons of jobs (report_commands.cc).
int Plot(const Options& options);
int Diff(const Options& options);
int Report(const Options& options);

// Hugging Face directories (checkpoint_commands.cc).
int CheckpointImport(const Options& options);
int CheckpointExport(const Options& options);

// Exchanges a token for a certificate (access_commands.cc).
int Login(const Options& options);

// Verbs with a private coordinator and agent where needed (run_commands.cc).
int Run(const Options& options);
int Resume(const Options& options);

// Verbs that use a trained model on this machine (model_commands.cc).
int Generate(const Options& options);
int Evaluate(const Options& options);

// Verbs that use this machine alone (local_commands.cc).
int Plan(const Options& options);
int Completion(const Options& options);
int Version(const Options& options);
std::string VersionLine();  // "tercio 0.1.0 commit 1a2b3c4d..."

// Checks whether this machine can train (doctor.cc).
int Doctor(const Options& options);

// Data sets (data_commands.cc).
int DataTokenize(const Options& options);
int DataInspect(const Options& options);

}  // namespace tercio::cli
