#include "data/indexed_dataset_writer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

template <typename T>
void AppendBytes(T value, std::string* out) {
  // The format is little-endian, as are all machines that the service runs on.
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Digest of the data that a block added, and of the other values of its line.
std::string DigestOfBlock(std::string_view tokens, std::string_view lengths, nlohmann::json line) {
  // The digest cannot cover itself, and a line that is read back has it.
  line.erase("sha256");
  Sha256 sha;
  sha.Update(tokens);
  sha.Update(lengths);
  // The note may name a file in any encoding, for which dump would throw otherwise.
  sha.Update(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return sha.HexDigest();
}

// A whole number of at least `least`; -1 if there is none.
int64_t NumberOf(const nlohmann::json& line, const char* key, int64_t least) {
  const auto found = line.find(key);
  // A line that cannot be trusted is not an error: the run continues before it.
  if (found == line.end() || !found->is_number_integer()) return -1;
  const int64_t value = found->get<int64_t>();
  return value >= least ? value : -1;
}

std::string StringOf(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

TokenType TokenTypeFor(int32_t vocab_size) {
  // Megatron's own rule, so that its tools read the files as if they had written them.
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Open(
    const std::string& prefix, TokenType type, const std::string& key) {
  std::unique_ptr<IndexedDatasetWriter> writer(new IndexedDatasetWriter(prefix, type));
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(writer->directory_)));
  // Two writers would mix their blocks; the second one fails at once instead of waiting.
  auto lock = FileLock::Acquire(writer->Part("lock"), WhenHeld::kFail);
  if (!lock.ok()) return AsConflict(lock.status());
  writer->lock_ = *std::move(lock);
  // Any difference in the header, the caller's key included, makes the old files useless.
  const std::string header =
      nlohmann::json(
          {{"format", "tercio-tokenize"}, {"version", 2}, {"dtype", NameOf(type)}, {"key", key}})
          .dump() +
      "\n";
  TERCIO_ASSIGN_OR_RETURN(const Kept kept, writer->Recover(header));
  // The files are cut back to what the journal vouches for: a crash may have left more of them.
  TERCIO_ASSIGN_OR_RETURN(writer->tokens_file_,
                          AppendFile::Open(writer->Part("tokens"), kept.token_bytes));
  TERCIO_ASSIGN_OR_RETURN(writer->lengths_file_,
                          AppendFile::Open(writer->Part("lengths"), 4 * kept.sequences));
  TERCIO_ASSIGN_OR_RETURN(writer->journal_,
                          AppendFile::Open(writer->Part("journal"), kept.journal_bytes));
  // The header is only appended; the first Commit syncs it together with its line.
  if (kept.journal_bytes == 0) TERCIO_RETURN_IF_ERROR(writer->journal_->Append(header));
  return writer;
}

absl::StatusOr<IndexedDatasetWriter::Kept> IndexedDatasetWriter::Recover(
    const std::string& header) {
  Kept kept;
  for (const char* name : {"tokens", "lengths", "journal"}) {
    // Without all three there is nothing to resume, and all of them begin empty.
    if (!PathExists(Part(name))) return kept;
  }
  TERCIO_ASSIGN_OR_RETURN(const auto tokens, MappedFile::Open(Part("tokens")));
  TERCIO_ASSIGN_OR_RETURN(const auto lengths, MappedFile::Open(Part("lengths")));
  TERCIO_ASSIGN_OR_RETURN(const auto journal, MappedFile::Open(Part("journal")));
  const std::string_view text = journal->content();
  // Nothing is kept of another content: all three files are cut to zero.
  if (text.substr(0, header.size()) != header) return kept;
  kept.journal_bytes = static_cast<int64_t>(header.size());
  while (true) {
    const size_t begin = static_cast<size_t>(kept.journal_bytes);
    const size_t end = text.find('\n', begin);
    // A line without its end was being written when the process died.
    if (end == std::string_view::npos) return kept;
    const std::string line(text.substr(begin, end - begin));
    if (!TakeBlock(line, tokens->content(), lengths->content(), &kept)) return kept;
    kept.journal_bytes = static_cast<int64_t>(end) + 1;
  }
}

// The sizes must not shrink and must lie within the files, since the digest is taken of the bytes
// between them.
bool IndexedDatasetWriter::TakeBlock(const std::string& text, std::string_view tokens,
                                     std::string_view lengths, Kept* kept) {
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return false;
  const int64_t token_bytes = NumberOf(line, "token_bytes", kept->token_bytes);
  const int64_t sequences = NumberOf(line, "sequences", kept->sequences);
  const int64_t documents = NumberOf(line, "documents", 0);
  const int64_t open_tokens = NumberOf(line, "open_tokens", 0);
  const int64_t open_sequences = NumberOf(line, "open_sequences", 0);
  if (std::min({token_bytes, sequences, documents, open_tokens, open_sequences}) < 0) return false;
  if (static_cast<uint64_t>(token_bytes) > tokens.size()) return false;
  if (static_cast<uint64_t>(sequences) > lengths.size() / 4) return false;
  const auto part = [](std::string_view all, int64_t from, int64_t to) {
    return all.substr(static_cast<size_t>(from), static_cast<size_t>(to - from));
  };
  const std::string digest = DigestOfBlock(part(tokens, kept->token_bytes, token_bytes),
                                           part(lengths, 4 * kept->sequences, 4 * sequences), line);
  if (digest != StringOf(line, "sha256")) return false;
  kept->token_bytes = token_bytes;
  kept->sequences = sequences;
  tokens_ = token_bytes / BytesOf(type_);
  sequences_ = sequences;
  documents_ = documents;
  open_tokens_ = open_tokens;
  open_sequences_ = open_sequences;
  resumed_note_ = StringOf(line, "note");
  return true;
}

absl::Status IndexedDatasetWriter::Append(absl::Span<const int32_t> ids) {
  open_tokens_ += static_cast<int64_t>(ids.size());
  // Lengths are int32 in the index, for which the sign is needed as well.
  if (open_tokens_ > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix_, ": sequence ", sequences_,
        " has more than 2^31-1 tokens, more than the format can represent; split the text"));
  }
  for (const int32_t id : ids) {
    if (type_ == TokenType::kUint16) {
      // The writer of the ids chose the type for its vocabulary, so another id is an error in it.
      TERCIO_CHECK(id >= 0 && id <= std::numeric_limits<uint16_t>::max());
      AppendBytes(static_cast<uint16_t>(id), &block_);
    } else {
      AppendBytes(id, &block_);
    }
  }
  tokens_ += static_cast<int64_t>(ids.size());
  return absl::OkStatus();
}

