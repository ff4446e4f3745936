#include "cli/usage.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon/man_page.h"
#include "common/nearest.h"

namespace tercio::cli {
namespace {

// CLI11's own look-up throws where there is none.
const CLI::App* FindVerb(const CLI::App& app, const std::string& word) {
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == word) return verb;
  }
  return nullptr;
}

std::vector<std::string> NamesOf(const std::vector<const CLI::App*>& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return names;
}

std::string NoSuchVerb(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = NamesOf(VerbsOf(app));
  const std::string meant = DidYouMean(word, names);
  return absl::StrCat(FullName(app), " has no verb '", word, "'",
                      // With few verbs it helps more to name them all.
                      !meant.empty() || app.get_parent() == nullptr
                          ? meant
                          : "; it has " + absl::StrJoin(names, ", "));
}

// "--name" of "--name=value", "-n" of "-nvalue".
std::string OptionIn(const std::string& word) {
  return absl::StartsWith(word, "--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

std::string NoSuchOption(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    // Short options are not suggested: any letter is near any other.
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  }
  return absl::StrCat(FullName(app), " has no option ", name, DidYouMean(name, names));
}

// A walk over words: the verb reached, and the fault of the first misplaced word.
struct Walk {
  const CLI::App* verb;
  std::string fault = {};
};

// The number of positional arguments of the verb; -1: any number.
int MostArguments(const CLI::App& verb) {
  int most = 0;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    // An argument that may be repeated takes all words.
    if (option->get_items_expected_max() > 1) return -1;
    ++most;
  }
  return most;
}

Walk Over(const CLI::App& app, const std::vector<std::string>& words) {
  Walk walk{&app};
  int arguments = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") return walk;  // the rest are arguments, whatever they look like
    // A single dash is an argument (standard input).
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = OptionIn(word);
      const CLI::Option* option = OptionNamed(*walk.verb, name);
      if (option == nullptr) return {walk.verb, NoSuchOption(*walk.verb, name)};
      if (option == walk.verb->get_help_ptr()) return walk;  // nothing else matters
      // An option's value is the next word, unless it was given with an equals sign.
      if (option->get_items_expected_max() > 0 && name == word) ++i;
      continue;
    }
    // A verb's name may also be an argument, but only after the verb was chosen.
    const CLI::App* next = arguments == 0 ? FindVerb(*walk.verb, word) : nullptr;
    if (next != nullptr) {
      walk.verb = next;
      continue;
    }
    const int most = MostArguments(*walk.verb);
    if (++arguments <= most || most < 0) continue;
    // A group without arguments can only have been given a verb that it does not have.
    if (most == 0 && !VerbsOf(*walk.verb).empty()) return {walk.verb, NoSuchVerb(*walk.verb, word)};
    return {walk.verb, absl::StrCat(FullName(*walk.verb), " does not take '", word, "'",
                                    most == 0 ? ": it takes no arguments" : "")};
  }
  // The program itself prints its help where nothing was given.
  if (walk.verb->get_require_subcommand_min() > 0 && walk.verb->get_parent() != nullptr) {
    walk.fault = absl::StrCat(FullName(*walk.verb),
                              " needs a verb: ", absl::StrJoin(NamesOf(VerbsOf(*walk.verb)), ", "));
  }
  return walk;
}

}  // namespace

std::string FullName(const CLI::App& verb) {
  return verb.get_parent() == nullptr
             ? verb.get_name()
             : absl::StrCat(FullName(*verb.get_parent()), " ", verb.get_name());
}

const CLI::Option* OptionNamed(const CLI::App& verb, const std::string& name) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->nonpositional() && option->check_name(name)) return option;
  }
  return nullptr;
}

std::string MisplacedWord(const CLI::App& app, const std::vector<std::string>& words) {
  return Over(app, words).fault;
}

const CLI::App& VerbNamed(const CLI::App& app, const std::vector<std::string>& words) {
  return *Over(app, words).verb;
}

}  // namespace tercio::cli
