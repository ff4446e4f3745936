#include "cli/commands/verbs.h"

#include <limits>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/evaluate_options.h"
#include "cli/commands/serve_rows.h"
#include "cli/man.h"
#include "common/daemon/flag_values.h"

namespace tercio::cli {
namespace {

// ---- rows that several verbs have ----

OptionTable Format(GlobalOptions& global, const char* names = "-o,--output") {
  return {{names,
           &global.output,
           "machine-readable output: json or jsonl",
           {Accepts(CLI::IsMember({"json", "jsonl"}))}}};
}

// The output format of a verb whose --output is something else.
OptionTable ShortFormat(GlobalOptions& global) { return Format(global, "-o"); }

OptionTable Certificates(GlobalOptions& global) {
  return {{"--tls-cert", &global.tls.certificate, "client certificate (PEM)"},
          {"--tls-key", &global.tls.key, "private key of the certificate (PEM)"},
          {"--tls-ca", &global.tls.authority, "certificate of the authority (PEM)"}};
}

// Options for reaching the coordinator. CLI11's envname is not used: it would apply the variable to
// verbs that were not chosen, too, and overwrite the value given to the chosen one.
OptionTable Reach(GlobalOptions& global) {
  return Join(
      {{{"--coordinator", &global.coordinator,
         "HOST:PORT of the coordinator (default: $TERCIO_COORDINATOR, else the last login, else "
         "127.0.0.1:7077)"}},
       Certificates(global)});
}

// The same, or a state directory.
OptionTable ReachJobs(GlobalOptions& global) {
  return Join({Reach(global),
               {{"--state-dir", &global.state_dir,
                 "use the jobs in this state directory, with or without a running coordinator"}}});
}

OptionTable Job(std::string* job) { return {{"job", job, "job id or name", {Required()}}}; }

OptionTable JobIfAny(std::string* job) { return {{"job", job, "job id or name"}}; }

OptionTable Jobs(std::vector<std::string>* jobs, const char* help) {
  return {{"jobs", jobs, help, {Required(), TakesAll()}}};
}

OptionTable Changes(std::vector<std::string>* set) {
  return {{"--set", set, "override a key of the job file: KEY=VALUE", {Repeats()}}};
}

OptionTable JobFile(std::string* file, std::vector<std::string>* set) {
  return Join(
      {{{"job_file", file, "job file (YAML); - reads it from stdin", {Required()}}}, Changes(set)});
}

OptionTable Timeout(double* seconds, const char* help) {
  return {{"--timeout",
           seconds,
           help,
           {Converted(InSeconds()), Accepts(Between(0, std::numeric_limits<double>::max()))}}};
}

OptionTable FollowsToTheEnd(bool* follow) {
  return {{"-f,--follow", follow, "keep printing until the job ends"}};
}

// A directory to create, and its format.
OptionTable Destination(std::string* directory, std::string* format) {
  return {{"--output", directory, "directory to create", {Required()}},
          {"--format", format, "hf, megatron (Megatron-LM) or peft (an adapter)", {Required()}}};
}

OptionTable Checkpoint(ModelOptions& model, const char* name) {
  return {{name,
           &model.checkpoint,
           "checkpoint, directory of a job's checkpoints, Hugging Face directory, or Megatron-LM "
           "checkpoint",
           {Required()}}};
}

OptionTable ModelUse(ModelOptions& model) {
  return {{"--context",
           &model.context,
           "context length in tokens, at most the model's own (the default)",
           {Accepts(CLI::Range(1, 1 << 24))}},
          {"--tokenizer", &model.tokenizer,
           "bytes, or the file or directory of a tokenizer (default: the model's)"}};
}

OptionTable Model(ModelOptions& model) {
  return Join({Checkpoint(model, "--checkpoint"), ModelUse(model)});
}

OptionTable TextKey(std::string* key) {
  return {{"--text-key", key, "key of the text in .jsonl lines (default text)"}};
}

// ---- the verbs ----

void DeclareRunVerbs(CommandLine& line) {
  line.AddVerb<RunOptions>(
      {"run", "train on this machine and follow the job",
       "run job.yaml --ranks 4 --state-dir ./state"},
      Run, [](GlobalOptions& g, RunOptions& o) {
        return Join(
            {Format(g),
             JobFile(&o.job_file, &o.set),
             {{"--ranks",
               &o.ranks,
               "number of ranks (sets resources.ranks)",
               {Accepts(CLI::Range(1, 4096))}},
              {"--state-dir", &g.state_dir,
               "directory for jobs and checkpoints (default $XDG_STATE_HOME/tercio)"},
              {"--trace", &o.trace,
               "write a trace of one step of every rank to this file (Chrome, Perfetto)"},
              {"--trace-step", &o.trace_step, "step to trace", {Accepts(CLI::PositiveNumber)}}}});
      });
  line.AddVerb<ResumeOptions>(
      {"resume", "resume a failed or cancelled job and follow it",
       "resume --state-dir ./state --set training.steps=4000"},
      Resume, [](GlobalOptions& g, ResumeOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     JobIfAny(&o.job),
                     Changes(&o.set),
                     {{"--accept-data-change", &o.accept_data_change,
                       "resume even if the data differs from that of the checkpoint"},
                      {"--accept-change", &o.accept_change,
                       "resume even if model or seed differ from those of the checkpoints"},
                      {"--from-step",
                       &o.from_step,
                       "start from the checkpoint of this step; 0 starts from the beginning",
                       {Accepts(CLI::NonNegativeNumber)}}}});
      });
}

