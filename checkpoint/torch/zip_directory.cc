#include "checkpoint/torch/zip_directory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// Sizes of the fixed parts of the structures, and where their fields are.
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kEntryBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kLongEndBytes = 56;
constexpr size_t kLocatorBytes = 20;
constexpr size_t kLongestComment = 0xFFFF;
constexpr uint32_t kLocalHeaderMark = 0x04034b50;
constexpr uint32_t kEntryMark = 0x02014b50;
constexpr uint32_t kEndMark = 0x06054b50;
constexpr uint32_t kLongEndMark = 0x06064b50;
constexpr uint32_t kLocatorMark = 0x07064b50;
constexpr uint32_t kElsewhere = 0xFFFFFFFF;  // the value is in the ZIP64 field
constexpr uint16_t kLongField = 0x0001;

absl::Status DamagedZip(const std::string& what) {
  return absl::DataLossError("the archive is damaged: " + what);
}

// A little-endian number. REQUIRES: it lies within the bytes.
template <typename Number>
Number NumberAt(std::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

bool Fits(uint64_t begin, uint64_t size, uint64_t whole) {
  return begin <= whole && size <= whole - begin;
}

struct ZipDirectory {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

// The record at the end of the archive. It may be followed by a comment, whose length it names.
std::optional<size_t> FindEnd(std::string_view archive) {
  if (archive.size() < kEndBytes) return std::nullopt;
  const size_t last = archive.size() - kEndBytes;
  const size_t first = last - std::min(last, kLongestComment);
  for (size_t at = last + 1; at-- > first;) {
    if (NumberAt<uint32_t>(archive, at) == kEndMark &&
        NumberAt<uint16_t>(archive, at + 20) == archive.size() - at - kEndBytes) {
      return at;
    }
  }
  return std::nullopt;
}

absl::StatusOr<ZipDirectory> ReadLongEnd(std::string_view archive, size_t locator) {
  const auto at = NumberAt<uint64_t>(archive, locator + 8);
  if (!Fits(at, kLongEndBytes, locator) ||
      NumberAt<uint32_t>(archive, static_cast<size_t>(at)) != kLongEndMark) {
    return DamagedZip("its ZIP64 record is not where it should be");
  }
  const std::string_view end = archive.substr(static_cast<size_t>(at), kLongEndBytes);
  return ZipDirectory{NumberAt<uint64_t>(end, 48), NumberAt<uint64_t>(end, 40),
                      NumberAt<uint64_t>(end, 32)};
}

absl::StatusOr<ZipDirectory> FindDirectory(std::string_view archive) {
  const std::optional<size_t> end = FindEnd(archive);
  if (!end.has_value()) {
    return absl::DataLossError(
        "the archive is truncated: it lacks the directory that stands at its end");
  }
  if (NumberAt<uint16_t>(archive, *end + 4) != 0 &&
      NumberAt<uint16_t>(archive, *end + 4) != 0xFFFF) {
    return absl::InvalidArgumentError("an archive of several parts is not supported");
  }
  ZipDirectory directory = {NumberAt<uint32_t>(archive, *end + 16),
                            NumberAt<uint32_t>(archive, *end + 12),
                            NumberAt<uint16_t>(archive, *end + 10)};
  // The locator of the longer record stands before this one.
  if (*end >= kLocatorBytes && NumberAt<uint32_t>(archive, *end - kLocatorBytes) == kLocatorMark) {
    TERCIO_ASSIGN_OR_RETURN(directory, ReadLongEnd(archive, *end - kLocatorBytes));
  }
  if (!Fits(directory.begin, directory.bytes, *end)) {
    return DamagedZip("its directory lies outside of it");
  }
  return directory;
}

struct ZipEntry {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t header = 0;
};

// The 64-bit field has those of the three values that do not fit into 32 bits, in this order.
absl::Status ReadLongField(std::string_view extra, ZipEntry* entry) {
  while (extra.size() >= 4) {
    const auto kind = NumberAt<uint16_t>(extra, 0);
    const size_t size = NumberAt<uint16_t>(extra, 2);
    if (size > extra.size() - 4) return DamagedZip("a field of its directory is truncated");
    if (kind == kLongField) {
      std::string_view field = extra.substr(4, size);
      for (uint64_t* value : {&entry->bytes, &entry->stored_bytes, &entry->header}) {
        if (*value != kElsewhere) continue;
        if (field.size() < 8) return DamagedZip("a ZIP64 field is truncated");
        *value = NumberAt<uint64_t>(field, 0);
        field.remove_prefix(8);
      }
      return absl::OkStatus();
    }
    extra.remove_prefix(4 + size);
  }
  return absl::OkStatus();
}

// Takes one entry from the front of the directory.
absl::StatusOr<ZipEntry> TakeEntry(std::string_view* directory) {
  if (directory->size() < kEntryBytes || NumberAt<uint32_t>(*directory, 0) != kEntryMark) {
    return DamagedZip("an entry of its directory is truncated");
  }
  const std::string_view fixed = directory->substr(0, kEntryBytes);
  const size_t name = NumberAt<uint16_t>(fixed, 28);
  const size_t extra = NumberAt<uint16_t>(fixed, 30);
  const size_t comment = NumberAt<uint16_t>(fixed, 32);
  directory->remove_prefix(kEntryBytes);
  if (name + extra + comment > directory->size()) {
    return DamagedZip("an entry of its directory is truncated");
  }
  ZipEntry entry = {directory->substr(0, name), NumberAt<uint32_t>(fixed, 24),
                    NumberAt<uint32_t>(fixed, 20), NumberAt<uint32_t>(fixed, 42)};
  const std::string shown = absl::Utf8SafeCEscape(std::string(entry.name.substr(0, 200)));
  if ((NumberAt<uint16_t>(fixed, 8) & 1u) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(shown, " is encrypted"));
  }
  if (NumberAt<uint16_t>(fixed, 10) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        shown,
        " is compressed, which torch.load cannot read either; unpack the archive and store "
        "its files without compression"));
  }
  TERCIO_RETURN_IF_ERROR(ReadLongField(directory->substr(name, extra), &entry));
  directory->remove_prefix(name + extra + comment);
  if (entry.bytes != entry.stored_bytes) {
    return DamagedZip(absl::StrCat(shown, " has two sizes"));
  }
  return entry;
}

