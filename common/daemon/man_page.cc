#include "common/daemon/man_page.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/version.h"

namespace tercio {
namespace {

// Text of troff: a backslash is its escape, a hyphen would become a typographic one, and a line
// that begins with a dot or a quote is a request.
std::string Troff(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  out = absl::StrReplaceAll(out, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  if (absl::StartsWith(out, ".") || absl::StartsWith(out, "'")) out.insert(0, "\\&");
  return out;
}

std::string Bold(const std::string& text) { return absl::StrCat("\\fB", Troff(text), "\\fR"); }
std::string Italic(const std::string& text) { return absl::StrCat("\\fI", Troff(text), "\\fR"); }

void Section(const char* name, std::string* page) { absl::StrAppend(page, ".SH ", name, "\n"); }

// Flags take none.
bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::string Value(const CLI::Option& option) {
  if (!TakesValue(option)) return "";
  // After a colon CLI11 has the check of a value: "TEXT:{json,jsonl}" is informative, "INT:INT in
  // [1 - 10]" repeats itself.
  const std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  const bool members = colon != std::string::npos && type.substr(colon + 1, 1) == "{";
  return absl::StrCat(" ", Italic(members ? type : type.substr(0, colon)));
}

// "-f, --follow", "-o TEXT:{json,jsonl}".
std::string Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold("--" + name));
  return absl::StrCat(absl::StrJoin(names, ", "), Value(option));
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app, bool positional) {
  return app.get_options([&](const CLI::Option* option) {
    // An empty group hides an option, also from the page.
    return !option->get_group().empty() &&
           (positional ? option->get_positional() : option->nonpositional());
  });
}

void AddSynopsis(const CLI::App& app, std::string* page) {
  Section("SYNOPSIS", page);
  std::vector<std::string> words;
  // The name of a verb begins with those of its parents.
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent())
    words.insert(words.begin(), at->get_name());
  // Hyphenation in a synopsis would look like an option.
  absl::StrAppend(page, ".nh\n", Bold(absl::StrJoin(words, " ")));
  for (const CLI::Option* option : OptionsOf(app, false)) {
    // Required options are part of every call, all others are summed up.
    if (option->get_required()) absl::StrAppend(page, " ", Names(*option));
  }
  absl::StrAppend(page, " [", Italic("OPTIONS"), "]");
  for (const CLI::Option* option : OptionsOf(app, true)) {
    const std::string name = absl::StrCat(Italic(option->get_name(true)),
                                          option->get_items_expected_max() > 1 ? "..." : "");
    absl::StrAppend(page, " ", option->get_required() ? name : absl::StrCat("[", name, "]"));
  }
  if (!VerbsOf(app).empty())
    absl::StrAppend(
        page, " ",
        app.get_require_subcommand_min() > 0 ? Italic("VERB") : "[" + Italic("VERB") + "]");
  *page += "\n.hy\n";
}

void AddOptions(const CLI::App& app, std::string* page) {
  const auto add = [&](const std::string& head, const CLI::Option& option) {
    absl::StrAppend(
        page, ".TP\n", head, "\n",
        Troff(option.get_description().empty() ? "See above." : option.get_description()));
    if (!option.get_default_str().empty())
      absl::StrAppend(page, " (default: ", Troff(option.get_default_str()), ")");
    if (!option.get_envname().empty())
      absl::StrAppend(page, " [", Troff(option.get_envname()), "]");
    *page += "\n";
  };
  const auto positionals = OptionsOf(app, true);
  if (!positionals.empty()) Section("ARGUMENTS", page);
  for (const CLI::Option* option : positionals) add(Italic(option->get_name(true)), *option);
  const auto options = OptionsOf(app, false);
  if (!options.empty()) Section("OPTIONS", page);
  for (const CLI::Option* option : options) add(Names(*option), *option);
}

void AddExitStatus(int section, std::string* page) {
  struct Status {
    const char* code;
    const char* meaning;
  };
  // The codes are those of common/exit_codes.h, which scripts rely on.
  constexpr Status kOfVerbs[] = {
      {"0", "Success."},
      {"1", "The job failed."},
      {"2", "Wrong usage, invalid configuration or data, or a feature that this version lacks."},
      {"3", "Not found."},
      {"4", "Not authenticated, or forbidden."},
      {"5", "The coordinator cannot be reached."},
      {"6", "Timed out."},
      {"7",
       "A conflict: port in use, directory locked or unwritable, disk full, damaged checkpoint, "
       "wrong state."},
      {"8", "The job was cancelled."},
      {"9", "An internal error."},
      {"130, 143", "Interrupted, by SIGINT or SIGTERM."}};
  Section("EXIT STATUS", page);
  for (const Status& status : kOfVerbs) {
    const std::string code = status.code;
    // Daemons cannot end in these ways.
    if (section == 8 &&
        (code == "1" || code == "3" || code == "6" || code == "8" || code == "130, 143"))
      continue;
    absl::StrAppend(page, ".TP\n", Bold(code), "\n", Troff(status.meaning), "\n");
  }
}

