#include "checkpoint/megatron/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kLargestId = 1 << 24;

// Raises *count above the id; false when it is no id.
bool CountId(const nlohmann::json& id, int64_t* count) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kLargestId)) {
    return false;
  }
  *count = std::max(*count, id.get<int64_t>() + 1);
  return true;
}

// Tokens with their ids, or in the order of their ids.
bool CountTokens(const nlohmann::json& vocabulary, int64_t* count) {
  if (vocabulary.is_array()) {
    *count = std::max(*count, static_cast<int64_t>(vocabulary.size()));
    return true;
  }
  return vocabulary.is_object() &&
         std::all_of(vocabulary.begin(), vocabulary.end(),
                     [count](const nlohmann::json& id) { return CountId(id, count); });
}

bool CountTokenizer(const nlohmann::json& root, int64_t* count) {
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object() ||
      !root["model"].contains("vocab") || !CountTokens(root["model"]["vocab"], count)) {
    return false;
  }
  if (!root.contains("added_tokens")) return true;
  const nlohmann::json& added = root["added_tokens"];
  return added.is_array() &&
         std::all_of(added.begin(), added.end(), [count](const nlohmann::json& token) {
           return token.is_object() && token.contains("id") && CountId(token["id"], count);
         });
}

}  // namespace

absl::StatusOr<int64_t> VocabularyBeside(const std::string& directory) {
  int64_t count = 0;
  for (const char* name : {"tokenizer.json", "vocab.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (!PathExists(path)) continue;
    TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool good = name[0] == 't' ? CountTokenizer(json, &count) : CountTokens(json, &count);
    if (good && count > 0) return count;
    return absl::DataLossError(absl::StrCat(path, ": not a file of a tokenizer"));
  }
  const std::string path = directory + "/vocab.txt";
  if (!PathExists(path)) return 0;
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  count = std::count(text.begin(), text.end(), '\n');
  // The last line may have no end.
  if (!text.empty() && text.back() != '\n') ++count;
  if (count > 0) return count;
  return absl::DataLossError(absl::StrCat(path, ": not a file of a tokenizer"));
}

}  // namespace tercio::checkpoint
