// Reads a YAML tree key by key, remembers every fault with its place, and in the end names the keys
// that were never asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/names.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {

// All faults of one file, and of changes to it from the command line.
class Faults {
 public:
  explicit Faults(std::string file) : file_(std::move(file)) {}

  // From now on faults at a dotted key, or below it, are reported as of `place`, which is not in
  // the file.
  void Overridden(const std::string& key, const std::string& place);

  // line 0: not known. `key` may be empty.
  void Add(int line, const std::string& key, const std::string& what);
  bool empty() const { return lines_.empty(); }
  // In the order of their lines; faults without one come first.
  absl::Status ToStatus() const;

 private:
  std::string file_;
  std::vector<std::pair<std::string, std::string>> overridden_;
  std::vector<std::pair<int, std::string>> lines_;
};

// A map of the file; `path` is its dotted name, empty for the root. A missing map reads as an empty
// one, whose faults are at `line`: where it should be.
class Section {
 public:
  Section(YAML::Node node, std::string path, Faults* faults, int line = 0);

  bool Has(const std::string& key);
  // The node under a key, marked as known; undefined when missing or null.
  YAML::Node Get(const std::string& key);
  Section Child(const std::string& key);

  // The value, or `fallback` when the key is missing. Wrong types and values outside the range are
  // faults.
  std::string Text(const std::string& key, const std::string& fallback);
  std::string OneOf(const std::string& key, const std::string& fallback,
                    const std::vector<std::string>& values);
  // The same for a closed set.
  template <typename E>
  E OneOf(const std::string& key, E fallback) {
    const std::string word = OneOf(key, std::string(plan::NameOf(fallback)), plan::NamesOf<E>());
    return plan::Named<E>(word).value_or(fallback);
  }
  bool Flag(const std::string& key, bool fallback);
  int64_t Integer(const std::string& key, int64_t fallback, int64_t least,
                  int64_t most = int64_t{1} << 40);
  double Number(const std::string& key, double fallback, double least, double most);
  // 30s, 5m, 2h, or a number of seconds.
  double Seconds(const std::string& key, double fallback);

  void Fault(const std::string& key, const std::string& what);

  // Faults for keys that were never asked for, with the nearest that exists.
  void Finish();

 private:
  std::string Full(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  int LineOf(const std::string& key) const;
  template <typename T>
  std::optional<T> Scalar(const std::string& key, const char* expected);

  YAML::Node node_;
  std::string path_;
  Faults* faults_;
  int line_;
  std::set<std::string> known_;
};

// An absolute path: one that is relative begins in `directory`.
std::string ResolvePath(const std::string& text, const std::string& directory);

// "WHAT is not supported by this version": keys and values that are known, and refused.
std::string NotYet(const std::string& what);

}  // namespace tercio::config
