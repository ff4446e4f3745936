#include "cli/completion.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/client.h"
#include "cli/format.h"
#include "cli/text.h"
#include "cli/usage.h"
#include "common/daemon/man_page.h"
#include "common/exit_codes.h"

namespace tercio::cli {
namespace {

// A person who presses Tab waits no longer than this; without names the rest is offered.
constexpr std::chrono::milliseconds kPatience(300);

bool IsWord(const std::string& text) {
  // Values are words like these; a sentence in a help text is none.
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return std::islower(static_cast<unsigned char>(letter)) ||
           std::isdigit(static_cast<unsigned char>(letter)) || letter == '-' || letter == '_';
  });
}

// Help texts list values: "bash, zsh or fish", "dtype of the weights: fp32, bf16 or fp16 (default:
// ...)".
std::vector<std::string> ValuesIn(const std::string& description) {
  for (std::string part :
       std::vector<std::string>(absl::StrSplit(description, absl::ByAnyChar(":;(")))) {
    part = absl::StrReplaceAll(part, {{", or ", ", "}, {" or ", ", "}});
    std::vector<std::string> values;
    for (const std::string& value : std::vector<std::string>(absl::StrSplit(part, ','))) {
      values.push_back(std::string(absl::StripAsciiWhitespace(value)));
    }
    // A single word is a sentence's beginning, not a list.
    if (values.size() > 1 && std::all_of(values.begin(), values.end(), IsWord)) return values;
  }
  return {};
}

// Options and arguments that are paths are recognised by their names.
// The parser has no type for paths.
bool IsPath(const std::string& name) {
  static const std::set<std::string> kPaths = {
      "job_file",     "directory",  "prefix",      "--state-dir", "--output",
      "--checkpoint", "--data",     "--input",     "--trace",     "--tls-ca",
      "--tls-key",    "--tls-cert", "--tokenizer", "--cluster",   "--config"};
  return kPaths.contains(name);
}

std::string NameOf(const CLI::Option& option) {
  // Long names are the ones that people recognise.
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) return "-" + option.get_snames().front();
  return option.get_name(true);
}

void Offer(const std::string& word, const std::string& description, const std::string& begun,
           Offers* completion) {
  if (absl::StartsWith(word, begun)) completion->candidates.push_back({word, description});
}

// CLI11 has the members of a set in the name of the type: "TEXT:{json,jsonl}".
void OfferValues(const CLI::Option& option, const std::string& begun, Offers* completion) {
  const std::string name = NameOf(option);
  std::vector<std::string> values;
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  if (open != std::string::npos) {
    // The braces hold the whole set, whatever the type is called.
    values = absl::StrSplit(type.substr(open + 1, type.rfind('}') - open - 1), ',');
  } else if (option.nonpositional()) {
    values = ValuesIn(option.get_description());
  }
  for (const std::string& value : values) Offer(value, "", begun, completion);
  // Files are offered only where nothing better is known.
  completion->files = values.empty() && IsPath(name);
  if (name == "job" || name == "jobs") completion->names = NameKind::kJob;
  // Files of steps may stand beside the names of jobs (plot).
  if (name == "jobs") completion->files = true;
  if (name == "node") completion->names = NameKind::kNode;
}

// Names go into a command line unquoted: those with characters that are special to shells are left
// out.
bool IsPlain(const std::string& name) {
  return !name.empty() && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char letter) {
           return std::isalnum(static_cast<unsigned char>(letter)) ||
                  absl::StrContains("._-", std::string(1, letter));
         });
}

std::string OneLine(std::string text) {
  // One candidate is one line of the protocol with the shell.
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return static_cast<unsigned char>(letter) < 0x20; }, ' ');
  return Printable(text);
}

void PrintCandidate(const std::string& word, const std::string& description,
                    const std::string& begun) {
  if (!IsPlain(word) || !absl::StartsWith(word, begun)) return;
  std::cout << word << "\t" << OneLine(description) << "\n";
}

// The options for reaching a coordinator among the words so far; the others do not matter here.
GlobalOptions ReachOf(const std::vector<std::string>& words) {
  GlobalOptions options;
  // The last word is the one that is being completed.
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--coordinator") options.coordinator = words[i + 1];
    if (words[i] == "--state-dir") options.state_dir = words[i + 1];
    if (words[i] == "--tls-cert") options.tls.certificate = words[i + 1];
    if (words[i] == "--tls-key") options.tls.key = words[i + 1];
    if (words[i] == "--tls-ca") options.tls.authority = words[i + 1];
  }
  return options;
}