void IndexedDatasetWriter::EndSequence() {
  if (open_tokens_ == 0) return;
  const auto length = static_cast<int32_t>(open_tokens_);
  // The sign tells where documents begin, so that no second file of borders is needed.
  AppendBytes(open_sequences_ == 0 ? length : -length, &block_lengths_);
  if (open_sequences_++ == 0) ++documents_;
  open_tokens_ = 0;
  ++sequences_;
}

void IndexedDatasetWriter::EndDocument() {
  EndSequence();
  open_sequences_ = 0;
}

absl::Status IndexedDatasetWriter::Commit(const std::string& note) {
  // Data comes before the line that vouches for it, and is on the disk before the line is written.
  TERCIO_RETURN_IF_ERROR(tokens_file_->Append(block_));
  TERCIO_RETURN_IF_ERROR(lengths_file_->Append(block_lengths_));
  TERCIO_RETURN_IF_ERROR(tokens_file_->Sync());
  TERCIO_RETURN_IF_ERROR(lengths_file_->Sync());
  nlohmann::json line = {{"token_bytes", tokens_ * BytesOf(type_)},
                         {"sequences", sequences_},
                         {"documents", documents_},
                         {"open_tokens", open_tokens_},
                         {"open_sequences", open_sequences_},
                         {"note", note}};
  line["sha256"] = DigestOfBlock(block_, block_lengths_, line);
  TERCIO_RETURN_IF_ERROR(journal_->Append(line.dump() + "\n"));
  TERCIO_RETURN_IF_ERROR(journal_->Sync());
  block_.clear();
  block_lengths_.clear();
  return absl::OkStatus();
}

