#include "tokenizer/text_stream.h"

#include <algorithm>

#include "common/status_macros.h"

namespace tercio::tokenizer {

bool EndsInsideCharacter(std::string_view text) {
  // The last byte of a sequence tells nothing; the first of it says how many follow.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return false;
    if (byte >= 0xC0) return back < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u);
  }
  return false;
}

absl::StatusOr<std::string> TextStream::Add(int32_t id) {
  ids_.push_back(id);
  return Next(Text::kContinues);
}

absl::StatusOr<std::string> TextStream::Finish() { return Next(Text::kHasEnded); }

absl::StatusOr<std::string> TextStream::Next(Text text) {
  // Only ids since the last but one output are decoded again, so that the cost of each is constant.
  const auto ids = absl::MakeConstSpan(ids_).subspan(begin_);
  TERCIO_ASSIGN_OR_RETURN(const std::string before, decode_(ids.subspan(0, shown_ - begin_)));
  TERCIO_ASSIGN_OR_RETURN(const std::string all, decode_(ids));
  // A token may be half a character.
  if (all.size() <= before.size() || (text == Text::kContinues && EndsInsideCharacter(all))) {
    return std::string();
  }
  begin_ = shown_;
  shown_ = ids_.size();
  return all.substr(before.size());
}

}  // namespace tercio::tokenizer
