#include "checkpoint/huggingface_tokenizer.h"

#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

std::string Utf8(uint32_t code_point) {
  std::string text;
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else {  // below 0x800: the byte alphabet ends at 323
    text += static_cast<char>(0xc0 | code_point >> 6);
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  }
  return text;
}

// GPT-2's alphabet of bytes: those that Latin-1 prints stand for themselves, the others follow from
// 256 in ascending order.
std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> alphabet;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printed = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    alphabet.push_back(Utf8(printed ? byte : next++));
  }
  return alphabet;
}

Json Frame(const Json& pre_tokenizer, const Json& decoder, const Json& model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", nullptr},
          {"decoder", decoder},
          {"model", model}};
}

Json BytesTokenizer() {
  Json vocabulary = Json::object();
  int id = 0;
  for (const std::string& character : ByteAlphabet()) vocabulary[character] = id++;
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  return Frame(level, level,
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", vocabulary},
                {"merges", Json::array()}});
}

// The length of a UTF-8 sequence by its first byte.
size_t SequenceBytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

Json CharsTokenizer(const std::string& characters) {
  Json vocabulary = Json::object();
  int id = 0;
  for (size_t at = 0; at < characters.size();) {
    const size_t bytes = SequenceBytes(characters[at]);
    vocabulary[characters.substr(at, bytes)] = id++;
    at += bytes;
  }
  return Frame({{"type", "Split"},
                {"pattern", {{"Regex", "[\\s\\S]"}}},
                {"behavior", "Isolated"},
                {"invert", false}},
               {{"type", "Fuse"}},
               {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}});
}

}  // namespace

std::optional<std::string> HuggingFaceTokenizer(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("kind")) return std::nullopt;
  if (json["kind"] == "bytes") return BytesTokenizer().dump(2) + "\n";
  if (json["kind"] == "chars" && json.contains("characters") && json["characters"].is_string()) {
    return CharsTokenizer(json["characters"].get<std::string>()).dump(2) + "\n";
  }
  return std::nullopt;
}

std::string HuggingFaceTokenizerConfig(int64_t context) {
  const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"model_max_length", context},
                     {"clean_up_tokenization_spaces", false}};
  return json.dump(2) + "\n";
}

}  // namespace tercio::checkpoint