void PrintNames(NameKind kind, const std::vector<std::string>& words) {
  const auto client = Client::Connect(ReachOf(words));
  if (!client.ok()) return;
  grpc::ClientContext context;
  // The coordinator may be far away or gone, and completion must not hang.
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const std::string& begun = words.back();
  if (kind == NameKind::kNode) {
    v1::NodesResponse nodes;
    if (!(*client)->stub().Nodes(&context, {}, &nodes).ok()) return;
    for (const v1::Node& node : nodes.nodes()) PrintCandidate(node.name(), node.state(), begun);
    return;
  }
  v1::ListResponse jobs;
  if (!(*client)->stub().List(&context, {}, &jobs).ok()) return;
  // A name that several jobs have is of no use on a command line.
  std::map<std::string, int> names;
  for (const v1::JobStatus& job : jobs.jobs()) ++names[job.name()];
  for (const v1::JobStatus& job : jobs.jobs()) {
    PrintCandidate(job.id(), absl::StrCat(job.name(), ", ", StateName(job.state())), begun);
    if (names[job.name()] == 1)
      PrintCandidate(job.name(), absl::StrCat(job.id(), ", ", StateName(job.state())), begun);
  }
}

// Nothing that waits may run here: the alarm interrupts any call.
void GiveUp(int) { _exit(0); }

}  // namespace

Offers Complete(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* verb = &app;
  const CLI::Option* waiting = nullptr;  // option whose value is next
  size_t positionals = 0;
  // All words but the last are complete.
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (waiting != nullptr) {
      waiting = nullptr;
      continue;
    }
    if (absl::StartsWith(word, "-")) {
      const CLI::Option* option = OptionNamed(*verb, word);
      // A flag takes no value, so that the next word is something else.
      if (option != nullptr && option->get_items_expected_max() > 0) waiting = option;
      continue;
    }
    const auto verbs = VerbsOf(*verb);
    const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const CLI::App* other) {
      return other->get_name() == word;
    });
    // After an argument a word is no verb, even where it has the name of one.
    if (found != verbs.end() && positionals == 0) {
      verb = *found;
    } else {
      ++positionals;
    }
  }
  Offers completion;
  const std::string begun = words.empty() ? "" : words.back();
  if (waiting != nullptr) {
    OfferValues(*waiting, begun, &completion);
    return completion;
  }
  if (absl::StartsWith(begun, "-")) {
    for (const CLI::Option* option : verb->get_options()) {
      // Hidden options are for programs.
      if (!option->nonpositional() || option->get_group().empty()) continue;
      for (const std::string& name : option->get_lnames()) {
        Offer("--" + name, option->get_description(), begun, &completion);
      }
    }
    return completion;
  }
  if (positionals == 0) {
    for (const CLI::App* other : VerbsOf(*verb))
      Offer(other->get_name(), other->get_description(), begun, &completion);
  }
  const auto places =
      verb->get_options([](const CLI::Option* option) { return option->get_positional(); });
  if (!places.empty()) {
    const CLI::Option* last = places.back();
    // An argument that may be repeated takes all further words.
    const bool more = positionals < places.size() || last->get_items_expected_max() > 1;
    if (more) OfferValues(*places[std::min(positionals, places.size() - 1)], begun, &completion);
  }
  return completion;
}

namespace {

// Each script calls `tercio __complete WORD...`, the last of which is incomplete.
constexpr char kBash[] = R"(# Completion of tercio for bash. To install it:
#   tercio completion bash > ~/.local/share/bash-completion/completions/tercio
_tercio() {
  local current="${COMP_WORDS[COMP_CWORD]}" line
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in
      :files)
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$current") ;;
      ?*) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _tercio tercio
)";

constexpr char kZsh[] = R"(#compdef tercio
# Completion of tercio for zsh. To install it: tercio completion zsh > DIR/_tercio, where DIR is in $fpath.
_tercio() {
  local line
  local -a found
  for line in "${(@f)$("${words[1]/#\~/$HOME}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case "$line" in
      :files) _files ;;
      ?*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  (( $#found )) && _describe tercio found
}
if [[ ${funcstack[1]} == _tercio ]]; then _tercio "$@"; else compdef _tercio tercio; fi
)";

constexpr char kFish[] = R"(# Completion of tercio for fish. To install it:
#   tercio completion fish > ~/.config/fish/completions/tercio.fish
function __tercio_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for line in (command $program __complete $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c tercio -f -a '(__tercio_complete)'
)";

}  // namespace

std::string CompletionScript(const std::string& shell) {
  return shell == "bash" ? kBash : shell == "fish" ? kFish : kZsh;
}

int PrintCompletion(const CLI::App& app, const std::vector<std::string>& words) {
  const Offers completion = Complete(app, words);
  // What is known without the coordinator is printed first, in case the alarm ends the rest.
  for (const Candidate& candidate : completion.candidates) {
    std::cout << candidate.word << "\t" << OneLine(candidate.description) << "\n";
  }
  if (completion.files) std::cout << ":files\n";
  std::cout.flush();
  if (completion.names == NameKind::kNone) return kExitOk;
  // Limits whatever the connection may block on: name resolution, certificates, a disk.
  std::signal(SIGALRM, GiveUp);
  const itimerval limit{{0, 0}, {0, std::chrono::microseconds(kPatience).count()}};
  setitimer(ITIMER_REAL, &limit, nullptr);
  PrintNames(completion.names, words);
  std::cout.flush();
  return kExitOk;
}

}  // namespace tercio::cli