void AddEnvironment(const CLI::App& app, const ManOptions& options, std::string* page) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const CLI::Option* option : OptionsOf(app, false)) {
    if (option->get_envname().empty()) continue;
    variables.emplace_back(
        option->get_envname(),
        absl::StrCat("Same as ", option->get_name(false, false), ", which takes precedence."));
  }
  // A variable of an option needs no second description.
  std::set<std::string> known;
  for (const auto& [name, meaning] : variables) known.insert(name);
  for (const auto& variable : options.environment) {
    if (known.insert(variable.first).second) variables.push_back(variable);
  }
  if (variables.empty()) return;
  Section("ENVIRONMENT", page);
  for (const auto& [name, meaning] : variables) {
    absl::StrAppend(page, ".TP\n", Bold(name), "\n", Troff(meaning), "\n");
  }
}

// The footer of --help: "Example:" and lines of two blanks.
void AddExamples(const CLI::App& app, std::string* page) {
  std::vector<std::string> lines;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(app.get_footer(), '\n'))) {
    // Two blanks mark a line as an example.
    if (absl::StartsWith(line, "  ")) lines.push_back(line.substr(2));
  }
  if (lines.empty()) return;
  Section("EXAMPLES", page);
  // Examples keep their line breaks.
  absl::StrAppend(page, ".nf\n");
  for (const std::string& line : lines) absl::StrAppend(page, Troff(line), "\n");
  absl::StrAppend(page, ".fi\n");
}

void AddSeeAlso(const CLI::App& app, const ManOptions& options, std::string* page) {
  std::vector<std::string> pages;
  const auto refer = [&](const std::string& name) {
    const size_t bracket = name.find('(');
    pages.push_back(absl::StrCat(Bold(name.substr(0, bracket)), name.substr(bracket)));
  };
  // A verb refers to its program, and the program to its verbs.
  if (app.get_parent() != nullptr)
    refer(absl::StrCat(ManName(*app.get_parent()), "(", options.section, ")"));
  for (const CLI::App* verb : VerbsOf(app))
    refer(absl::StrCat(ManName(*verb), "(", options.section, ")"));
  for (const std::string& name : options.see_also) refer(name);
  if (pages.empty()) return;
  Section("SEE ALSO", page);
  absl::StrAppend(page, absl::StrJoin(pages, ",\n"), "\n");
}

}  // namespace

std::string ManName(const CLI::App& app) {
  return app.get_parent() == nullptr
             ? app.get_name()
             : absl::StrCat(ManName(*app.get_parent()), "-", app.get_name());
}

std::vector<const CLI::App*> VerbsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

std::string ManPage(const CLI::App& app, const ManOptions& options) {
  const std::string name = ManName(app);
  std::string title = name;
  for (char& letter : title) letter = static_cast<char>(std::toupper(letter));
  // No date is written, so that equal versions have equal pages.
  std::string page = absl::StrCat(".TH ", Troff(title), " ", options.section, " \"\" \"Tercio ",
                                  kVersion, "\" \"Tercio\"\n");
  std::string description = app.get_description();
  Section("NAME", &page);
  std::string brief = description;
  // The line of a NAME section has no full stop, as whatis shows it.
  while (absl::EndsWith(brief, ".")) brief.pop_back();
  absl::StrAppend(&page, Troff(name), " \\- ", Troff(brief), "\n");
  AddSynopsis(app, &page);
  Section("DESCRIPTION", &page);
  absl::StrAppend(&page, Troff(description), absl::EndsWith(description, ".") ? "" : ".", "\n");
  const auto verbs = VerbsOf(app);
  for (const CLI::App* verb : verbs) {
    absl::StrAppend(&page, ".TP\n", Bold(verb->get_name()), "\n", Troff(verb->get_description()),
                    "\n");
  }
  AddOptions(app, &page);
  AddExitStatus(options.section, &page);
  AddEnvironment(app, options, &page);
  AddExamples(app, &page);
  AddSeeAlso(app, options, &page);
  return page;
}

}  // namespace tercio