// The content of an entry, which begins behind its local header.
absl::StatusOr<std::string_view> ContentOf(std::string_view archive, const ZipEntry& entry) {
  const std::string shown = absl::Utf8SafeCEscape(std::string(entry.name.substr(0, 200)));
  if (!Fits(entry.header, kLocalHeaderBytes, archive.size()) ||
      NumberAt<uint32_t>(archive, static_cast<size_t>(entry.header)) != kLocalHeaderMark) {
    return DamagedZip(shown + " is not where its directory says");
  }
  const std::string_view header = archive.substr(static_cast<size_t>(entry.header));
  const uint64_t begin =
      uint64_t{kLocalHeaderBytes} + NumberAt<uint16_t>(header, 26) + NumberAt<uint16_t>(header, 28);
  if (!Fits(begin, entry.bytes, header.size())) {
    return DamagedZip(shown + " reaches beyond its end");
  }
  return header.substr(static_cast<size_t>(begin), static_cast<size_t>(entry.bytes));
}

}  // namespace

bool LooksLikeZip(std::string_view file) {
  if (file.size() < 4) return false;
  const auto mark = NumberAt<uint32_t>(file, 0);
  return mark == kLocalHeaderMark || mark == kEndMark;
}

absl::StatusOr<ZipContents> ReadZipDirectory(std::string_view archive) {
  TERCIO_ASSIGN_OR_RETURN(const ZipDirectory directory, FindDirectory(archive));
  std::string_view rest =
      archive.substr(static_cast<size_t>(directory.begin), static_cast<size_t>(directory.bytes));
  ZipContents contents;
  uint64_t entries = 0;
  while (!rest.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const ZipEntry entry, TakeEntry(&rest));
    TERCIO_ASSIGN_OR_RETURN(const std::string_view content, ContentOf(archive, entry));
    // Only one of two files of a name could count.
    if (!contents.emplace(entry.name, content).second) {
      return DamagedZip(absl::StrCat(absl::Utf8SafeCEscape(std::string(entry.name.substr(0, 200))),
                                     " is there twice"));
    }
    ++entries;
  }
  if (entries != directory.entries) {
    return DamagedZip(absl::StrCat("its directory has ", entries, " entries, but should have ",
                                   directory.entries));
  }
  return contents;
}

}  // namespace tercio::checkpoint
