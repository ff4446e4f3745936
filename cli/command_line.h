// The mechanism of the command line: verbs, each with a table of its options. A row binds names and
// a help text to a member of the verb's own struct; help, completion, manual pages and the messages
// about misplaced words all come from the same tables, in their order.
//
// The rows of global options are bound to one GlobalOptions for all verbs, so that one given to a
// group counts for its verbs (`tercio nodes -o json drain node-7`).
//
// Threads: one. Ownership: it owns the structs that the rows are bound to.
// Errors: a row whose names are taken already is a fault of the program, which CLI11 throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/global_options.h"

namespace tercio::cli {

// Where the value goes; its type decides what is accepted and how help names it. A bool is a flag,
// which has no value.
using OptionValue = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                                 std::vector<int>*, std::vector<std::string>*>;

// A further property of an option.
using OptionRule = std::function<void(CLI::Option*)>;

OptionRule Required();
OptionRule Accepts(CLI::Validator check);
// The text is changed before it is checked and stored.
OptionRule Converted(CLI::Validator conversion);
// Every word counts, not only the last.
OptionRule TakesAll();
// Every occurrence counts, each with one value.
OptionRule Repeats();
// A word may hold several values: 1,2,3.
OptionRule SplitsAtCommas();
// Not together with this option, which an earlier row declares.
OptionRule Excludes(std::string other);

struct OptionRow {
  const char* names;  // "-f,--follow"; without dashes it is an argument
  OptionValue value;
  const char* help;
  std::vector<OptionRule> rules = {};
};
using OptionTable = std::vector<OptionRow>;

// The rows of all parts.
OptionTable Join(const std::vector<OptionTable>& parts);

struct VerbText {
  const char* name;
  const char* help;
  const char* example;  // without "tercio"; empty: none
};

class CommandLine {
 public:
  // `version` is what --version prints.
  explicit CommandLine(const std::string& version);

  // Adds a verb to the program, or to a verb that groups others. `Options` is its struct, derived
  // from GlobalOptions; `run` returns the exit code; `declare` binds the rows.
  template <typename Options>
  CLI::App* AddVerb(const VerbText& text, std::function<int(const Options&)> run,
                    const std::function<OptionTable(GlobalOptions&, Options&)>& declare,
                    CLI::App* group = nullptr) {
    static_assert(std::is_base_of_v<GlobalOptions, Options>);
    const auto options = std::make_shared<Options>();
    const OptionTable table = declare(global_, *options);
    return Add(text, table, group, [this, options, run = std::move(run)] {
      static_cast<GlobalOptions&>(*options) = global_;
      return run(*options);
    });
  }

  // Adds a verb that only groups others.
  CLI::App* AddGroup(const VerbText& text,
                     const std::function<OptionTable(GlobalOptions&)>& declare);

  const CLI::App& app() const { return app_; }

  // Parses the words after the program's name, and runs the verb that they name. Returns the exit
  // code; an error is then on stderr.
  int Run(std::vector<std::string> words);

 private:
  CLI::App* Add(const VerbText& text, const OptionTable& table, CLI::App* group,
                std::function<int()> run);

  CLI::App app_;
  GlobalOptions global_;
  std::function<int()> chosen_;
};

}  // namespace tercio::cli
