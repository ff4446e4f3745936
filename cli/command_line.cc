#include "cli/command_line.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/usage.h"
#include "common/exit_codes.h"

namespace tercio::cli {
namespace {

void AddOption(CLI::App* command, const OptionRow& row) {
  CLI::Option* option = std::visit(
      [&](auto* value) -> CLI::Option* {
        if constexpr (std::is_same_v<decltype(value), bool*>) {
          return command->add_flag(row.names, *value, row.help);
        } else {
          return command->add_option(row.names, *value, row.help);
        }
      },
      row.value);
  for (const OptionRule& rule : row.rules) rule(option);
}

}  // namespace

OptionRule Required() {
  return [](CLI::Option* option) { option->required(); };
}

OptionRule Accepts(CLI::Validator check) {
  return [check = std::move(check)](CLI::Option* option) { option->check(check); };
}

OptionRule Converted(CLI::Validator conversion) {
  return
      [conversion = std::move(conversion)](CLI::Option* option) { option->transform(conversion); };
}

OptionRule TakesAll() {
  return [](CLI::Option* option) { option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll); };
}

OptionRule Repeats() {
  return [](CLI::Option* option) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  };
}

OptionRule SplitsAtCommas() {
  return [](CLI::Option* option) { option->delimiter(','); };
}

OptionRule Excludes(std::string other) {
  return [other = std::move(other)](CLI::Option* option) { option->excludes(other); };
}

OptionTable Join(const std::vector<OptionTable>& parts) {
  OptionTable table;
  for (const OptionTable& part : parts) table.insert(table.end(), part.begin(), part.end());
  return table;
}

CommandLine::CommandLine(const std::string& version)
    : app_("Tercio trains transformer models with tensor, pipeline and data parallelism.",
           "tercio") {
  app_.require_subcommand(1);
  app_.option_defaults()->take_last();  // verbs inherit it
  app_.set_help_all_flag("--help-all", "print help for every verb and exit");
  app_.set_version_flag("--version", version, "print the version and exit");
}

CLI::App* CommandLine::AddGroup(const VerbText& text,
                                const std::function<OptionTable(GlobalOptions&)>& declare) {
  CLI::App* group = Add(text, declare(global_), nullptr, nullptr);
  group->require_subcommand(1);
  return group;
}

CLI::App* CommandLine::Add(const VerbText& text, const OptionTable& table, CLI::App* group,
                           std::function<int()> run) {
  CLI::App* command = (group == nullptr ? &app_ : group)->add_subcommand(text.name, text.help);
  const std::string example = text.example;
  if (!example.empty()) command->footer(absl::StrCat("Example:\n  tercio ", example));
  for (const OptionRow& row : table) AddOption(command, row);
  // A group may have no verb of its own; its callback is called after those of its verbs.
  if (run) {
    command->callback([this, command, run = std::move(run)] {
      if (command->get_subcommands().empty()) chosen_ = run;
    });
  }
  return command;
}

int CommandLine::Run(std::vector<std::string> words) {
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
  return chosen_();
}

}  // namespace tercio::cli
