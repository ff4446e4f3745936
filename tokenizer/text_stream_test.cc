#include "tokenizer/text_stream.h"

#include "gtest/gtest.h"
#include "tokenizer/tokenizer.h"

namespace tercio::tokenizer {
namespace {

TextStream StreamAfter(const std::vector<int32_t>& before) {
  return TextStream([](absl::Span<const int32_t> ids) { return Tokenizer::Bytes().Decode(ids); },
                    before);
}

TEST(TextStream, PiecesEndWithWholeCharacters) {
  TextStream stream = StreamAfter({'a'});
  EXPECT_EQ(*stream.Add('b'), "b");
  // The euro sign has three bytes.
  EXPECT_EQ(*stream.Add(0xE2), "");
  EXPECT_EQ(*stream.Add(0x82), "");
  EXPECT_EQ(*stream.Add(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(*stream.Add('c'), "c");
  EXPECT_EQ(*stream.Finish(), "");
}

TEST(TextStream, TheEndShowsWhatWasHeldBack) {
  TextStream stream = StreamAfter({});
  EXPECT_EQ(*stream.Add(0xF0), "");
  EXPECT_EQ(*stream.Finish(), "\xF0");
}

}  // namespace
}  // namespace tercio::tokenizer