void DeclareSubmitAndGet(CommandLine& line) {
  line.AddVerb<SubmitOptions>(
      {"submit", "submit a job to the coordinator", "submit job.yaml --watch"}, Submit,
      [](GlobalOptions& g, SubmitOptions& o) {
        return Join({Format(g),
                     Reach(g),
                     JobFile(&o.job_file, &o.set),
                     {{"--watch", &o.watch, "follow the job until it ends"}}});
      });
  line.AddVerb<ListOptions>({"list", "list all jobs, newest first", "list -o json"}, List,
                            [](GlobalOptions& g, ListOptions&) {
                              return Join({Format(g), ReachJobs(g)});
                            });
  line.AddVerb<GetOptions>({"get", "show one job", "get job-1a2b3c4d -o json"}, Get,
                           [](GlobalOptions& g, GetOptions& o) {
                             return Join({Format(g), ReachJobs(g), Job(&o.job)});
                           });
}

void DeclareFollowers(CommandLine& line) {
  line.AddVerb<WatchOptions>(
      {"watch", "follow a job; exit with the job's exit code", "watch job-1a2b3c4d"}, Watch,
      [](GlobalOptions& g, WatchOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     Job(&o.job),
                     {{"--plain", &o.plain, "print one line of progress, even on a terminal"}}});
      });
  line.AddVerb<WaitOptions>(
      {"wait", "wait until a job has ended; exit with the job's exit code",
       "wait job-1a2b3c4d --timeout 10m"},
      Wait, [](GlobalOptions& g, WaitOptions& o) {
        return Join(
            {Format(g), Reach(g), Job(&o.job),
             Timeout(&o.timeout_seconds, "give up after this long (exit 6); 0 checks once")});
      });
  line.AddVerb<HistoryOptions>(
      {"history", "print one line per step", "history job-1a2b3c4d -o jsonl"}, History,
      [](GlobalOptions& g, HistoryOptions& o) {
        return Join(
            {Format(g),
             ReachJobs(g),
             Job(&o.job),
             {{"--all-attempts", &o.all_attempts, "include the steps that a restart repeated"}},
             FollowsToTheEnd(&o.follow)});
      });
  line.AddVerb<EventsOptions>(
      {"events", "print the events of a job, or of all jobs", "events job-1a2b3c4d"}, Events,
      [](GlobalOptions& g, EventsOptions& o) {
        return Join({Format(g), ReachJobs(g), JobIfAny(&o.job), FollowsToTheEnd(&o.follow)});
      });
  line.AddVerb<LogsOptions>(
      {"logs", "print the output of the trainers", "logs job-1a2b3c4d --rank 0 --since 5m"}, Logs,
      [](GlobalOptions& g, LogsOptions& o) {
        return Join(
            {Format(g),
             ReachJobs(g),
             Job(&o.job),
             {{"--rank",
               &o.ranks,
               "only these ranks, such as 0 or 0,3",
               {SplitsAtCommas(), Accepts(CLI::NonNegativeNumber)}},
              {"--since", &o.since,
               "only lines since then: 5m (five minutes ago) or 2026-05-01T12:00:00Z"},
              {"--level",
               &o.level,
               "only this level and above",
               {Accepts(CLI::IsMember({"info", "warning", "error"}))}},
              {"--attempt", &o.attempt, "only this attempt", {Accepts(CLI::PositiveNumber)}},
              {"--tail", &o.tail, "only the last N lines", {Accepts(CLI::PositiveNumber)}}},
             FollowsToTheEnd(&o.follow)});
      });
}

