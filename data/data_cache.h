// What keeps a node's cache of tokenised texts from growing for ever.
//
// An entry is all files and directories PREFIX.* of a PREFIX in the cache directory that is the
// digest of content and tokenizer (data/prepared_data.h). PREFIX.lock is held by who makes
// it, PREFIX.use is held, shared, by whoever reads it, and was last changed when somebody began to.
//
// Thread safety: thread-safe, also between processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/file.h"
#include "common/untrusted_file.h"

namespace tercio::data {

// Says that the entry is used from now on; as long as the result lives, nobody removes it. Null
// where it cannot be marked: then it may be removed, which costs making it again and nothing that
// is mapped already. REQUIRES: PREFIX.lock is held.
std::shared_ptr<const FileLock> UseCacheEntry(const std::string& prefix);

// For an agent that was told by a process with fewer rights that it uses the entry: nobody removes
// it as long as the result lives. `name` may be any text, and the owner of the directory may have
// put anything there. Never waits. Null where there is no such entry, or somebody removes it.
std::shared_ptr<const UntrustedFile> HoldCacheEntry(const std::string& directory,
                                                    const std::string& name);

// Removes entries that nobody uses or makes, those that were not used for the longest time first,
// until all together take at most `most_bytes` of the disk. How many it has removed.
int TrimDataCache(const std::string& directory, int64_t most_bytes);

}  // namespace tercio::data
