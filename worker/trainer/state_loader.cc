#include "worker/trainer/state_loader.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "checkpoint/weight_source.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace tercio::trainer {
namespace {

constexpr int64_t kPieceElements = int64_t{2} << 20;  // 8 MiB
// Neighbouring pieces have one reader: a checkpoint is read in blocks that do not match pieces
// (checkpoint/reader.h), and a block of 4 MiB between two readers is read by both. With runs of 64
// MiB, within a slice, that is 6 % at most.
constexpr int64_t kPiecesOfRun = 8;
// Lets a rank finish reading its run before its turn comes.
constexpr size_t kPiecesAhead = kPiecesOfRun;
// A read that has not ended this long after it was cancelled hangs in the kernel.
constexpr absl::Duration kCancelTime = absl::Seconds(2);

int64_t ElementsOf(const v1::TensorSlice& slice) {
  return (slice.row_end() - slice.row_begin()) * (slice.column_end() - slice.column_begin());
}

struct ReadPiece {
  absl::Status status;
  absl::Span<float> values;   // in the engine, or in the buffer
  std::vector<float> buffer;  // empty if the values are read into the engine
  StateSource::Check check;
};

// Reads this rank's pieces in order, some of them ahead, directly into the engine if possible. The
// thread shares ownership of its data: one that hangs is abandoned.
class ReadAhead {
 public:
  ReadAhead(std::shared_ptr<StateSource> source, const std::vector<StatePiece>& pieces, int rank,
            const LoadedBytes& loaded, engine::LoadTarget& engine, LoadPath path)
      : shared_(std::make_shared<Shared>()) {
    shared_->source = std::move(source);
    shared_->loaded = loaded;
    for (const StatePiece& piece : pieces) {
      if (piece.reader != rank) continue;
      shared_->pieces.push_back(piece);
      // The engine's memory lives as long as these do, hence also for a thread that hangs.
      shared_->places.push_back(path == LoadPath::kDirect
                                    ? engine.LoadPlace(static_cast<int64_t>(piece.slice))
                                    : nullptr);
      shared_->total += piece.elements * static_cast<int64_t>(sizeof(float));
    }
    loaded(0, shared_->total);
    thread_ = std::thread([shared = shared_] { shared->Run(); });
  }
  ~ReadAhead() {
    {
      MutexLock lock(shared_->mutex);
      shared_->stops = true;
      // It refers to the page, which may be gone when a read that hangs comes back.
      shared_->loaded = {};
      shared_->changed.NotifyAll();
    }
    // No lock is held, since a read that ends reports under it.
    shared_->source->Cancel();
    MutexLock lock(shared_->mutex);
    // A thread in the kernel cannot be ended: after this time it is left behind.
    const bool ended = shared_->changed.WaitFor(
        shared_->mutex, absl::ToChronoMilliseconds(kCancelTime),
        [this]() TERCIO_REQUIRES(shared_->mutex) { return shared_->ended; });
    lock.Unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  ReadPiece Next() {
    MutexLock lock(shared_->mutex);
    while (shared_->ready.empty()) shared_->changed.Wait(shared_->mutex);
    ReadPiece piece = std::move(shared_->ready.front());
    shared_->ready.pop_front();
    shared_->changed.NotifyAll();
    return piece;
  }
  // Buffers are reused: new pages cost as much as reading them.
  void Recycle(std::vector<float> buffer) {
    if (buffer.empty()) return;
    MutexLock lock(shared_->mutex);
    shared_->free.push_back(std::move(buffer));
  }

 private:
  struct Shared {
    void Run() {
      for (size_t i = 0; i < pieces.size(); ++i) {
        const StatePiece& piece = pieces[i];
        float* const place = places[i].get();
        ReadPiece read;
        {
          MutexLock lock(mutex);
          while (!stops && ready.size() >= kPiecesAhead) changed.Wait(mutex);
          if (stops) break;
          if (place == nullptr && !free.empty()) {
            read.buffer = std::move(free.back());
            free.pop_back();
          }
        }
        if (place == nullptr) read.buffer.resize(static_cast<size_t>(piece.elements));
        read.values = absl::MakeSpan(place == nullptr ? read.buffer.data() : place + piece.offset,
                                     static_cast<size_t>(piece.elements));
        // An error takes its place among the pieces, so that all ranks meet it at the same one.
        read.status = source->Read(
            piece.part, read.values, [this](int64_t bytes) { Arrived(bytes); }, &read.check);
        MutexLock lock(mutex);
        ready.push_back(std::move(read));
        changed.NotifyAll();
      }
      MutexLock lock(mutex);
      ended = true;
      changed.NotifyAll();
    }
    void Arrived(int64_t bytes) {
      MutexLock lock(mutex);
      done += bytes;
      if (loaded) loaded(done, total);
    }

    std::shared_ptr<StateSource> source;
    std::vector<StatePiece> pieces;
    std::vector<std::shared_ptr<float>> places;  // for the slice of each piece; null: a buffer
    int64_t total = 0;
    Mutex mutex;
    ConditionVariable changed;
    LoadedBytes loaded TERCIO_GUARDED_BY(mutex);
    int64_t done TERCIO_GUARDED_BY(mutex) = 0;
    std::deque<ReadPiece> ready TERCIO_GUARDED_BY(mutex);
    std::vector<std::vector<float>> free TERCIO_GUARDED_BY(mutex);
    bool stops TERCIO_GUARDED_BY(mutex) = false;
    bool ended TERCIO_GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// Precedes the values of a piece in its broadcast.
struct PieceHeader {
  int32_t code = 0;  // absl::StatusCode
  int32_t size = 0;  // bytes of the message
  char message[1016] = {};
};
static_assert(std::is_trivially_copyable_v<PieceHeader>);
// The values lie right behind the header.
static_assert(sizeof(PieceHeader) % alignof(float) == 0);

PieceHeader HeaderOf(const absl::Status& status) {
  PieceHeader header;
  header.code = static_cast<int32_t>(status.code());
  const std::string message(status.message());
  const size_t size = std::min(message.size(), sizeof(header.message));
  header.size = static_cast<int32_t>(size);
  std::memcpy(header.message, message.data(), size);
  return header;
}

absl::Status StatusOf(const PieceHeader& header) {
  return absl::Status(static_cast<absl::StatusCode>(header.code),
                      std::string(header.message, static_cast<size_t>(header.size)));
}

// Sends a piece from the rank that has read it to all.
class PieceBroadcast {
 public:
  PieceBroadcast(const LoadGroup& group, const std::vector<StatePiece>& pieces) : group_(group) {
    for (const StatePiece& piece : pieces) most_ = std::max(most_, piece.elements);
  }

  // `read` is the piece that this rank has read, if it was its turn. Returns the piece of the
  // reading rank, valid until the next call.
  absl::Status Share(const StatePiece& piece, ReadPiece* read) {
    if (group_.divides_state || group_.data.size() == 1) return absl::OkStatus();
    if (memory_ == nullptr) {
      TERCIO_ASSIGN_OR_RETURN(memory_, group_.device.Allocate(BytesOf(most_)));
      // A group of one shares nothing, and never comes here.
      host_.resize(static_cast<size_t>(BytesOf(most_)));
    }
    const bool reads = piece.reader == group_.data.rank();
    if (reads) {
      // The status travels with the values: all ranks fail, or do without a tensor, together.
      const PieceHeader header = HeaderOf(read->status);
      std::memcpy(host_.data(), &header, sizeof(header));
      std::memcpy(host_.data() + sizeof(header), read->values.data(),
                  static_cast<size_t>(piece.elements) * sizeof(float));
      group_.stream.CopyFromHost(memory_->data(), host_.data(), BytesOf(piece.elements));
    }
    group_.data.Broadcast(group_.stream, memory_->data(), BytesOf(piece.elements), piece.reader);
    if (!reads) group_.stream.CopyToHost(host_.data(), memory_->data(), BytesOf(piece.elements));
    TERCIO_RETURN_IF_ERROR(group_.stream.Synchronize());
    if (reads) return absl::OkStatus();
    PieceHeader header;
    std::memcpy(&header, host_.data(), sizeof(header));
    read->status = StatusOf(header);
    read->values = absl::MakeSpan(reinterpret_cast<float*>(host_.data() + sizeof(header)),
                                  static_cast<size_t>(piece.elements));
    return absl::OkStatus();
  }

 private:
  static int64_t BytesOf(int64_t elements) {
    return static_cast<int64_t>(sizeof(PieceHeader)) +
           elements * static_cast<int64_t>(sizeof(float));
  }
  const LoadGroup& group_;
  int64_t most_ = 0;  // elements of a piece
  std::unique_ptr<device::DeviceMemory>
      memory_;  // holds a header and a piece; null until it is needed
  std::vector<char> host_;
};

const std::vector<v1::TensorSlice>& SlicesFrom(const StateSource& source,
                                               const engine::LoadTarget& engine) {
  return source.IsOfModel() ? engine.InitialSlices() : engine.NeededSlices();
}

absl::Status LoadPieces(const std::vector<StatePiece>& pieces,
                        const std::shared_ptr<StateSource>& source, const LoadGroup& group,
                        const LoadedBytes& loaded, engine::LoadTarget& engine, LoadPath path) {
  const std::vector<v1::TensorSlice>& slices = SlicesFrom(*source, engine);
  const int rank = group.divides_state ? 0 : group.data.rank();
  ReadAhead reads(source, pieces, rank, loaded, engine, path);
  PieceBroadcast broadcast(group, pieces);
  bool lacks = false;  // the slice in progress
  for (const StatePiece& piece : pieces) {
    const v1::TensorSlice& slice = slices[piece.slice];
    ReadPiece read = piece.reader == rank ? reads.Next() : ReadPiece();
    // Not by the reading thread, which is busy with the next piece.
    if (read.check) read.status.Update(std::exchange(read.check, nullptr)());
    TERCIO_RETURN_IF_ERROR(broadcast.Share(piece, &read));
    // A tensor is missing as a whole, which its first piece shows.
    if (piece.offset == 0) lacks = absl::IsNotFound(read.status) && source->MayLack(slice);
    if (!lacks) {
      TERCIO_RETURN_IF_ERROR(read.status);
      TERCIO_RETURN_IF_ERROR(
          engine.Load(static_cast<int64_t>(piece.slice), piece.offset, read.values));
    }
    reads.Recycle(std::move(read.buffer));
  }
  return absl::OkStatus();
}

// The first rank's error of those that each rank has met on its own.
absl::Status FirstError(const LoadGroup& group, const absl::Status& mine) {
  const auto size = static_cast<size_t>(group.data.size());
  constexpr auto kBytes = static_cast<int64_t>(sizeof(PieceHeader));
  std::vector<PieceHeader> headers(size);
  const auto rank = static_cast<size_t>(group.data.rank());
  headers[rank] = HeaderOf(mine);
  std::vector<int64_t> bounds(size + 1);
  for (size_t r = 0; r <= size; ++r) bounds[r] = static_cast<int64_t>(r);
  TERCIO_ASSIGN_OR_RETURN(const auto memory, group.device.Allocate(kBytes * bounds.back()));
  group.stream.CopyFromHost(memory->data() + kBytes * bounds[rank], &headers[rank], kBytes);
  group.data.AllGatherParts(group.stream, memory->data(), bounds, kBytes);
  group.stream.CopyToHost(headers.data(), memory->data(), kBytes * bounds.back());
  TERCIO_RETURN_IF_ERROR(group.stream.Synchronize());
  for (const PieceHeader& header : headers) TERCIO_RETURN_IF_ERROR(StatusOf(header));
  return absl::OkStatus();
}

}  // namespace

std::vector<StatePiece> PiecesOf(const std::vector<v1::TensorSlice>& slices,
                                 const StateSource& source, int ranks) {
  const int64_t run = kPiecesOfRun * kPieceElements;
  std::vector<int64_t> share(static_cast<size_t>(ranks));
  std::vector<StatePiece> pieces;
  for (size_t i = 0; i < slices.size(); ++i) {
    // Such slices keep the values with which the engine began.
    if (!source.Wants(slices[i])) continue;
    auto reader = share.end();
    int64_t offset = 0;
    int64_t begun = 0;  // start of the reader's run
    for (v1::TensorSlice& part : checkpoint::DivideSlice(slices[i], kPieceElements)) {
      if (reader == share.end() || offset - begun >= run) {
        // The next run is read by the rank that has the least so far; all ranks find the same one.
        reader = std::min_element(share.begin(), share.end());
        begun = offset;
      }
      const int64_t elements = ElementsOf(part);
      pieces.push_back(
          {i, std::move(part), offset, elements, static_cast<int>(reader - share.begin())});
      *reader += elements;
      offset += elements;
    }
  }
  return pieces;
}

absl::Status LoadState(std::shared_ptr<StateSource> source, const LoadGroup& group,
                       const LoadedBytes& loaded, engine::LoadTarget& engine, LoadPath path) {
  const int readers = group.divides_state ? 1 : group.data.size();
  const std::vector<StatePiece> pieces = PiecesOf(SlicesFrom(*source, engine), *source, readers);
  const absl::Status status = LoadPieces(pieces, source, group, loaded, engine, path);
  if (!group.divides_state || group.data.size() == 1) return status;
  const absl::Status first = FirstError(group, status);
  // Others that do not come have an error of their own.
  return status.ok() ? first : status;
}

}  // namespace tercio::trainer