void DeclareInterventions(CommandLine& line) {
  line.AddVerb<CancelOptions>(
      {"cancel", "save a checkpoint and stop a job", "cancel job-1a2b3c4d"}, Cancel,
      [](GlobalOptions& g, CancelOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     Job(&o.job),
                     {{"--no-save", &o.no_save, "stop without saving a checkpoint"}}});
      });
  line.AddVerb<DeleteOptions>(
      {"delete", "delete a job that has ended, with its history and logs",
       "delete job-1a2b3c4d --checkpoints"},
      Delete, [](GlobalOptions& g, DeleteOptions& o) {
        return Join({Format(g),
                     Reach(g),
                     Job(&o.job),
                     {{"--checkpoints", &o.checkpoints, "delete its checkpoints too"}}});
      });
  line.AddVerb<DrillOptions>(
      {"drill", "inject a fault into a running job and measure how it recovers",
       "drill job-1a2b3c4d --fault kill-trainer --rank 3"},
      Drill, [](GlobalOptions& g, DrillOptions& o) {
        return Join({Format(g),
                     Reach(g),
                     Job(&o.job),
                     {{"--fault",
                       &o.fault,
                       "kill-trainer, freeze-trainer, kill-agent, flip-bit, slow-rank, "
                       "partition-node, corrupt-checkpoint, full-disk",
                       {Required()}},
                      {"--rank",
                       &o.rank,
                       "rank whose trainer or node is hit (default 0)",
                       {Accepts(CLI::NonNegativeNumber)}},
                      {"--seconds",
                       &o.seconds,
                       "duration of a fault that ends by itself",
                       {Accepts(Between(0.001, 1e9))}}},
                     Timeout(&o.timeout_seconds, "give up after this long (exit 6; default 10m)")});
      });
}

void DeclareNodeVerbs(CommandLine& line) {
  CLI::App* nodes =
      line.AddVerb<NodesOptions>({"nodes", "list the nodes of the cluster", "nodes -o json"}, Nodes,
                                 [](GlobalOptions& g, NodesOptions&) {
                                   return Join({Format(g), Reach(g)});
                                 });
  nodes->require_subcommand(0, 1);
  const auto declare = [](GlobalOptions& g, NodeOptions& o) {
    return Join({Format(g), Reach(g), {{"node", &o.node, "node name", {Required()}}}});
  };
  line.AddVerb<NodeOptions>(
      {"drain", "move jobs to other nodes after a checkpoint; schedule no new ranks here",
       "nodes drain node-7"},
      NodesDrain, declare, nodes);
  line.AddVerb<NodeOptions>({"undrain", "make the node schedulable again", "nodes undrain node-7"},
                            NodesUndrain, declare, nodes);
  line.AddVerb<NodeOptions>({"release", "release the node from quarantine", "nodes release node-7"},
                            NodesRelease, declare, nodes);
}

