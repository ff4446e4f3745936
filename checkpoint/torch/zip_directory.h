// The files of a zip archive (PKWARE's APPNOTE) that stores them without compression, as torch.save
// does, ZIP64 included. Sizes and places come from the directory at the end of the archive, since
// local headers that are written before their content leave sizes out.
//
// The archive is not trusted: every offset and size is checked. Checksums are not compared: torch
// may leave them out, and reading every byte of large weights twice would take long.
//
// Pure.
#pragma once

#include <map>
#include <string_view>

#include "absl/status/statusor.h"

namespace tercio::checkpoint {

// Views into `archive`.
using ZipContents = std::map<std::string_view, std::string_view>;

// Whether a file that begins like this is meant to be an archive.
bool LooksLikeZip(std::string_view file);

// DATA_LOSS when the archive is truncated or damaged; INVALID_ARGUMENT when files are compressed or
// encrypted, or lie in several archives.
absl::StatusOr<ZipContents> ReadZipDirectory(std::string_view archive);

}  // namespace tercio::checkpoint
