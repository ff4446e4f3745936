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
      : app_("Tercio trains transformer models over tensor, pipeline and data ranks.", "tercio") {
    app_.require_subcommand(1);
    app_.option_defaults()->take_last();
    app_.set_help_all_flag("--help-all", "help of every verb");
    app_.set_version_flag("--version", VersionLine(), "as `tercio version`");
  }

  CLI::App* Add(const std::string& name, const std::string& help, const std::string& example,
                Verb verb, CLI::App* parent = nullptr) {
    CLI::App* command = (parent == nullptr ? &app_ : parent)->add_subcommand(name, help);
    command->footer(absl::StrCat("Example:\n  tercio ", example));
    command->option_defaults()->take_last();
    command->add_option("-o,--output", options_.output, "json or jsonl for programs")
        ->check(CLI::IsMember({"json", "jsonl"}));
    // A group of verbs may have none of its own; its callback comes after those of its verbs.
    if (verb) {
      command->callback([this, command, verb = std::move(verb)] {
        if (command->get_subcommands().empty()) chosen_ = verb;
      });
    }
    return command;
  }

  // How a verb reaches the coordinator.
  void Reach(CLI::App* command, bool state_dir) {
    // Not by CLI11's envname: the variable would be filled in by verbs that were not chosen, too,
    // over what the chosen one was given.
    command->add_option("--coordinator", options_.coordinator,
                        "HOST:PORT (default $TERCIO_COORDINATOR, 127.0.0.1:7077)");
    command->add_option("--tls-cert", options_.tls.certificate, "PEM certificate");
    command->add_option("--tls-key", options_.tls.key, "PEM key");
    command->add_option("--tls-ca", options_.tls.authority, "PEM authority");
    if (state_dir) {
      command->add_option("--state-dir", options_.state_dir,
                          "work on the jobs of this directory, with or without a coordinator");
    }
  }

  void Timeout(CLI::App* command, const char* help) {
    command->add_option("--timeout", options_.timeout_seconds, help)
        ->transform(InSeconds())
        ->check(Between(0, std::numeric_limits<double>::max()));
  }

  void Job(CLI::App* command, bool required) {
    CLI::Option* job = command->add_option("job", options_.job, "id or name");
    if (required) job->required();
  }

  void JobFile(CLI::App* command) {
    command->add_option("job_file", options_.job_file, "job file (YAML); - reads it from stdin")
        ->required();
    Set(command);
  }

  void Set(CLI::App* command) {
    command->add_option("--set", options_.set, "KEY=VALUE, changes a key of the job")
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
                     "tokens the model looks at, at most its own context (the default)")
        ->check(CLI::Range(1, 1 << 24));
    command->add_option("--tokenizer", options_.tokenizer,
                        "bytes, or the file or directory of a tokenizer (default: the model's)");
  }

  // A verb whose --output is a file to write, "-" for standard output; -o is the output format, as
  // everywhere.
  void OutputFile(CLI::App* command, const char* help) {
    command->remove_option(command->get_option("--output"));
    command->add_option("-o", options_.output, "json or jsonl for programs")
        ->check(CLI::IsMember({"json", "jsonl"}));
    command->add_option("--output", options_.file, help)->required();
  }

  void Jobs(CLI::App* command, const char* help) {
    command->add_option("jobs", options_.jobs, help)
        ->required()
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  // A verb whose --output is a directory to make; -o is the output format, as everywhere.
  void Destination(CLI::App* command) {
    command->remove_option(command->get_option("--output"));
    command->add_option("-o", options_.output, "json or jsonl for programs")
        ->check(CLI::IsMember({"json", "jsonl"}));
    command->add_option("--output", options_.directory, "directory to make")->required();
    command->add_option("--format", options_.model_format, "hf (Hugging Face)")->required();
  }

  // Manual pages; hidden, since packages make them, and `man tercio` shows them.
  void AddMan() {
    CLI::App* command = app_.add_subcommand("man", "manual pages")->group("");
    command->add_option("verb", man_words_, "words of a verb; else the program");
    command->add_option("--output", options_.directory, "directory for the pages of all verbs");
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
      // CLI11 takes them from the end.
      app_.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::ParseError& error) {
      const std::string fault = MisplacedWord(app_, words);
      const bool wanted = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
      if (fault.empty() && wanted) return app_.exit(error) == 0 ? kExitOk : kExitInternal;
      const std::string verb = FullName(VerbNamed(app_, words));
      std::fprintf(stderr, "error: %s\n`%s --help` shows what there is\n",
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
    command->add_option("node", line.options().node, "name of the node")->required();
  };
  add("drain", "jobs save and go elsewhere; no new ranks", "nodes drain node-7", NodesDrain);
  add("undrain", "ranks may come again", "nodes undrain node-7", NodesUndrain);
  add("release", "out of quarantine", "nodes release node-7", NodesRelease);
}

void AddDrill(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("drill", "break something in a running job, and measure how it recovers",
               "drill job-1a2b3c4d --fault kill-trainer --rank 3", Drill);
  line.Reach(command, false);
  line.Job(command, true);
  command
      ->add_option("--fault", o.fault,
                   "kill-trainer, freeze-trainer, kill-agent, flip-bit, slow-rank, partition-node, "
                   "corrupt-checkpoint, full-disk")
      ->required();
  command->add_option("--rank", o.rank, "of this rank, or of its node (default 0)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seconds", o.fault_seconds, "how long a fault lasts that ends by itself")
      ->check(Between(0.001, 1e9));
  line.Timeout(command, "give up after this long (exit 6; default 10m)");
}

void AddJobVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("submit", "hand a job to the coordinator", "submit job.yaml --watch", Submit);
  line.Reach(command, false);
  line.JobFile(command);
  command->add_flag("--watch", o.watch, "follow it to its end");
  command = line.Add("list", "all jobs, newest first", "list -o json", List);
  line.Reach(command, true);
  command = line.Add("get", "one job", "get job-1a2b3c4d -o json", Get);
  line.Reach(command, true);
  line.Job(command, true);
  command =
      line.Add("watch", "follow a job; ends with the job's exit code", "watch job-1a2b3c4d", Watch);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--plain", o.plain, "one line, on a terminal too");
  command = line.Add("wait", "wait for a job; ends with the job's exit code",
                     "wait job-1a2b3c4d --timeout 10m", Wait);
  line.Reach(command, false);
  line.Job(command, true);
  line.Timeout(command, "give up after this long (exit 6); 0 only looks");
  command = line.Add("history", "one line per step", "history job-1a2b3c4d -o jsonl", History);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--all-attempts", o.all_attempts, "also steps that a restart has repeated");
  command->add_flag("-f,--follow", o.follow, "go on until the job ends");
  command = line.Add("events", "what happened", "events job-1a2b3c4d", Events);
  line.Reach(command, true);
  line.Job(command, false);
  command->add_flag("-f,--follow", o.follow, "go on until the job ends");
  command =
      line.Add("logs", "what the trainers wrote", "logs job-1a2b3c4d --rank 0 --since 5m", Logs);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--rank", o.log_ranks, "of these ranks, such as 0 or 0,3")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  command->add_option("--since", o.since, "from then on: 5m ago, or 2026-05-01T12:00:00Z");
  command->add_option("--level", o.log_level, "of this level and above")
      ->check(CLI::IsMember({"info", "warning", "error"}));
  command->add_option("--attempt", o.attempt, "of one attempt")->check(CLI::PositiveNumber);
  command->add_option("--tail", o.tail, "only the last lines")->check(CLI::PositiveNumber);
  command->add_flag("-f,--follow", o.follow, "go on until the job ends");
  command = line.Add("cancel", "save a checkpoint and stop a job", "cancel job-1a2b3c4d", Cancel);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_flag("--no-save", o.no_save, "without a last checkpoint");
  command = line.Add("delete", "remove a job that has ended, with its history and logs",
                     "delete job-1a2b3c4d --checkpoints", Delete);
  line.Reach(command, false);
  line.Job(command, true);
  command->add_flag("--checkpoints", o.with_checkpoints, "its checkpoints, too");
  AddDrill(line);
  command = line.Add("nodes", "the nodes of the cluster", "nodes -o json", Nodes);
  line.Reach(command, false);
  AddNodeVerbs(line, command);
}

void AddRunVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command = line.Add("run", "train on this machine, and follow",
                               "run job.yaml --ranks 4 --state-dir ./state", Run);
  line.JobFile(command);
  command->add_option("--ranks", o.ranks, "resources.ranks")->check(CLI::Range(1, 4096));
  command->add_option("--state-dir", o.state_dir,
                      "jobs and checkpoints (default $XDG_STATE_HOME/tercio)");
  command->add_option("--trace", o.trace,
                      "write what each rank does in one step to this file (Chrome, Perfetto)");
  command->add_option("--trace-step", o.trace_step, "the step that is traced")
      ->check(CLI::PositiveNumber);
  command = line.Add("resume", "go on with a failed or cancelled job, and follow",
                     "resume --state-dir ./state --set training.steps=4000", Resume);
  line.Reach(command, true);
  line.Job(command, false);
  line.Set(command);
  command->add_flag("--accept-data-change", o.accept_data_change,
                    "go on although the data is not what the checkpoint was made with");
  command->add_flag("--accept-change", o.accept_change,
                    "resume although model or seed are not those of the checkpoints");
  command
      ->add_option("--from-step", o.from_step,
                   "start from the checkpoint of this step; 0: from the beginning")
      ->check(CLI::NonNegativeNumber);
}

void AddReportVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("plot", "curves of jobs over each other, as SVG",
               "plot job-1a2b3c4d other.jsonl --output loss.svg --metric loss,throughput", Plot);
  line.Reach(command, true);
  line.Jobs(command, "ids or names, or files of `tercio history -o jsonl` (FILE.jsonl)");
  line.OutputFile(command, "file to write, - for standard output");
  command
      ->add_option(
          "--metric", o.metrics,
          "loss, validation_loss, throughput, step_seconds, memory, grad_norm, learning_rate: "
          "one or several, with commas (default loss,throughput)")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command->add_option("--x", o.x, "step, tokens or time (default step)");
  command->add_option("--smooth", o.smooth, "means over so many steps")
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--log", o.logarithmic, "logarithmic axes of values");
  command = line.Add("diff", "two jobs beside each other: configuration, plan, results",
                     "diff job-1a2b3c4d job-5e6f7a8b -o json", Diff);
  line.Reach(command, true);
  line.Jobs(command, "two ids or names");
  command = line.Add("report", "one page about a job, or several beside each other",
                     "report job-1a2b3c4d job-5e6f7a8b --output report.html", Report);
  line.Reach(command, true);
  line.Jobs(command, "ids or names; others are compared with the first");
  line.OutputFile(command, "HTML file to write, - for standard output");
}

void AddCheckpointVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* parent =
      line.Add("checkpoint", "checkpoints of a job", "checkpoint list job-1a2b3c4d", nullptr);
  parent->require_subcommand(1);
  CLI::App* command = line.Add("list", "oldest first", "checkpoint list job-1a2b3c4d -o json",
                               CheckpointList, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command = line.Add("verify", "read every byte; exit 7 when one is wrong",
                     "checkpoint verify job-1a2b3c4d --step 500", CheckpointVerify, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--step", o.step, "only that one")->check(CLI::PositiveNumber);
  command =
      line.Add("prune", "remove all but the newest ones, and those that keep_every keeps",
               "checkpoint prune job-1a2b3c4d --keep-last 1 --dry-run", CheckpointPrune, parent);
  line.Reach(command, true);
  line.Job(command, true);
  command->add_option("--keep-last", o.keep_last, "how many (default: the job's keep_last)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", o.dry_run, "only say which would go");
  command = line.Add("now", "save at the end of the running step; return when it is committed",
                     "checkpoint now job-1a2b3c4d --timeout 5m", CheckpointNow, parent);
  line.Reach(command, true);
  line.Job(command, true);
  line.Timeout(command, "wait at most this long (default: the job's checkpoint.timeout)");
  command = line.Add("import", "a Hugging Face directory becomes a checkpoint",
                     "checkpoint import ./gpt2 --format hf --output ./gpt2.tercio",
                     CheckpointImport, parent);
  command->add_option("directory", o.checkpoint, "Hugging Face directory")->required();
  line.Destination(command);
  command = line.Add("export", "a checkpoint becomes a directory that transformers loads",
                     "checkpoint export job-1a2b3c4d --format hf --output ./model",
                     CheckpointExport, parent);
  line.Reach(command, true);
  command->add_option("job", o.job, "id or name of a job, or a checkpoint directory")->required();
  command->add_option("--step", o.step, "only that one; else the newest")
      ->check(CLI::PositiveNumber);
  line.Destination(command);
  command->add_option("--max-shard-size", o.max_shard_size,
                      "largest weight file, as 5GB (the default) or 500MiB");
  command->add_option("--dtype", o.dtype,
                      "of the weights: fp32, bf16 or fp16 (default: as imported, else fp32)");
}

void AddLogin(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command =
      line.Add("login", "get a certificate for a token; later verbs find it by the coordinator",
               "login --coordinator train.example:7077 --token-file token", Login);
  line.Reach(command, false);
  command->add_option("--token-file", o.token_file, "file with the token; - reads it from stdin");
  command->add_option("--token", o.token, "the token; others may see it in the list of processes");
  command->add_option(
      "--enroll", o.enroll,
      "HOST:PORT of the enrolment port (default: the port after the coordinator's)");
  command->add_flag("--check", o.check, "only say who one is");
}

void AddDataVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* data = line.Add("data", "token data sets", "data inspect corpus", nullptr);
  data->require_subcommand(1);
  CLI::App* command = line.Add("tokenize", "texts become PREFIX.bin and PREFIX.idx",
                               "data tokenize --input corpus.txt --tokenizer chars --output corpus",
                               DataTokenize, data);
  command->add_option("--input", o.input, "text or .jsonl files: F[,F...], or a pattern")
      ->required();
  command
      ->add_option("--tokenizer", o.tokenizer,
                   "bytes, chars, or the file of a tokenizer (PREFIX.tokenizer.json)")
      ->required();
  // -o is the output format everywhere else: here --output names the result.
  command->remove_option(command->get_option("--output"));
  command->add_option("--output", o.prefix, "PREFIX of the files")->required();
  command->add_option("--threads", o.threads, "default: all cores")->check(CLI::Range(1, 1024));
  command->add_option("--text-key", o.text_key, "key of the text in .jsonl lines (default text)");
  command->add_flag("--skip-bad-lines", o.skip_bad_lines,
                    "count .jsonl lines that hold no document instead of ending there");
  command->add_flag("--append-eod", o.append_eod, "the end-of-text id after every document");
  command->add_flag("--split-sentences", o.split_sentences,
                    "each sentence is a sequence of the index, for bert's sentence order");
  command = line.Add("inspect", "what a data set holds", "data inspect corpus -o json", DataInspect,
                     data);
  command
      ->add_option("prefix", o.prefix,
                   "PREFIX of a Megatron data set, an llm.c .bin, a .jsonl file, or a pattern")
      ->required();
  command->add_option("--text-key", o.text_key, "key of the text in .jsonl lines (default text)");
}