void DeclareReportVerbs(CommandLine& line) {
  line.AddVerb<PlotOptions>(
      {"plot", "plot the curves of jobs over each other as SVG",
       "plot job-1a2b3c4d other.jsonl --output loss.svg --metric loss,throughput"},
      Plot, [](GlobalOptions& g, PlotOptions& o) {
        return Join(
            {ReachJobs(g),
             Jobs(&o.jobs,
                  "job ids or names, or files written by `tercio history -o jsonl` (FILE.jsonl)"),
             ShortFormat(g),
             {{"--output", &o.file, "file to write; - writes to standard output", {Required()}},
              {"--metric",
               &o.metrics,
               "loss, validation_loss, validation_accuracy, validation_precision, "
               "validation_recall, validation_f1, rewards_chosen, rewards_rejected, "
               "rewards_margin, rewards_accuracy, logps_chosen, logps_rejected, kl, teacher_kl, "
               "cross_entropy, throughput, step_seconds, memory, grad_norm, "
               "learning_rate: one or more, separated by commas (default loss,throughput)",
               {SplitsAtCommas(), Repeats()}},
              {"--x", &o.x, "x axis: step, tokens or time (default step)"},
              {"--smooth",
               &o.smooth,
               "average the curves over this many steps",
               {Accepts(CLI::Range(1, 1'000'000))}},
              {"--log", &o.logarithmic, "logarithmic y axes"}}});
      });
  line.AddVerb<DiffOptions>(
      {"diff", "compare two jobs: configuration, plan, results",
       "diff job-1a2b3c4d job-5e6f7a8b -o json"},
      Diff, [](GlobalOptions& g, DiffOptions& o) {
        return Join({Format(g), ReachJobs(g), Jobs(&o.jobs, "two job ids or names")});
      });
  line.AddVerb<ReportOptions>(
      {"report", "write an HTML report on a job, or on several jobs side by side",
       "report job-1a2b3c4d job-5e6f7a8b --output report.html"},
      Report, [](GlobalOptions& g, ReportOptions& o) {
        return Join({ReachJobs(g),
                     Jobs(&o.jobs, "job ids or names; the others are compared with the first"),
                     ShortFormat(g),
                     {{"--output",
                       &o.file,
                       "HTML file to write; - writes to standard output",
                       {Required()}}}});
      });
}

void DeclareCompare(CommandLine& line) {
  line.AddVerb<CompareOptions>(
      {"compare", "run the variants of an experiment one after the other and compare them",
       "compare experiment.yaml --output results"},
      Compare, [](GlobalOptions& g, CompareOptions& o) {
        return Join(
            {ShortFormat(g),
             {{"experiment_file", &o.experiment_file, "experiment file (YAML)", {Required()}},
              {"--output",
               &o.directory,
               "directory for the page, tables and figures",
               {Required()}},
              {"--repeat",
               &o.repeat,
               "run each variant this many times; numbers are medians (default 1)",
               {Accepts(CLI::Range(1, 100))}},
              {"--allow-different", &o.allow_different,
               "run variants although they train other models, on other data, or for longer"},
              {"--state-dir", &o.job_state,
               "directory for jobs and checkpoints (default: state in the output directory)"},
              {"--coordinator",
               &o.cluster,
               "HOST:PORT: run on the cluster of this coordinator instead of this machine",
               {Excludes("--state-dir")}}},
             Certificates(g)});
      });
}

void DeclareTune(CommandLine& line) {
  line.AddVerb<TuneOptions>(
      {"tune", "run the most promising layouts of a job for some steps each and keep the fastest",
       "tune job.yaml --budget 10m"},
      Tune, [](GlobalOptions& g, TuneOptions& o) {
        return Join({ShortFormat(g),
                     JobFile(&o.job_file, &o.set),
                     {{"--output", &o.directory,
                       "directory for what has run and the resulting job file (default tune)"},
                      {"--budget",
                       &o.budget,
                       "time for all trials together (default 10m)",
                       {Converted(InSeconds()), Accepts(CLI::PositiveNumber)}},
                      {"--steps",
                       &o.steps,
                       "steps of each trial (default 12)",
                       {Accepts(CLI::Range(2, 100000))}}}});
      });
}

