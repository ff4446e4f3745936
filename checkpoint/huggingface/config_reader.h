// Reads a map of a foreign config.json, and gathers its faults, so that one message names them all.
// A key that is null counts as missing, as in transformers. Pure.
//
// Threads: one at a time.
// Errors: DATA_LOSS when a value is missing or of a wrong type, else INVALID_ARGUMENT for a model
// that Tercio does not support or that nobody could compute.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {

class ConfigReader {
 public:
  // `path` names the map in messages. `json` must outlive the reader.
  ConfigReader(const nlohmann::json& json, std::string path)
      : json_(json), path_(std::move(path)) {}

  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  // The key is there, and says that there is no such value.
  bool IsNull(const char* key) const { return json_.contains(key) && json_[key].is_null(); }
  const nlohmann::json& Value(const char* key) const { return json_[key]; }
  const nlohmann::json& json() const { return json_; }
  const std::string& path() const { return path_; }

  // Whole numbers from 1. After a fault they are 1, so that the other faults of the file are found
  // as well.
  int32_t Size(const char* key);
  int32_t SizeOr(const char* key, int64_t fallback);
  double NumberOr(const char* key, double fallback, double least, double most);
  bool FlagOr(const char* key, bool fallback);
  std::string TextOr(const char* key, const std::string& fallback);

  // Tercio has the operation in one form only.
  void Only(const char* key, bool value, bool fallback);
  void OnlyText(const char* key, const std::string& fallback,
                const std::vector<std::string>& values);
  // It has none of these, whose keys are there only where a file uses them.
  void Without(std::initializer_list<const char*> keys);

  // Damage decides the kind of error even among other faults, since it puts the whole file in
  // doubt.
  void Damaged(const std::string& what);
  void Unsupported(const std::string& what);
  void Impossible(const std::string& what) { faults_.push_back(what); }

  // The faults of a map within this one, which names itself in them.
  void Add(const ConfigReader& inner);

  bool good() const { return faults_.empty(); }
  absl::Status status() const;

  // A value of an untrusted file, for a message.
  static std::string Shown(const nlohmann::json& value);

 private:
  const nlohmann::json& json_;
  std::string path_;
  std::vector<std::string> faults_;
  bool damaged_ = false;
};

}  // namespace tercio::checkpoint