// The index is made from the lengths in one pass for each table, so it needs no memory for them.
absl::Status IndexedDatasetWriter::WriteIndex() const {
  constexpr size_t kBlock = 1 << 20;
  TERCIO_ASSIGN_OR_RETURN(const auto lengths, MappedFile::Open(Part("lengths")));
  TERCIO_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Open(Part("index"), 0));
  std::string bytes("MMIDIDX\0\0", 9);
  const auto spill = [&](size_t at_least) {
    if (bytes.size() < at_least) return absl::OkStatus();
    absl::Status status = file.Append(bytes);
    bytes.clear();
    return status;
  };
  AppendBytes<uint64_t>(1, &bytes);
  AppendBytes<uint8_t>(static_cast<uint8_t>(type_), &bytes);
  // The number of borders is one more than that of documents, for the end of the last.
  AppendBytes<uint64_t>(static_cast<uint64_t>(sequences_), &bytes);
  AppendBytes<uint64_t>(static_cast<uint64_t>(documents_) + 1, &bytes);
  const auto stored_length = [&lengths](int64_t sequence) {
    int32_t length;
    std::memcpy(&length, lengths->content().data() + 4 * sequence, sizeof(length));
    return length;
  };
  for (int64_t i = 0; i < sequences_; ++i) {
    AppendBytes<int32_t>(std::abs(stored_length(i)), &bytes);
    TERCIO_RETURN_IF_ERROR(spill(kBlock));
  }
  int64_t offset = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    AppendBytes<int64_t>(offset, &bytes);
    offset += int64_t{std::abs(stored_length(i))} * BytesOf(type_);
    TERCIO_RETURN_IF_ERROR(spill(kBlock));
  }
  for (int64_t i = 0; i < sequences_; ++i) {
    if (stored_length(i) > 0) AppendBytes<int64_t>(i, &bytes);
    TERCIO_RETURN_IF_ERROR(spill(kBlock));
  }
  AppendBytes<int64_t>(sequences_, &bytes);
  TERCIO_RETURN_IF_ERROR(spill(0));
  return file.Sync();
}

absl::Status IndexedDatasetWriter::Finish(const tokenizer::Tokenizer& tokenizer) {
  // Whatever is open or uncommitted now would be missing in the data set.
  TERCIO_CHECK_EQ(open_tokens_, 0);
  TERCIO_CHECK_EQ(uncommitted_bytes(), 0);
  TERCIO_RETURN_IF_ERROR(WriteIndex());
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(Part("tokenizer"), tokenizer.ToJson()));
  // An older data set of this name ends here: its index must not be taken for that of the new ids.
  std::error_code error;
  std::filesystem::remove(prefix_ + ".idx", error);
  if (error) return FileError(error.value(), "cannot replace", prefix_ + ".idx");
  TERCIO_RETURN_IF_ERROR(RenamePath(Part("tokens"), prefix_ + ".bin"));
  TERCIO_RETURN_IF_ERROR(RenamePath(Part("tokenizer"), prefix_ + ".tokenizer.json"));
  const std::string parent = std::filesystem::path(prefix_).parent_path().string();
  // The new files are on the disk under their names before the index makes them valid.
  TERCIO_RETURN_IF_ERROR(SyncPath(parent.empty() ? "." : parent));
  TERCIO_RETURN_IF_ERROR(RenamePath(Part("index"), prefix_ + ".idx"));
  TERCIO_RETURN_IF_ERROR(SyncPath(parent.empty() ? "." : parent));
  return RemoveTree(directory_);
}

}  // namespace tercio::data