void DeclareStoredCheckpoints(CommandLine& line, CLI::App* group) {
  line.AddVerb<CheckpointListOptions>(
      {"list", "list checkpoints, oldest first", "checkpoint list job-1a2b3c4d -o json"},
      CheckpointList,
      [](GlobalOptions& g, CheckpointListOptions& o) {
        return Join({Format(g), ReachJobs(g), Job(&o.job)});
      },
      group);
  line.AddVerb<CheckpointVerifyOptions>(
      {"verify", "read and verify every byte; exit 7 on damage",
       "checkpoint verify job-1a2b3c4d --step 500"},
      CheckpointVerify,
      [](GlobalOptions& g, CheckpointVerifyOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     Job(&o.job),
                     {{"--step",
                       &o.step,
                       "only the checkpoint of this step",
                       {Accepts(CLI::PositiveNumber)}}}});
      },
      group);
  line.AddVerb<CheckpointPruneOptions>(
      {"prune", "remove all checkpoints but the newest and those that keep_every keeps",
       "checkpoint prune job-1a2b3c4d --keep-last 1 --dry-run"},
      CheckpointPrune,
      [](GlobalOptions& g, CheckpointPruneOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     Job(&o.job),
                     {{"--keep-last",
                       &o.keep_last,
                       "number to keep (default: the job's keep_last)",
                       {Accepts(CLI::PositiveNumber)}},
                      {"--dry-run", &o.dry_run, "only print what would be removed"}}});
      },
      group);
  line.AddVerb<CheckpointNowOptions>(
      {"now", "save at the end of the current step; return when it is committed",
       "checkpoint now job-1a2b3c4d --timeout 5m"},
      CheckpointNow,
      [](GlobalOptions& g, CheckpointNowOptions& o) {
        return Join({Format(g), ReachJobs(g), Job(&o.job),
                     Timeout(&o.timeout_seconds,
                             "wait at most this long (default: the job's checkpoint.timeout)")});
      },
      group);
}

void DeclareCheckpointVerbs(CommandLine& line) {
  CLI::App* group = line.AddGroup(
      {"checkpoint", "manage the checkpoints of a job", "checkpoint list job-1a2b3c4d"},
      [](GlobalOptions& g) { return Format(g); });
  DeclareStoredCheckpoints(line, group);
  line.AddVerb<CheckpointImportOptions>(
      {"import", "convert a directory of transformers, Megatron-LM or peft to a checkpoint",
       "checkpoint import ./gpt2 --format hf --output ./gpt2.tercio"},
      CheckpointImport,
      [](GlobalOptions& g, CheckpointImportOptions& o) {
        return Join({{{"directory", &o.source, "directory to convert", {Required()}},
                      {"--base", &o.base, "model of an adapter (default: the one it names)"}},
                     ShortFormat(g),
                     Destination(&o.directory, &o.model_format)});
      },
      group);
  line.AddVerb<CheckpointExportOptions>(
      {"export", "convert a checkpoint to a directory of transformers, Megatron-LM or peft",
       "checkpoint export job-1a2b3c4d --format hf --output ./model"},
      CheckpointExport,
      [](GlobalOptions& g, CheckpointExportOptions& o) {
        return Join(
            {ReachJobs(g),
             {{"job", &o.job, "id or name of a job, or a checkpoint directory", {Required()}},
              {"--step",
               &o.step,
               "checkpoint of this step (default: the newest)",
               {Accepts(CLI::PositiveNumber)}}},
             ShortFormat(g),
             Destination(&o.directory, &o.model_format),
             {{"--max-shard-size", &o.max_shard_size,
               "maximum size of a weight file, such as 500MiB (default: 5GB); hf only"},
              {"--merge", &o.merge, "add an adapter to the weights, for a whole model; hf only"},
              {"--dtype", &o.dtype,
               "dtype of the weights: fp32, bf16 or fp16 (default: as imported from a Hugging Face "
               "directory, else fp32)"},
              {"--tensor",
               &o.tensor,
               "tensor degree of the files (default: 1); megatron only",
               {Accepts(CLI::Range(1, 1 << 16))}},
              {"--pipeline",
               &o.pipeline,
               "pipeline degree of the files (default: 1); megatron only",
               {Accepts(CLI::Range(1, 1 << 16))}},
              {"--layout",
               &o.layout,
               "names of the tensors: legacy (default) or core; megatron only",
               {Accepts(CLI::IsMember({"legacy", "core"}))}}}});
      },
      group);
}