void AddLocalVerbs(CommandLine& line) {
  Options& o = line.options();
  CLI::App* command = line.Add("plan", "which layouts a job can have, and which it gets",
                               "plan job.yaml --ranks 8", Plan);
  line.JobFile(command);
  command->add_option("--ranks", o.ranks, "resources.ranks")->check(CLI::Range(1, 65536));
  command->add_option("--cluster", o.cluster, "cluster file");
  command->add_flag("--effective", o.effective, "print the complete job instead");
  command = line.Add("generate", "continue a text",
                     "generate --checkpoint DIR --prompt 'Once' --tokens 200", Generate);
  line.Model(command);
  CLI::Option* prompt = command->add_option("--prompt", o.prompt, "text to continue");
  CLI::Option* ids = command->add_option("--prompt-ids", o.prompt_ids,
                                         "token ids to continue, as 1,2,3: needs no tokenizer");
  ids->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->excludes(prompt);
  command->add_option("--tokens", o.tokens, "how many to generate")->check(CLI::Range(1, 1 << 20));
  command->add_option("--temperature", o.temperature, "0: always the likeliest")
      ->check(Between(0, 1e30));
  command->add_option("--top-k", o.top_k, "only among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-p", o.top_p, "only among the likeliest of this probability together")
      ->check(Between(0, 1));
  command->add_option("--seed", o.seed, "same seed, same text")->check(CLI::NonNegativeNumber);
  command = line.Add("evaluate", "how well a model predicts a text, or classes",
                     "evaluate --checkpoint DIR --data test.txt --metric perplexity", Evaluate);
  line.Model(command);
  command->add_option("--data", o.data, "text or token files as for training, or labelled .jsonl")
      ->required();
  command->add_option("--metric", o.metric,
                      "perplexity, loss, last_word_accuracy; of a classifier accuracy, precision, "
                      "recall, f1");
  command
      ->add_option("--stride", o.stride,
                   "windows begin every so many tokens and overlap; default: the context")
      ->check(CLI::Range(1, 1 << 20));
  command = line.Add("completion", "completion for a shell", "completion bash", Completion);
  command->add_option("shell", o.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command = line.Add("doctor", "looks whether this machine can train; exit 7 when it cannot",
                     "doctor -o json", Doctor);
  line.Reach(command, false);
  command->add_option("--state-dir", o.directory,
                      "directory whose disk is tried (default $XDG_STATE_HOME/tercio)");
  line.Add("version", "the version of this program", "version", Version);
}

int Main(int argc, char** argv) {
  // `run` and `resume` block these and take them themselves; elsewhere the job goes on.
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
  // Not a verb of CLI11, which would take the words for its own options.
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
