// The verbs, each with the struct of its options. A verb prints its output and returns the exit
// code of the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/global_options.h"

namespace tercio::cli {

// ---- verbs that talk to a coordinator (job_commands.cc, watch_command.cc, log_command.cc) ----

struct SubmitOptions : GlobalOptions {
  std::string job_file;
  std::vector<std::string> set;  // KEY=VALUE
  bool watch = false;
};
int Submit(const SubmitOptions& options);

struct GetOptions : GlobalOptions {
  std::string job;
};
int Get(const GetOptions& options);

struct ListOptions : GlobalOptions {};
int List(const ListOptions& options);

struct WatchOptions : GlobalOptions {
  std::string job;
  bool plain = false;  // one line
};
int Watch(const WatchOptions& options);

struct WaitOptions : GlobalOptions {
  std::string job;
  double timeout_seconds = -1;  // below 0: none given
};
int Wait(const WaitOptions& options);

struct HistoryOptions : GlobalOptions {
  std::string job;
  bool all_attempts = false;
  bool follow = false;
};
int History(const HistoryOptions& options);

struct EventsOptions : GlobalOptions {
  std::string job;  // empty: all jobs
  bool follow = false;
};
int Events(const EventsOptions& options);

struct LogsOptions : GlobalOptions {
  std::string job;
  std::vector<int> ranks;  // empty: all ranks
  std::string since;
  std::string level;  // empty: all lines
  int attempt = 0;    // 0: all attempts
  int tail = 0;       // 0: all lines
  bool follow = false;
};
int Logs(const LogsOptions& options);

struct CancelOptions : GlobalOptions {
  std::string job;
  bool no_save = false;
};
int Cancel(const CancelOptions& options);

struct DrillOptions : GlobalOptions {
  std::string job;
  std::string fault;
  int rank = -1;  // below 0: none given
  double seconds = 0;
  double timeout_seconds = -1;  // below 0: none given
};
int Drill(const DrillOptions& options);

struct NodesOptions : GlobalOptions {};
int Nodes(const NodesOptions& options);

struct NodeOptions : GlobalOptions {
  std::string node;
};
int NodesDrain(const NodeOptions& options);
int NodesUndrain(const NodeOptions& options);
int NodesRelease(const NodeOptions& options);

// ---- the stored data of a job (stored_checkpoints.cc) ----

struct CheckpointListOptions : GlobalOptions {
  std::string job;
};
int CheckpointList(const CheckpointListOptions& options);

struct CheckpointVerifyOptions : GlobalOptions {
  std::string job;
  int64_t step = 0;  // 0: all checkpoints
};
int CheckpointVerify(const CheckpointVerifyOptions& options);

struct CheckpointPruneOptions : GlobalOptions {
  std::string job;
  int keep_last = 0;  // 0: the job's
  bool dry_run = false;
};
int CheckpointPrune(const CheckpointPruneOptions& options);

struct CheckpointNowOptions : GlobalOptions {
  std::string job;
  double timeout_seconds = -1;  // below 0: none given
};
int CheckpointNow(const CheckpointNowOptions& options);

struct DeleteOptions : GlobalOptions {
  std::string job;
  bool checkpoints = false;
};
int Delete(const DeleteOptions& options);

// ---- comparisons of jobs (report_commands.cc) ----

struct PlotOptions : GlobalOptions {
  std::vector<std::string> jobs;
  std::string file;  // "-": standard output
  std::vector<std::string> metrics;
  std::string x = "step";
  int smooth = 1;
  bool logarithmic = false;
};
int Plot(const PlotOptions& options);

struct DiffOptions : GlobalOptions {
  std::vector<std::string> jobs;
};
int Diff(const DiffOptions& options);

struct ReportOptions : GlobalOptions {
  std::vector<std::string> jobs;
  std::string file;  // "-": standard output
};
int Report(const ReportOptions& options);

// ---- experiments (compare_command.cc) ----

struct CompareOptions : GlobalOptions {
  std::string experiment_file;
  std::string directory;  // of the results
  std::string cluster;    // HOST:PORT of a coordinator; empty: a private one
  std::string job_state;  // directory for its jobs; empty: in `directory`
  int repeat = 1;         // runs of each variant
  bool allow_different = false;
};
int Compare(const CompareOptions& options);

// ---- layouts that are tried (tune_command.cc) ----

struct TuneOptions : GlobalOptions {
  std::string job_file;
  std::vector<std::string> set;    // KEY=VALUE
  std::string directory = "tune";  // where measurements and the resulting job file go
  double budget = 600;             // seconds
  int steps = 12;                  // steps of each trial
};
int Tune(const TuneOptions& options);

// ---- Hugging Face directories, Megatron-LM checkpoints (checkpoint_commands.cc) ----

struct CheckpointImportOptions : GlobalOptions {
  std::string source;     // Hugging Face directory, Megatron-LM checkpoint, adapter of peft
  std::string directory;  // to create
  std::string model_format;
  std::string base;  // model of an adapter; empty: what it names
};
int CheckpointImport(const CheckpointImportOptions& options);

struct CheckpointExportOptions : GlobalOptions {
  std::string job;        // or a checkpoint directory
  int64_t step = 0;       // 0: the newest checkpoint
  std::string directory;  // to create
  std::string model_format;
  std::string max_shard_size;
  std::string dtype;  // of the weights
  int tensor = 0;     // degrees of a Megatron-LM checkpoint; 0: 1
  int pipeline = 0;
  std::string layout;  // of its names; empty: legacy
  bool merge = false;  // an adapter's products are added to the weights
};
int CheckpointExport(const CheckpointExportOptions& options);

// ---- exchanges a token for a certificate (access_commands.cc) ----

struct LoginOptions : GlobalOptions {
  std::string token_file;
  std::string token;
  std::string enroll;  // HOST:PORT
  bool check = false;
};
int Login(const LoginOptions& options);

// ---- verbs with a private coordinator and agent where needed (run_commands.cc) ----

struct RunOptions : GlobalOptions {
  std::string job_file;
  std::vector<std::string> set;  // KEY=VALUE
  int ranks = 0;                 // 0: the job's
  std::string trace;             // file; empty: none
  int64_t trace_step = 5;
};
int Run(const RunOptions& options);

struct ResumeOptions : GlobalOptions {
  std::string job;               // empty: the newest unfinished one
  std::vector<std::string> set;  // KEY=VALUE
  bool accept_data_change = false;
  bool accept_change = false;
  int64_t from_step = -1;  // below 0: none given
};
int Resume(const ResumeOptions& options);

// ---- verbs that use a trained model on this machine ----

struct ModelOptions : GlobalOptions {
  std::string checkpoint;
  int64_t context = 0;    // 0: the model's
  std::string tokenizer;  // empty: the model's
};

struct GenerateOptions : ModelOptions {
  std::string prompt;
  std::vector<int32_t> prompt_ids;
  std::string prompts;  // a file
  int64_t batch = 8;    // prompts that are continued at once
  int64_t tokens = 100;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 1337;
  // Ids around a decoder's answer; -1: as the tokenizer says.
  int32_t start_id = -1;
  int32_t end_id = -1;
};
int Generate(const GenerateOptions& options);

struct ServeOptions : ModelOptions {
  std::string listen = "127.0.0.1:8000";
  std::string name;  // what requests call the model; empty: the last part of the checkpoint's path
  std::vector<std::string> adapters;  // DIR or NAME=DIR
  std::string chat_template = "auto";
  int64_t slots = 8;         // texts that grow at once
  int64_t cache_tokens = 0;  // tokens that fit in the key/value cache; 0: slots times context
  int64_t max_queue = 256;   // texts that wait
  int64_t max_body = 1 << 20;
  int64_t max_connections = 512;
  double grace = 30;  // seconds
  std::string api_key_file;
  TlsFiles server_tls;
  bool insecure = false;
};
int Serve(const ServeOptions& options);

struct EvaluateOptions : ModelOptions {
  std::string data;    // empty: that of the job file
  std::string metric;  // empty: perplexity, or accuracy of a classifier
  int64_t stride = 0;  // 0: the context
  // Keys or columns of labelled texts, and of the text in .jsonl lines; empty: as in job files.
  std::string text_key;
  std::string text_pair_key;
  std::string label_key;
  std::string job_file;      // whose ranks evaluate; empty: this process does
  std::string write_logits;  // a directory to create, for the samples of the job; empty: evaluate
  int64_t top_k = 0;         // logits to write of each token; 0: the usual number
};
int Evaluate(const EvaluateOptions& options);

// ---- verbs that use this machine alone (local_commands.cc, doctor.cc) ----

struct PlanOptions : GlobalOptions {
  std::string job_file;
  std::vector<std::string> set;  // KEY=VALUE
  int ranks = 0;                 // 0: the job's
  std::string job;               // instead of a job file: one that has run, or runs
  // These with a cluster file only.
  std::string cluster;
  std::vector<std::string> what_if;  // KEY=VALUE
  std::string explain;               // a layout (cli/commands/layout_filter.h)
  std::vector<std::string> compare;  // two of them
  double tokens = 0;                 // tokens to train, for the cost estimate; 0: no estimate
  std::vector<int> scale;            // numbers of GPUs
  bool weak = false;                 // the global batch grows with them
  bool largest = false;              // also the largest model with each method
  std::string simulate;              // the length of a run that is forecast; empty: none
  int64_t seed = -1;                 // seed of the forecast's draws; below 0: none given
  std::string svg;                   // files for the timeline of a step; empty: none
  std::string timeline;
  bool effective = false;
  bool explain_tensors = false;
  bool program = false;
};
int Plan(const PlanOptions& options);

struct CompletionOptions : GlobalOptions {
  std::string shell;
};
int Completion(const CompletionOptions& options);

struct VersionOptions : GlobalOptions {};
int Version(const VersionOptions& options);
std::string VersionLine();  // "tercio 0.1.0 commit 1a2b3c4d..."

// Checks whether this machine can train.
struct DoctorOptions : GlobalOptions {
  std::string directory;  // whose disk is tested; empty: the default state directory
  bool measure = false;
  int threads = 0;              // cores to measure; 0: all
  std::string device = "auto";  // to measure: "auto", "cpu", "cuda"
  std::string node;             // whose figures they are; empty: this host's name
};
// Measures it for the planner (measure_command.cc).
int DoctorMeasure(const DoctorOptions& options);
int Doctor(const DoctorOptions& options);

// ---- data sets (data_commands.cc) ----

struct DataTokenizeOptions : GlobalOptions {
  std::string input;
  std::string tokenizer;
  std::string prefix;
  int threads = 0;  // 0: cores
  std::string text_key = "text";
  bool skip_bad_lines = false;
  bool append_eod = false;
  bool split_sentences = false;
};
int DataTokenize(const DataTokenizeOptions& options);

struct DataInspectOptions : GlobalOptions {
  std::string prefix;
  std::string text_key = "text";
};
int DataInspect(const DataInspectOptions& options);

struct DataPreviewOptions : GlobalOptions {
  std::string job_file;
  std::vector<std::string> set;
  int64_t samples = 3;
  int64_t first = 1;
};
// (data_preview.cc)
int DataPreview(const DataPreviewOptions& options);

}  // namespace tercio::cli