void DeclareLogin(CommandLine& line) {
  line.AddVerb<LoginOptions>(
      {"login", "exchange a token for a certificate, which later verbs use for this coordinator",
       "login --coordinator train.example:7077 --token-file token"},
      Login, [](GlobalOptions& g, LoginOptions& o) {
        return Join(
            {Format(g),
             Reach(g),
             {{"--token-file", &o.token_file, "file with the token; - reads it from stdin"},
              {"--token", &o.token, "the token; other users may see it in the process list"},
              {"--enroll", &o.enroll,
               "HOST:PORT for enrolment (default: the port after the coordinator's)"},
              {"--check", &o.check, "only print the identity in use"}}});
      });
}

void DeclareDataVerbs(CommandLine& line) {
  CLI::App* group = line.AddGroup({"data", "create and inspect data sets", "data inspect corpus"},
                                  [](GlobalOptions& g) { return Format(g); });
  line.AddVerb<DataTokenizeOptions>(
      {"tokenize", "tokenize texts into PREFIX.bin and PREFIX.idx",
       "data tokenize --input corpus.txt --tokenizer chars --output corpus"},
      DataTokenize,
      // It prints no data, so it has no output format.
      [](GlobalOptions&, DataTokenizeOptions& o) {
        return Join(
            {{{"--input", &o.input, "text or .jsonl files: F[,F...], or a pattern", {Required()}},
              {"--tokenizer",
               &o.tokenizer,
               "bytes, chars, or a tokenizer file (PREFIX.tokenizer.json)",
               {Required()}},
              {"--output", &o.prefix, "PREFIX of the files to write", {Required()}},
              {"--threads",
               &o.threads,
               "number of threads (default: all cores)",
               {Accepts(CLI::Range(1, 1024))}}},
             TextKey(&o.text_key),
             {{"--skip-bad-lines", &o.skip_bad_lines,
               "skip and count .jsonl lines without a document instead of failing"},
              {"--append-eod", &o.append_eod, "append the end-of-text id to every document"},
              {"--split-sentences", &o.split_sentences,
               "index each sentence as a sequence of its own, for bert's sentence order"}}});
      },
      group);
  line.AddVerb<DataInspectOptions>(
      {"inspect", "print the size, dtype and vocabulary of a data set",
       "data inspect corpus -o json"},
      DataInspect,
      [](GlobalOptions& g, DataInspectOptions& o) {
        return Join({Format(g),
                     {{"prefix",
                       &o.prefix,
                       "PREFIX of a Megatron data set, an llm.c .bin, a .jsonl file, or a pattern",
                       {Required()}}},
                     TextKey(&o.text_key)});
      },
      group);
  line.AddVerb<DataPreviewOptions>(
      {"preview", "print the conversations of a job as the model learns from them",
       "data preview job.yaml --samples 1"},
      DataPreview,
      [](GlobalOptions& g, DataPreviewOptions& o) {
        return Join({Format(g),
                     JobFile(&o.job_file, &o.set),
                     {{"--samples",
                       &o.samples,
                       "number of samples (default 3)",
                       {Accepts(CLI::PositiveNumber)}},
                      {"--first",
                       &o.first,
                       "number of the first sample, from 1",
                       {Accepts(CLI::PositiveNumber)}}}});
      },
      group);
}

