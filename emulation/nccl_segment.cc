#include "emulation/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tercio::emulation {
namespace {

// Slots begin behind the header, at an alignment that suits them.
constexpr size_t kHeaderBytes = 512;
static_assert(sizeof(NcclHeader) <= kHeaderBytes && kHeaderBytes % alignof(NcclSlot) == 0);

std::string Failed(const std::string& what, const std::string& name) {
  return what + " shared memory " + name + ": " + std::strerror(errno);
}

}  // namespace

NcclSegment::NcclSegment(std::string name, void* memory, size_t bytes)
    : name_(std::move(name)),
      memory_(memory),
      bytes_(bytes),
      header_(static_cast<NcclHeader*>(memory)),
      slots_(reinterpret_cast<NcclSlot*>(static_cast<std::byte*>(memory) + kHeaderBytes)) {}

std::unique_ptr<NcclSegment> NcclSegment::Open(const std::string& name, int rank, int ranks,
                                               int device, std::string* error) {
  // Whichever rank comes first makes the memory, so the flag is not exclusive.
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    *error = Failed("opening", name);
    return nullptr;
  }
  // The first rank sets this size; growing to the same size again changes nothing.
  const size_t bytes = kHeaderBytes + static_cast<size_t>(ranks) * sizeof(NcclSlot);
  struct stat status = {};
  const bool sized = fstat(file, &status) == 0 && (static_cast<size_t>(status.st_size) >= bytes ||
                                                   ftruncate(file, static_cast<off_t>(bytes)) == 0);
  void* memory =
      sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) *error = Failed("mapping", name);
  // The mapping keeps the memory, and the descriptor has no more use.
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  std::unique_ptr<NcclSegment> segment(new NcclSegment(name, memory, bytes));
  uint32_t agreed = 0;
  // The first rank sets the number, and the others compare theirs with it.
  if (!segment->header_->ranks.compare_exchange_strong(agreed, static_cast<uint32_t>(ranks)) &&
      agreed != static_cast<uint32_t>(ranks)) {
    *error = "ranks disagree on their number: " + std::to_string(agreed) + " and " +
             std::to_string(ranks);
    return nullptr;
  }
  NcclSlot& slot = segment->slot(rank);
  // Two ranks of one number would overwrite each other's parts.
  if (slot.claimed.exchange(1) != 0) {
    *error = "rank " + std::to_string(rank) + " has already joined";
    return nullptr;
  }
  slot.process = getpid();
  slot.device = device;
  // The counter is raised last, so that whoever sees it sees the slot, too.
  ++segment->header_->arrived;
  if (segment->Complete()) shm_unlink(name.c_str());
  return segment;
}

NcclSegment::~NcclSegment() {
  if (!Complete()) shm_unlink(name_.c_str());  // it can never be completed any more
  munmap(memory_, bytes_);
}

bool NcclSegment::Complete() const { return header_->arrived.load() == header_->ranks.load(); }

void NcclSegment::Fail(const std::string& message) {
  uint32_t none = NcclHeader::kNone;
  // Only the first fault is kept: the others are its consequences.
  if (!header_->fault.compare_exchange_strong(none, NcclHeader::kBeingWritten)) return;
  std::snprintf(header_->message, sizeof(header_->message), "%s", message.c_str());
  header_->fault = NcclHeader::kWritten;
}

}  // namespace tercio::emulation
