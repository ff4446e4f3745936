#include "common/checksum.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio {

struct Checksum::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) { Reset(); }

// The result is checked in every call: a sum over less than all bytes would look right.
void Checksum::Reset() { TERCIO_CHECK_EQ(XXH3_128bits_reset(state_->xxh3), XXH_OK); }

Checksum::~Checksum() = default;

void Checksum::Update(std::string_view bytes) {
  TERCIO_CHECK_EQ(XXH3_128bits_update(state_->xxh3, bytes.data(), bytes.size()), XXH_OK);
}

std::string Checksum::Hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh3);
  // The order of the halves is the one that the library prints.
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

std::string Checksum::Bytes() const {
  // The canonical form is the same on machines of either byte order.
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->xxh3));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest));
}

std::string ChecksumBytes(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest));
}

std::string ChecksumHex(std::string_view bytes) {
  // The streaming form gives the same sum as the one in one call.
  Checksum checksum;
  checksum.Update(bytes);
  return checksum.Hex();
}

}  // namespace tercio
