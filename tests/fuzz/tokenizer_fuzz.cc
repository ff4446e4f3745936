// Tokenizers: a byte that says which form, then the file. What is accepted encodes and decodes any
// text without a fault in memory, and survives its stored form.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/scratch.h"
#include "tokenizer/tokenizer.h"

namespace {

absl::StatusOr<tercio::tokenizer::Tokenizer> Read(uint8_t form, std::string_view content) {
  using tercio::tokenizer::Tokenizer;
  static const tercio::fuzz::Scratch scratch;
  switch (form % 4) {
    case 0:
      return Tokenizer::FromJson(content);
    case 1:
      return Tokenizer::Load(scratch.Write("tokenizer.json", content));
    case 2:
      return Tokenizer::Load(scratch.Write("x.model", content));
    default:
      return Tokenizer::Load(scratch.Write("vocab.txt", content));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tercio::fuzz::Expect;
  using tercio::tokenizer::Tokenizer;
  if (size < 1) return 0;
  const auto tokenizer = Read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!tokenizer.ok()) return 0;
  for (const std::string_view text :
       {"", " a", "The quick brown fox, 1984: don't.\n\n", "\xff\xc3\xa9\xe4\xb8\xad", "[MASK]x"}) {
    const auto ids = tokenizer->Encode(text);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) Expect(id >= 0 && id < tokenizer->vocab_size(), "ids are known");
    (void)tokenizer->Decode(*ids);
  }
  (void)tokenizer->WordContinuations();
  const std::string json = tokenizer->ToJson();
  const auto again = Tokenizer::FromJson(json);
  Expect(again.ok(), "the stored form can be read");
  Expect(again->ToJson() == json, "the stored form is the same again");
  return 0;
}
