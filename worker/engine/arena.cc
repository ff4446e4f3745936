#include "worker/engine/arena.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/status_macros.h"

namespace tercio::engine {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // size of a copied piece; whole words

// Moments begin as zero: -0 is zero, and no update leaves it there, except one by -0 itself.
constexpr uint32_t kMinusZero = 0x80000000;

uint32_t FirstWordOf(const v1::Buffer& buffer) {
  return buffer.kind() == v1::BUFFER_KIND_OPTIMIZER ? kMinusZero : kPatternWord;
}

bool IsMemoryOfHost(const v1::Buffer& buffer) { return buffer.on_host() || buffer.on_disk(); }

// Copies by a stream, or directly if none is needed.
void CopyIn(device::Stream& stream, const v1::Buffer& buffer, std::byte* to, const void* from,
            int64_t bytes) {
  if (IsMemoryOfHost(buffer)) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  } else {
    stream.CopyFromHost(to, from, bytes);
  }
}

}  // namespace

absl::StatusOr<Arena> Arena::Allocate(const v1::MemoryTable& table, device::Device& device,
                                      const std::string& scratch) {
  // A disk without room is found before memory is taken.
  std::unique_ptr<device::ScratchFile> disk;
  if (table.disk_bytes() > 0) {
    TERCIO_ASSIGN_OR_RETURN(disk, device::ScratchFile::Create(scratch, table.disk_bytes()));
  }
  // A driver rounds allocations up, which only shows in the memory that is left.
  const absl::StatusOr<int64_t> before = device.BytesInUse();
  TERCIO_ASSIGN_OR_RETURN(auto memory, device.Allocate(table.total_bytes()));
  const absl::StatusOr<int64_t> after = device.BytesInUse();
  TERCIO_ASSIGN_OR_RETURN(auto host, device.AllocateHost(table.host_bytes()));
  // Another process may have freed memory in between, which would make this negative.
  const int64_t taken = before.ok() && after.ok() ? std::max<int64_t>(0, *after - *before) : 0;
  return Arena(table, std::move(memory), std::move(host), std::move(disk), taken);
}

Arena Arena::Part(const v1::MemoryTable& table) const {
  Arena part = *this;
  part.table_ = table;
  return part;
}

void Arena::ReadAhead(const float* begin, int64_t count) const {
  if (!IsOnDisk(begin)) return;
  disk_->ReadAhead(reinterpret_cast<const std::byte*>(begin) - disk_->data(),
                   count * static_cast<int64_t>(sizeof(float)));
}

void Arena::WriteBehind(const float* begin, int64_t count) const {
  if (!IsOnDisk(begin)) return;
  disk_->WriteBehind(reinterpret_cast<const std::byte*>(begin) - disk_->data(),
                     count * static_cast<int64_t>(sizeof(float)));
}

int64_t Arena::UsedBytes() const {
  // A GPU backs the whole block at once, so the driver's figure at the allocation stays true.
  return memory_->ResidentBytes(0, memory_->size_bytes()).value_or(taken_);
}

absl::Status Arena::FillWithPattern(device::Device& device) {
  TERCIO_ASSIGN_OR_RETURN(const auto stream,
                          device.CreateStream(device::Device::StreamKind::kCompute));
  for (const v1::Buffer& buffer : table_.buffers()) {
    // The arena may be larger than the host's free memory, so one piece is copied again and again.
    const std::vector<uint32_t> words(kPieceBytes / sizeof(uint32_t), FirstWordOf(buffer));
    for (int64_t at = 0; at < buffer.size_bytes(); at += kPieceBytes) {
      CopyIn(*stream, buffer, BeginOf(buffer) + at, words.data(),
             std::min(kPieceBytes, buffer.size_bytes() - at));
    }
  }
  filled_ = true;
  return stream->Synchronize();
}

absl::StatusOr<BufferUse> Arena::UseOf(const v1::Buffer& buffer, device::Stream& stream) {
  BufferUse use = {buffer.name(), buffer.size_bytes(), 0, 0};
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPieceBytes, buffer.size_bytes())));
  for (int64_t at = 0; at < buffer.size_bytes(); at += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, buffer.size_bytes() - at);
    const std::byte* from = BeginOf(buffer) + at;
    if (IsMemoryOfHost(buffer)) {
      std::memcpy(piece.data(), from, static_cast<size_t>(bytes));
    } else {
      stream.CopyToHost(piece.data(), from, bytes);
      // The piece is read below, and its memory is that of the next copy.
      TERCIO_RETURN_IF_ERROR(stream.Synchronize());
    }
    const Touched touched = TouchedOf(absl::MakeConstSpan(piece).first(static_cast<size_t>(bytes)),
                                      FirstWordOf(buffer));
    // Pieces ascend, so the last one that was touched decides.
    if (touched.high_water > 0) use.high_water_bytes = at + touched.high_water;
    use.touched_bytes += touched.bytes;
  }
  return use;
}

absl::StatusOr<std::vector<BufferUse>> Arena::HighWaterMarks(device::Stream& stream) {
  // Without the pattern, zeros that were written look like zeros that were not.
  TERCIO_CHECK(filled_);
  std::vector<BufferUse> uses;
  for (const v1::Buffer& buffer : table_.buffers()) {
    if (buffer.size_bytes() == 0) continue;
    TERCIO_ASSIGN_OR_RETURN(BufferUse use, UseOf(buffer, stream));
    uses.push_back(std::move(use));
  }
  return uses;
}

}  // namespace tercio::engine