OptionTable GenerateTable(GlobalOptions& g, GenerateOptions& o) {
  return Join(
      {Format(g),
       Model(o),
       {{"--prompt", &o.prompt, "text to continue"},
        {"--prompt-ids",
         &o.prompt_ids,
         "token ids to continue, such as 1,2,3; needs no tokenizer",
         {SplitsAtCommas(), Repeats(), Excludes("--prompt")}},
        {"--prompts",
         &o.prompts,
         "file with a prompt on each line, or .jsonl objects with \"prompt\" or \"prompt_ids\"; "
         "prints a JSON object for each",
         {Excludes("--prompt"), Excludes("--prompt-ids")}},
        {"--batch",
         &o.batch,
         "prompts of the file to continue at once; does not change the texts",
         {Accepts(CLI::Range(1, 1024))}},
        {"--tokens", &o.tokens, "number of tokens to generate", {Accepts(CLI::Range(1, 1 << 20))}},
        {"--temperature",
         &o.temperature,
         "sampling temperature; 0 always takes the likeliest token",
         {Accepts(Between(0, 1e30))}},
        {"--top-k",
         &o.top_k,
         "sample among the k likeliest tokens; 0: all",
         {Accepts(CLI::NonNegativeNumber)}},
        {"--top-p",
         &o.top_p,
         "sample among the likeliest tokens that together have this probability",
         {Accepts(Between(0, 1))}},
        {"--seed",
         &o.seed,
         "random seed; the same seed gives the same text",
         {Accepts(CLI::NonNegativeNumber)}},
        {"--start-id",
         &o.start_id,
         "token id that a decoder begins with (default: the tokenizer's pad)",
         {Accepts(CLI::NonNegativeNumber)}},
        {"--end-id",
         &o.end_id,
         "token id that ends a decoder's answer (default: the tokenizer's end of text)",
         {Accepts(CLI::NonNegativeNumber)}}}});
}

OptionTable EvaluateTable(GlobalOptions& g, EvaluateOptions& o) {
  return Join({Format(g), Model(o), EvaluationRows(o)});
}

OptionTable ServeTable(GlobalOptions&, ServeOptions& o) {
  return Join({Checkpoint(o, "checkpoint"), ModelUse(o), ServeRows(o)});
}

void DeclareModelVerbs(CommandLine& line) {
  line.AddVerb<GenerateOptions>(
      {"generate", "continue a text", "generate --checkpoint DIR --prompt 'Once' --tokens 200"},
      Generate, GenerateTable);
  line.AddVerb<EvaluateOptions>({"evaluate", "measure how well a model predicts a text or classes",
                                 "evaluate --checkpoint DIR --data test.txt --metric perplexity"},
                                Evaluate, EvaluateTable);
  line.AddVerb<ServeOptions>({"serve", "answer OpenAI's API for completions and chats over HTTP",
                              "serve DIR --listen 127.0.0.1:8000 --slots 16"},
                             Serve, ServeTable);
}

void DeclarePlan(CommandLine& line) {
  line.AddVerb<PlanOptions>(
      {"plan", "list the possible layouts of a job and the one it gets", "plan job.yaml --ranks 8"},
      Plan, [](GlobalOptions& g, PlanOptions& o) {
        return Join({Format(g),
                     ReachJobs(g),
                     {{"job_file", &o.job_file, "job file (YAML); - reads it from stdin"}},
                     Changes(&o.set),
                     {{"--job", &o.job,
                       "instead of a job file: compare what was predicted for this job with what "
                       "it measured"},
                      {"--ranks",
                       &o.ranks,
                       "number of ranks (sets resources.ranks)",
                       {Accepts(CLI::Range(1, 65536))}},
                      {"--cluster", &o.cluster, "plan for the cluster that this file describes"},
                      {"--what-if",
                       &o.what_if,
                       "with --cluster: a figure that is changed, such as nic.bandwidth=50GB/s",
                       {Repeats()}},
                      {"--explain", &o.explain,
                       "with --cluster: only layouts such as 8x4x16,recompute=full (tensor x "
                       "pipeline x data; * for any)"},
                      {"--compare",
                       &o.compare,
                       "with --cluster: two such layouts, side by side",
                       {[](CLI::Option* option) { option->expected(2); }}},
                      {"--tokens",
                       &o.tokens,
                       "with --cluster: tokens of a run, whose days and cost are printed",
                       {Accepts(CLI::PositiveNumber)}},
                      {"--scale",
                       &o.scale,
                       "with --cluster: numbers of GPUs, each planned for (8,64,512)",
                       {SplitsAtCommas(), Accepts(CLI::Range(1, 1 << 20))}},
                      {"--weak", &o.weak, "with --scale: let the global batch grow with the GPUs"},
                      {"--largest", &o.largest,
                       "with --cluster: print the largest model of the job's family that fits with "
                       "each method"},
                      {"--simulate", &o.simulate,
                       "with --cluster: forecast a run of this length with failures, checkpoints "
                       "and restarts (30d)"},
                      {"--seed",
                       &o.seed,
                       "with --simulate: random seed (1); the same seed gives the same forecast",
                       {Accepts(CLI::NonNegativeNumber)}},
                      {"--svg", &o.svg,
                       "with --cluster: draw a step of the best layout, stage by stage, into this "
                       "file"},
                      {"--timeline", &o.timeline,
                       "with --cluster: write the same as a trace, as run --trace does"},
                      {"--effective", &o.effective, "print the complete job file instead"},
                      {"--explain-tensors", &o.explain_tensors,
                       "print each tensor's shape, its cut and the ranks that hold it instead"},
                      {"--program", &o.program,
                       "print what the ranks of each stage do in a step instead"}}});
      });
}

