// Bounds the size of a node's cache of tokenised texts.
//
// An entry is all files and directories PREFIX.* of a PREFIX in the cache directory that is the
// digest of content and tokenizer (data/prepared_data.h). PREFIX.lock is held by the process that
// makes it; PREFIX.use is held, shared, by every process that reads it, and was last changed when a
// process began to.
//
// Thread safety: thread-safe, also between processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/file.h"
#include "common/untrusted_file.h"

namespace tercio::data {

// Marks the entry as used from now on; it is not removed as long as the result lives. Null if it
// cannot be marked: then it may be removed, which costs making it again and nothing that is mapped
// already. REQUIRES: PREFIX.lock is held.
std::shared_ptr<const FileLock> UseCacheEntry(const std::string& prefix);

// For an agent on behalf of a process with fewer rights that uses the entry: it is not removed as
// long as the result lives. `name` may be any text, and the owner of the directory may have put
// anything there. Never waits. Null if there is no such entry, or it is being removed.
std::shared_ptr<const UntrustedFile> HoldCacheEntry(const std::string& directory,
                                                    const std::string& name);

// Removes entries that are neither used nor being made, the least recently used first, until all
// together take at most `most_bytes` of the disk. Returns how many it has removed.
int TrimDataCache(const std::string& directory, int64_t most_bytes);

}  // namespace tercio::data
