// tercio: the command line.
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/completion.h"
#include "cli/man.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "common/daemon/daemon.h"
#include "common/daemon/flag_values.h"
#include "common/exit_codes.h"
#include "common/log.h"

namespace tercio::cli {
namespace {

using Verb = std::function<int(const Options&)>;

// The command line under construction: each verb with its options, help and an example.
class CommandLine {
 public:
  CommandLine()
      : app_("Tercio trains transformer models with tensor, pipeline and data parallelism.",
             "tercio") {
    app_.require_subcommand(1);
    app_.option_defaults()->take_last();
    app_.set_help_all_flag("--help-all", "print help for every verb and exit");
    app_.set_version_flag("--version", VersionLine(), "print the version and exit");
  }

  CLI::App* Add(const std::string& name, const std::string& help, const std::string& example,
                Verb verb, CLI::App* parent = nullptr) {
    CLI::App* command = (parent == nullptr ? &app_ : parent)->add_subcommand(name, help);
    command->footer(absl::StrCat("Example:\n  tercio ", example));
    command->option_defaults()->take_last();
    command->add_option("-o,--output", options_.output, "machine-readable output: json or jsonl")
        ->check(CLI::IsMember({"json", "jsonl"}));
    // A group of verbs may have no verb of its own; its callback is called after those of its
    // verbs.
    if (verb) {
      command->callback([this, command, verb = std::move(verb)] {
        if (command->get_subcommands().empty()) chosen_ = verb;
      });
    }
    return command;
  }

  // Options for reaching the coordinator.
  void Reach(CLI::App* command, bool state_dir) {
    // CLI11's envname is not used: it would apply the variable to verbs that were not chosen, too,
    // and overwrite the value given to the chosen one.
    command->add_option("--coordinator", options_.coordinator,
                        "HOST:PORT of the coordinator (default: $TERCIO_COORDINATOR, else the last "
                        "login, else 127.0.0.1:7077)");
    command->add_option("--tls-cert", options_.tls.certificate, "client certificate (PEM)");
    command->add_option("--tls-key", options_.tls.key, "private key of the certificate (PEM)");
    command->add_option("--tls-ca", options_.tls.authority, "certificate of the authority (PEM)");
    if (state_dir) {
      command->add_option(
          "--state-dir", options_.state_dir,
          "use the jobs in this state directory, with or without a running coordinator");
    }
  }

  void Timeout(CLI::App* command, const char* help) {
    command->add_option("--timeout", options_.timeout_seconds, help)
        ->transform(InSeconds())
        ->check(Between(0, std::numeric_limits<double>::max()));
  }

  void Job(CLI::App* command, bool required) {
    CLI::Option* job = command->add_option("job", options_.job, "job id or name");
    if (required) job->required();
  }

  void JobFile(CLI::App* command) {
    command->add_option("job_file", options_.job_file, "job file (YAML); - reads it from stdin")
        ->required();
    Set(command);
  }

  void Set(CLI::App* command) {
    command->add_option("--set", options_.set, "override a key of the job file: KEY=VALUE")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  }

  void Model(CLI::App* command) {
    command
        ->add_option("--checkpoint", options_.checkpoint,
                     "checkpoint, directory of a job's checkpoints, or Hugging Face directory")
        ->required();
    command
        ->add_option("--context", options_.context,
                     "context length in tokens, at most the model's own (the default)")
        ->check(CLI::Range(1, 1 << 24));
    command->add_option("--tokenizer", options_.tokenizer,
                        "bytes, or the file or directory of a tokenizer (default: the model's)");
  }

  // A verb whose --output is a file to write, "-" for standard output; -o is the output format, as
  // everywhere.
  void OutputFile(CLI::App* command, const char* help) {
    command->remove_option(command->get_option("--output"));
    command->add_option("-o", options_.output, "machine-readable output: json or jsonl")
        ->check(CLI::IsMember({"json", "jsonl"}));
    command->add_option("--output", options_.file, help)->required();
  }