void DeclareMachineVerbs(CommandLine& line) {
  line.AddVerb<CompletionOptions>(
      {"completion", "print a completion script for a shell", "completion bash"}, Completion,
      [](GlobalOptions& g, CompletionOptions& o) {
        return Join({Format(g),
                     {{"shell",
                       &o.shell,
                       "bash, zsh or fish",
                       {Required(), Accepts(CLI::IsMember({"bash", "zsh", "fish"}))}}}});
      });
  line.AddVerb<DoctorOptions>(
      {"doctor", "check whether this machine can train; exit 7 if it cannot", "doctor -o json"},
      Doctor, [](GlobalOptions& g, DoctorOptions& o) {
        return Join({Format(g),
                     Reach(g),
                     {{"--state-dir", &o.directory,
                       "directory whose disk is tested (default $XDG_STATE_HOME/tercio)"},
                      {"--measure", &o.measure,
                       "measure this machine for the planner instead, keep the figures for plan, "
                       "run and tune here, and record them with the coordinator, if one is given"},
                      {"--threads", &o.threads, "cores to measure (default all)"},
                      {"--device",
                       &o.device,
                       "what to measure: auto, cpu or cuda",
                       {Accepts(CLI::IsMember({"auto", "cpu", "cuda"}))}},
                      {"--node", &o.node, "node whose figures they are (default this host)"}}});
      });
  line.AddVerb<VersionOptions>({"version", "print the version", "version"}, Version,
                               [](GlobalOptions& g, VersionOptions&) { return Format(g); });
}

struct ManualOptions : GlobalOptions {
  std::vector<std::string> verb;
  std::string directory;
};

// Manual pages. Hidden, since packages generate them for `man tercio`.
void DeclareMan(CommandLine& line) {
  CLI::App* command = line.AddVerb<ManualOptions>(
      {"man", "manual pages", ""},
      [&line](const ManualOptions& o) { return Man(line.app(), o.verb, o.directory); },
      [](GlobalOptions&, ManualOptions& o) {
        return OptionTable{
            {"verb", &o.verb, "verb to document (default: the program)"},
            {"--output", &o.directory, "write the pages of all verbs to this directory"}};
      });
  command->group("");
}

}  // namespace

void DeclareVerbs(CommandLine& line) {
  DeclareRunVerbs(line);
  DeclareSubmitAndGet(line);
  DeclareFollowers(line);
  DeclareInterventions(line);
  DeclareNodeVerbs(line);
  DeclareReportVerbs(line);
  DeclareCompare(line);
  DeclareTune(line);
  DeclareCheckpointVerbs(line);
  DeclareLogin(line);
  DeclareDataVerbs(line);
  DeclarePlan(line);
  DeclareModelVerbs(line);
  DeclareMachineVerbs(line);
  DeclareMan(line);
}

}  // namespace tercio::cli
