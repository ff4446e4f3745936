#include "data/chat/recognition.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "data/chat/template_names.h"

namespace tercio::data::chat {
namespace {

// SHA-256 of a published template's text without white space at its ends.
struct Published {
  std::string_view sha256;
  std::string_view name;
};
// tests/chat/fixtures/templates.json says where each comes from.
constexpr Published kPublished[] = {
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", "chatml"},
    {"58c1a1f04baa7adaeaba1f90267c3d57d9396f0c1f0129bdde9e76d3c6784af7", "chatml"},
    {"e8d5b5a546d3f19df16a5320c614fab05bdc4edd50e850f1afd947b503ea41cf", "llama2"},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "llama3"},
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", "llama3.1"},
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", "llama3.1"},
    {"4a10b5ac24d3568b26180966e8ce6cb751418564da69210c77278422855e3ee8", "alpaca"},
    {"66291cf0045c2425a3a667cf3cbb7af2b11f09e025c02f97245323ab79119362", "zephyr"},
    {"ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6", "gemma"},
    {"dcaee66df77bfbb789ec541fe713218da30225a526f1db97138fc39ee6dc56aa", "phi3"},
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", "qwen"},
    {"76824445ead161c5bf886e3f4d683007ef79f1b508d41f16cafaecc9ceab0361", "mistral"},
};

constexpr size_t kMostConfigBytes = size_t{16} << 20;  // some list a hundred thousand tokens

std::string WayOut() {
  return absl::StrCat("; name one with data.template: ",
                      absl::StrJoin(TemplateNames(), ", ", [](std::string* out, auto name) {
                        absl::StrAppend(out, absl::string_view(name.data(), name.size()));
                      }));
}

std::string DirectoryOf(const std::string& tokenizer) {
  std::error_code ignored;
  if (std::filesystem::is_directory(tokenizer, ignored)) return tokenizer;
  const std::filesystem::path parent = std::filesystem::path(tokenizer).parent_path();
  return parent.empty() ? "." : parent.string();
}

// A list of templates with names has the one for chats under "default".
const Json* DefaultOf(const Json& value) {
  if (!value.is_array()) return &value;
  for (const Json& entry : value) {
    if (entry.is_object() && entry.contains("name") && entry["name"] == "default" &&
        entry.contains("template")) {
      return &entry["template"];
    }
  }
  return nullptr;
}

absl::StatusOr<std::string> JinjaOf(const std::string& directory) {
  // The file counts where there are both, as with transformers.
  const std::string file = directory + "/chat_template.jinja";
  if (PathExists(file)) return ReadInput(file, kMostConfigBytes);
  const std::string config = directory + "/tokenizer_config.json";
  if (!PathExists(config)) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": the tokenizer comes with no chat template (no ",
                     "tokenizer_config.json, no chat_template.jinja)", WayOut()));
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(config, kMostConfigBytes));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(config, ": not a JSON object", WayOut()));
  }
  if (!json.contains("chat_template") || json["chat_template"].is_null()) {
    return absl::NotFoundError(absl::StrCat(config, ": has no chat_template", WayOut()));
  }
  const Json* const chosen = DefaultOf(json["chat_template"]);
  if (chosen == nullptr || !chosen->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config, ": chat_template is neither a text nor a list with one called ",
                     "'default'", WayOut()));
  }
  return chosen->get<std::string>();
}

}  // namespace

const Template* TemplateOfDigest(std::string_view sha256) {
  for (const Published& each : kPublished) {
    if (each.sha256 == sha256) return FindTemplate(each.name);
  }
  return nullptr;
}

const Template* RecogniseTemplate(std::string_view jinja) {
  const std::string_view text = Strip(jinja);
  const std::string digest =
      Sha256Hex(absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{"\r\n", "\n"}}));
  return TemplateOfDigest(digest);
}

absl::StatusOr<const Template*> TemplateOfTokenizer(const std::string& tokenizer) {
  if (tokenizer.empty() || tokenizer == "bytes" || tokenizer == "chars") {
    return absl::NotFoundError(absl::StrCat(tokenizer.empty()
                                                ? "the tokenizer of token files"
                                                : absl::StrCat("the tokenizer '", tokenizer, "'"),
                                            " comes with no chat template", WayOut()));
  }
  const std::string directory = DirectoryOf(tokenizer);
  TERCIO_ASSIGN_OR_RETURN(const std::string jinja, JinjaOf(directory));
  if (const Template* found = RecogniseTemplate(jinja)) return found;
  return absl::InvalidArgumentError(absl::StrCat(
      directory, ": the tokenizer's chat template (", jinja.size(), " bytes, SHA-256 ",
      Sha256Hex(Strip(jinja)).substr(0, 12), "...) is none that Tercio knows", WayOut(),
      ", if its texts are right for this model (tercio data preview shows them)"));
}

}  // namespace tercio::data::chat
