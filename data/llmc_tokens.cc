#include "data/llmc_tokens.h"

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::data {
namespace {

// The header has 256 numbers in all versions, most of them 0.
constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

struct Kind {
  int32_t magic;
  int32_t version;
  TokenType type;
  const char* name;
};
// The numbers are those of llm.c's dataloader, which dates its magic numbers.
constexpr Kind kKinds[] = {{20240520, 1, TokenType::kUint16, "GPT-2"},
                           {20240801, 7, TokenType::kUint32, "Llama 3"}};

const Kind* KindOfMagic(int32_t magic) {
  for (const Kind& kind : kKinds) {
    if (kind.magic == magic) return &kind;
  }
  return nullptr;
}

int32_t HeaderField(std::string_view content, size_t index) {
  // The mapping is not a table of int32, so the number is copied out of it.
  int32_t value;
  std::memcpy(&value, content.data() + index * sizeof(value), sizeof(value));
  return value;
}

absl::Status TokensFault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<LlmcTokens> OpenLlmcTokens(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const std::string_view content = file->content();
  // Fields are only read after the file is known to hold all of the header.
  if (content.size() < kLlmcHeaderBytes) {
    return TokensFault(
        path, absl::StrCat("truncated: ", content.size(),
                           " bytes, but the header of an llm.c file has ", kLlmcHeaderBytes));
  }
  const Kind* kind = KindOfMagic(HeaderField(content, 0));
  if (kind == nullptr) {
    return TokensFault(path, absl::StrCat("magic ", HeaderField(content, 0),
                                          ", expected 20240520 (GPT-2) or 20240801 (Llama 3)"));
  }
  if (HeaderField(content, 1) != kind->version) {
    return TokensFault(path, absl::StrCat("version ", HeaderField(content, 1), ", expected ",
                                          kind->version, " in a ", kind->name, " file"));
  }
  const int32_t count = HeaderField(content, 2);
  // A count that disagrees with the size is how a download that broke off shows itself.
  const size_t bytes = content.size() - kLlmcHeaderBytes;
  if (count < 0 || static_cast<size_t>(count) * static_cast<size_t>(BytesOf(kind->type)) != bytes) {
    return TokensFault(
        path, absl::StrCat("the header counts ", count, " tokens of ", NameOf(kind->type), ", but ",
                           bytes, " bytes follow it; the file is truncated or damaged"));
  }
  return LlmcTokens{kind->type,
                    TokenDataset(file, content.data() + kLlmcHeaderBytes, kind->type, count)};
}

// A file that cannot be read is none of llm.c's; opening it reports the reason later.
bool IsLlmcFile(const std::string& path) {
  // Only the first bytes are read: mapping a file of any size would tell no more.
  std::ifstream file(path, std::ios::binary);
  int32_t magic = 0;
  file.read(reinterpret_cast<char*>(&magic), sizeof(magic));
  return file.gcount() == sizeof(magic) && KindOfMagic(magic) != nullptr;
}

}  // namespace tercio::data