  void Jobs(CLI::App* command, const char* help) {
    command->add_option("jobs", options_.jobs, help)
        ->required()
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  // A verb whose --output is a directory to create; -o is the output format, as everywhere.
  void Destination(CLI::App* command) {
    command->remove_option(command->get_option("--output"));
    command->add_option("-o", options_.output, "machine-readable output: json or jsonl")
        ->check(CLI::IsMember({"json", "jsonl"}));
    command->add_option("--output", options_.directory, "directory to create")->required();
    command->add_option("--format", options_.model_format, "hf (Hugging Face)")->required();
  }

  // Manual pages. Hidden, since packages generate them for `man tercio`.
  void AddMan() {
    CLI::App* command = app_.add_subcommand("man", "manual pages")->group("");
    command->add_option("verb", man_words_, "verb to document (default: the program)");
    command->add_option("--output", options_.directory,
                        "write the pages of all verbs to this directory");
    command->callback([this] {
      chosen_ = [this](const Options& options) { return Man(app_, man_words_, options.directory); };
    });
  }

  Options& options() { return options_; }
  const CLI::App& app() const { return app_; }

  // `words` are those after the program's name.
  int Parse(std::vector<std::string> words) {
    if (words.empty()) {
      std::fputs(app_.help().c_str(), stderr);
      return kExitUsage;
    }
    if (words[0] == "help") {  // `tercio help get` is `tercio get --help`
      words.erase(words.begin());
      words.push_back("--help");
    }
    try {
      // CLI11 takes the words in reverse order.
      app_.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::ParseError& error) {
      const std::string fault = MisplacedWord(app_, words);
      const bool wanted = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
      if (fault.empty() && wanted) return app_.exit(error) == 0 ? kExitOk : kExitInternal;
      const std::string verb = FullName(VerbNamed(app_, words));
      std::fprintf(stderr, "error: %s\nrun `%s --help` for usage\n",
                   fault.empty() ? absl::StrCat(verb, ": ", error.what()).c_str() : fault.c_str(),
                   verb.c_str());
      return kExitUsage;
    }
    return chosen_(options_);
  }

 private:
  CLI::App app_;
  Options options_;
  std::vector<std::string> man_words_;
  Verb chosen_;
};

void AddNodeVerbs(CommandLine& line, CLI::App* nodes) {
  nodes->require_subcommand(0, 1);
  const auto add = [&](const char* name, const char* help, const char* example, Verb verb) {
    CLI::App* command = line.Add(name, help, example, std::move(verb), nodes);
    line.Reach(command, false);
    command->add_option("node", line.options().node, "node name")->required();
  };
  add("drain", "move jobs to other nodes after a checkpoint; schedule no new ranks here",
      "nodes drain node-7", NodesDrain);
  add("undrain", "make the node schedulable again", "nodes undrain node-7", NodesUndrain);
  add("release", "release the node from quarantine", "nodes release node-7", NodesRelease);
}

void AddDrill(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("drill", "inject a fault into a running job and measure how it recovers",
               "drill job-1a2b3c4d --fault kill-trainer --rank 3", Drill);
  line.Reach(command, false);
  line.Job(command, true);
  command
      ->add_option("--fault", o.fault,
                   "kill-trainer, freeze-trainer, kill-agent, flip-bit, slow-rank, partition-node, "
                   "corrupt-checkpoint, full-disk")
      ->required();
  command->add_option("--rank", o.rank, "rank whose trainer or node is hit (default 0)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seconds", o.fault_seconds, "duration of a fault that ends by itself")
      ->check(Between(0.001, 1e9));
  line.Timeout(command, "give up after this long (exit 6; default 10m)");
}

void AddJobVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("submit", "submit a job to the coordinator", "submit job.yaml --watch", Submit);
  line.Reach(command, false);
  line.JobFile(command);
  command->add_flag("--watch", o.watch, "follow the job until it ends");
  command = line.Add("list", "list all jobs, newest first", "list -o json", List);
  line.Reach(command, true);
  command = line.Add("get", "show one job", "get job-1a2b3c4d -o json", Get);
  line.Reach(command, true);
  line.Job(command, true);
  command =
      line.Add("watch", "follow a job; exit with the job's exit code", "watch job-1a2b3c4d", Watch);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--plain", o.plain, "print one line of progress, even on a terminal");
  command = line.Add("wait", "wait until a job has ended; exit with the job's exit code",
                     "wait job-1a2b3c4d --timeout 10m", Wait);
  line.Reach(command, false);
  line.Job(command, true);
  line.Timeout(command, "give up after this long (exit 6); 0 checks once");
  command =
      line.Add("history", "print one line per step", "history job-1a2b3c4d -o jsonl", History);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--all-attempts", o.all_attempts, "include the steps that a restart repeated");
  command->add_flag("-f,--follow", o.follow, "keep printing until the job ends");
  command = line.Add("events", "print the events of a job, or of all jobs", "events job-1a2b3c4d",
                     Events);
  line.Reach(command, true);
  line.Job(command, false);
  command->add_flag("-f,--follow", o.follow, "keep printing until the job ends");
  command = line.Add("logs", "print the output of the trainers",
                     "logs job-1a2b3c4d --rank 0 --since 5m", Logs);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--rank", o.log_ranks, "only these ranks, such as 0 or 0,3")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  command->add_option("--since", o.since,
                      "only lines since then: 5m (five minutes ago) or 2026-05-01T12:00:00Z");
  command->add_option("--level", o.log_level, "only this level and above")
      ->check(CLI::IsMember({"info", "warning", "error"}));
  command->add_option("--attempt", o.attempt, "only this attempt")->check(CLI::PositiveNumber);
  command->add_option("--tail", o.tail, "only the last N lines")->check(CLI::PositiveNumber);
  command->add_flag("-f,--follow", o.follow, "keep printing until the job ends");
  command = line.Add("cancel", "save a checkpoint and stop a job", "cancel job-1a2b3c4d", Cancel);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--no-save", o.no_save, "stop without saving a checkpoint");
  command = line.Add("delete", "delete a job that has ended, with its history and logs",
                     "delete job-1a2b3c4d --checkpoints", Delete);
  line.Reach(command, false);
  line.Job(command, true);
  command->add_flag("--checkpoints", o.with_checkpoints, "delete its checkpoints too");
  AddDrill(line);
  command = line.Add("nodes", "list the nodes of the cluster", "nodes -o json", Nodes);
  line.Reach(command, false);
  AddNodeVerbs(line, command);
}

void AddRunVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command = line.Add("run", "train on this machine and follow the job",
                               "run job.yaml --ranks 4 --state-dir ./state", Run);
  line.JobFile(command);
  command->add_option("--ranks", o.ranks, "number of ranks (sets resources.ranks)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--state-dir", o.state_dir,
                      "directory for jobs and checkpoints (default $XDG_STATE_HOME/tercio)");
  command->add_option("--trace", o.trace,
                      "write a trace of one step of every rank to this file (Chrome, Perfetto)");
  command->add_option("--trace-step", o.trace_step, "step to trace")->check(CLI::PositiveNumber);
  command = line.Add("resume", "resume a failed or cancelled job and follow it",
                     "resume --state-dir ./state --set training.steps=4000", Resume);
  line.Reach(command, true);
  line.Job(command, false);
  line.Set(command);
  command->add_flag("--accept-data-change", o.accept_data_change,
                    "resume even if the data differs from that of the checkpoint");
  command->add_flag("--accept-change", o.accept_change,
                    "resume even if model or seed differ from those of the checkpoints");
  command
      ->add_option("--from-step", o.from_step,
                   "start from the checkpoint of this step; 0 starts from the beginning")
      ->check(CLI::NonNegativeNumber);
}

void AddReportVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("plot", "plot the curves of jobs over each other as SVG",
               "plot job-1a2b3c4d other.jsonl --output loss.svg --metric loss,throughput", Plot);
  line.Reach(command, true);
  line.Jobs(command,
            "job ids or names, or files written by `tercio history -o jsonl` (FILE.jsonl)");
  line.OutputFile(command, "file to write; - writes to standard output");
  command
      ->add_option(
          "--metric", o.metrics,
          "loss, validation_loss, throughput, step_seconds, memory, grad_norm, learning_rate: "
          "one or more, separated by commas (default loss,throughput)")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command->add_option("--x", o.x, "x axis: step, tokens or time (default step)");
  command->add_option("--smooth", o.smooth, "average the curves over this many steps")
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--log", o.logarithmic, "logarithmic y axes");
  command = line.Add("diff", "compare two jobs: configuration, plan, results",
                     "diff job-1a2b3c4d job-5e6f7a8b -o json", Diff);
  line.Reach(command, true);
  line.Jobs(command, "two job ids or names");
  command = line.Add("report", "write an HTML report on a job, or on several jobs side by side",
                     "report job-1a2b3c4d job-5e6f7a8b --output report.html", Report);
  line.Reach(command, true);
  line.Jobs(command, "job ids or names; the others are compared with the first");
  line.OutputFile(command, "HTML file to write; - writes to standard output");
}

void AddCheckpointVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* parent = line.Add("checkpoint", "manage the checkpoints of a job",
                              "checkpoint list job-1a2b3c4d", nullptr);
  parent->require_subcommand(1);
  CLI::App* command = line.Add("list", "list checkpoints, oldest first",
                               "checkpoint list job-1a2b3c4d -o json", CheckpointList, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command = line.Add("verify", "read and verify every byte; exit 7 on damage",
                     "checkpoint verify job-1a2b3c4d --step 500", CheckpointVerify, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--step", o.step, "only the checkpoint of this step")
      ->check(CLI::PositiveNumber);
  command =
      line.Add("prune", "remove all checkpoints but the newest and those that keep_every keeps",
               "checkpoint prune job-1a2b3c4d --keep-last 1 --dry-run", CheckpointPrune, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--keep-last", o.keep_last, "number to keep (default: the job's keep_last)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", o.dry_run, "only print what would be removed");
  command = line.Add("now", "save at the end of the current step; return when it is committed",
                     "checkpoint now job-1a2b3c4d --timeout 5m", CheckpointNow, parent);
  line.Reach(command, true);
  line.Job(command, true);
  line.Timeout(command, "wait at most this long (default: the job's checkpoint.timeout)");
  command = line.Add("import", "convert a Hugging Face directory to a checkpoint",
                     "checkpoint import ./gpt2 --format hf --output ./gpt2.tercio",
                     CheckpointImport, parent);
  command->add_option("directory", o.checkpoint, "Hugging Face directory")->required();
  line.Destination(command);
  command = line.Add("export", "convert a checkpoint to a directory that transformers loads",
                     "checkpoint export job-1a2b3c4d --format hf --output ./model",
                     CheckpointExport, parent);
  line.Reach(command, true);
  command->add_option("job", o.job, "id or name of a job, or a checkpoint directory")->required();
  command->add_option("--step", o.step, "checkpoint of this step (default: the newest)")
      ->check(CLI::PositiveNumber);
  line.Destination(command);
  command->add_option("--max-shard-size", o.max_shard_size,
                      "maximum size of a weight file, such as 500MiB (default: 5GB)");
  command->add_option("--dtype", o.dtype,
                      "dtype of the weights: fp32, bf16 or fp16 (default: as imported, else fp32)");
}

void AddLogin(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command = line.Add(
      "login", "exchange a token for a certificate, which later verbs use for this coordinator",
      "login --coordinator train.example:7077 --token-file token", Login);
  line.Reach(command, false);
  command->add_option("--token-file", o.token_file, "file with the token; - reads it from stdin");
  command->add_option("--token", o.token, "the token; other users may see it in the process list");
  command->add_option("--enroll", o.enroll,
                      "HOST:PORT for enrolment (default: the port after the coordinator's)");
  command->add_flag("--check", o.check, "only print the identity in use");
}

void AddDataVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* data =
      line.Add("data", "create and inspect token data sets", "data inspect corpus", nullptr);
  data->require_subcommand(1);
  CLI::App* command = line.Add("tokenize", "tokenize texts into PREFIX.bin and PREFIX.idx",
                               "data tokenize --input corpus.txt --tokenizer chars --output corpus",
                               DataTokenize, data);
  command->add_option("--input", o.input, "text or .jsonl files: F[,F...], or a pattern")
      ->required();
  command
      ->add_option("--tokenizer", o.tokenizer,
                   "bytes, chars, or a tokenizer file (PREFIX.tokenizer.json)")
      ->required();
  // -o is the output format everywhere else: here --output names the result.
  command->remove_option(command->get_option("--output"));
  command->add_option("--output", o.prefix, "PREFIX of the files to write")->required();
  command->add_option("--threads", o.threads, "number of threads (default: all cores)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--text-key", o.text_key, "key of the text in .jsonl lines (default text)");
  command->add_flag("--skip-bad-lines", o.skip_bad_lines,
                    "skip and count .jsonl lines without a document instead of failing");
  command->add_flag("--append-eod", o.append_eod, "append the end-of-text id to every document");
  command->add_flag("--split-sentences", o.split_sentences,
                    "index each sentence as a sequence of its own, for bert's sentence order");
  command = line.Add("inspect", "print the size, dtype and vocabulary of a data set",
                     "data inspect corpus -o json", DataInspect, data);
  command
      ->add_option("prefix", o.prefix,
                   "PREFIX of a Megatron data set, an llm.c .bin, a .jsonl file, or a pattern")
      ->required();
  command->add_option("--text-key", o.text_key, "key of the text in .jsonl lines (default text)");
}

void AddLocalVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command = line.Add("plan", "list the possible layouts of a job and the one it gets",
                               "plan job.yaml --ranks 8", Plan);
  line.JobFile(command);
  command->add_option("--ranks", o.ranks, "number of ranks (sets resources.ranks)")
      ->check(CLI::Range(1, 65536));
  command->add_option("--cluster", o.cluster, "cluster file");
  command->add_flag("--effective", o.effective, "print the complete job file instead");
  command = line.Add("generate", "continue a text",
                     "generate --checkpoint DIR --prompt 'Once' --tokens 200", Generate);
  line.Model(command);
  CLI::Option* prompt = command->add_option("--prompt", o.prompt, "text to continue");
  CLI::Option* ids = command->add_option(
      "--prompt-ids", o.prompt_ids, "token ids to continue, such as 1,2,3; needs no tokenizer");
  ids->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->excludes(prompt);
  command->add_option("--tokens", o.tokens, "number of tokens to generate")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--temperature", o.temperature,
                   "sampling temperature; 0 always takes the likeliest token")
      ->check(Between(0, 1e30));
  command->add_option("--top-k", o.top_k, "sample among the k likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--top-p", o.top_p,
                   "sample among the likeliest tokens that together have this probability")
      ->check(Between(0, 1));
  command->add_option("--seed", o.seed, "random seed; the same seed gives the same text")
      ->check(CLI::NonNegativeNumber);
  command = line.Add("evaluate", "measure how well a model predicts a text or classes",
                     "evaluate --checkpoint DIR --data test.txt --metric perplexity", Evaluate);
  line.Model(command);
  command->add_option("--data", o.data, "text or token files as for training, or labelled .jsonl")
      ->required();
  command->add_option("--metric", o.metric,
                      "perplexity, loss, last_word_accuracy; for classifiers accuracy, precision, "
                      "recall, f1");
  command
      ->add_option("--stride", o.stride,
                   "tokens from the start of a window to the start of the next; below the context, "
                   "windows overlap (default: the context)")
      ->check(CLI::Range(1, 1 << 20));
  command = line.Add("completion", "print a completion script for a shell", "completion bash",
                     Completion);
  command->add_option("shell", o.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command = line.Add("doctor", "check whether this machine can train; exit 7 if it cannot",
                     "doctor -o json", Doctor);
  line.Reach(command, false);
  command->add_option("--state-dir", o.directory,
                      "directory whose disk is tested (default $XDG_STATE_HOME/tercio)");
  line.Add("version", "print the version", "version", Version);
}

int Main(int argc, char** argv) {
  // `run` and `resume` block these signals and handle them themselves; for other verbs the job
  // continues.
  EndAtInterrupts();
  HoldStandardStreams();
  StandardOutput output;
  InitLogging("tercio");
  SetLogFormat(LogFormat::kText);
  CommandLine line;
  AddRunVerbs(line);
  AddJobVerbs(line);
  AddReportVerbs(line);
  AddCheckpointVerbs(line);
  AddLogin(line);
  AddDataVerbs(line);
  AddLocalVerbs(line);
  line.AddMan();
  std::vector<std::string> words(argv + 1, argv + argc);
  // Not a verb of CLI11, which would parse the words as its own options.
  if (!words.empty() && words[0] == "__complete") {
    words.erase(words.begin());
    return PrintCompletion(line.app(), words);
  }
  const int code = line.Parse(std::move(words));
  const absl::Status printed = output.Flush();
  if (printed.ok()) return code;
  const int lost = Fail(printed);
  return code == kExitOk ? lost : code;
}

}  // namespace
}  // namespace tercio::cli

int main(int argc, char** argv) { return tercio::cli::Main(argc, argv); }
