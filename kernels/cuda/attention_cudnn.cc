#include "kernels/cuda/attention_cudnn.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/cuda/attention_check.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();  // the score of a hidden key
constexpr int64_t kForwardPlanBytes = 4096;  // the workspace of a plan, as those of 9.19 say
constexpr int64_t kUnit = 256;               // pieces of the workspace begin at multiples
// Verdicts that are pending or known; more shapes than any model has.
constexpr int kMostShapes = 64;
// Pairs of a sequence and a key head that are compared.
constexpr int64_t kCompared = 8;
// Tolerance relative to the largest magnitude. Rounding of probabilities and of the gradients of
// scores to the format costs some steps of it, a wrong mask or factor far more.
constexpr float kNearBfloat16 = 0x1p-4f;
constexpr float kNearFloat16 = 0x1p-6f;
constexpr float kNearLse = 0x1p-7f;

enum class Direction { kForward, kBackward };
enum class Trust {
  kUnknown,  // each call is compared
  kPending,  // a verdict is pending, and each call compared
  kTrusted,  // the library alone
  kRefused,  // the library is never used
};

bool IsOpen(Trust trust) { return trust == Trust::kUnknown || trust == Trust::kPending; }

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The parameters that both directions have.
template <typename Args>
bool TakesShape(const Args& a, ConstValues result) {
  // The storage must really have the format of the values.
  if (result.stored() != result.format()) return false;
  // What is kept is divided by this.
  if (!(a.dropout.probability < 1)) return false;
  return WhyNotCudnn({.format = result.format(),
                      .sequences = a.sequences,
                      .tokens = a.tokens,
                      .heads = a.heads,
                      .head_dim = a.head_dim,
                      .stride = a.stride,
                      .softcap = a.softcap,
                      .window = a.window,
                      .bias = a.bias.weight != nullptr,
                      .cross = KeyTokensOf(a) != a.tokens || KeyStrideOf(a) != a.stride,
                      .documents = a.document_starts != nullptr}) == nullptr;
}

bool AreAligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % kCudnnAlignment == 0;
  });
}

template <typename Args>
CudnnAttentionShape ShapeOf(const Args& a) {
  return {.type = a.q.format() == Format::kBfloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
          .sequences = a.sequences,
          .tokens = a.tokens,
          .heads = a.heads,
          .head_dim = a.head_dim,
          .group = a.group,
          .stride = a.stride,
          .out_stride = a.heads * a.head_dim,
          .scale = ScaleOf(a),
          .causal = a.causal,
          .padded = a.lengths != nullptr && !a.causal,
          .dropout = std::max(0.0f, a.dropout.probability)};
}

std::string Describe(Direction direction, const CudnnAttentionShape& s) {
  return std::string(direction == Direction::kForward ? "attention" : "gradients of attention") +
         " of " + std::to_string(s.sequences) + " x " + std::to_string(s.tokens) +
         " tokens, heads " + std::to_string(s.heads) + " / " + std::to_string(s.group) + " of " +
         std::to_string(s.head_dim) + (s.causal ? ", causal" : "") + (s.padded ? ", padded" : "") +
         (s.dropout > 0 ? ", dropout" : "") + (s.type == CUDNN_DATA_BFLOAT16 ? ", bf16" : ", fp16");
}

// The pair of a sequence and a key head that a call, or a comparison, begins with.
struct Corner {
  int64_t sequence, key_head;
};

// Offsets of a corner.
struct Offsets {
  int64_t q, k, out, lse;
};
template <typename Args>
Offsets OffsetsOf(const Args& a, const Corner& c) {
  // Rows of q, k and v have a stride of their own, the result is dense.
  const int64_t rows = c.sequence * a.tokens;
  const int64_t head = c.key_head * a.group;
  return {rows * a.stride + head * a.head_dim, rows * a.stride + c.key_head * a.head_dim,
          rows * a.heads * a.head_dim + head * a.head_dim,
          (c.sequence * a.heads + head) * a.tokens};
}

// Parts have equal sizes, so that one plan serves all of them.
int64_t NextDivisor(int64_t whole, int64_t below) {
  while (whole % --below != 0) continue;
  return below;
}

int64_t DeltaBytes(const CudnnAttentionShape& s) {
  return RoundUp(s.sequences * s.heads * s.tokens * static_cast<int64_t>(sizeof(float)), kUnit);
}

AttentionSizes SizesOf(const CudnnAttentionShape& s) {
  return {.sequences = s.sequences,
          .tokens = s.tokens,
          .heads = s.heads,
          .group = s.group,
          .head_dim = s.head_dim,
          .dropout = s.dropout > 0};
}

int64_t MaskBytes(const CudnnAttentionShape& s) {
  return RoundUp(AttentionMaskBytes(SizesOf(s)), kUnit);
}

// What a call takes; without dropout the forward pass takes next to nothing, whatever its size.
int64_t BytesOf(Direction direction, const CudnnAttentionShape& s) {
  if (direction == Direction::kBackward) return LibraryAttentionBytes(SizesOf(s));
  return s.dropout > 0 ? MaskBytes(s) + kForwardPlanBytes : 0;
}

// A part of a call that fits `bytes`: some sequences, or some key heads of one.
std::optional<CudnnAttentionShape> PartThatFits(Direction direction, CudnnAttentionShape part,
                                                int64_t bytes) {
  const int64_t sequences = part.sequences;
  const int64_t key_heads = part.heads / part.group;
  int64_t taken = key_heads;
  // Parts begin where the library may read a row's log-sum-exp.
  const auto is_aligned = [&] {
    const int64_t rows = part.sequences * part.heads * part.tokens;
    return rows * static_cast<int64_t>(sizeof(float)) % kCudnnAlignment == 0;
  };
  const auto is_whole = [&] { return part.sequences == sequences && taken == key_heads; };
  while (BytesOf(direction, part) > bytes || !(is_whole() || is_aligned())) {
    if (part.sequences > 1) {
      part.sequences = NextDivisor(sequences, part.sequences);
    } else if (taken > 1) {
      taken = NextDivisor(key_heads, taken);
      part.heads = taken * part.group;
    } else {
      return std::nullopt;
    }
  }
  return part;
}

// Hands out pieces of the workspace.
class Pieces {
 public:
  explicit Pieces(const CudaContext& context) : rest_(context) {}
  std::byte* Take(int64_t bytes) {
    const int64_t taken = RoundUp(bytes, kUnit);
    auto* piece = rest_.Scratch<std::byte>(taken);
    rest_.workspace += taken;
    rest_.workspace_bytes -= taken;
    return piece;
  }
  Values TakeValues(Format format, int64_t count) {
    return Values(Take(count * BytesOf(format)), format, format);
  }
  float* TakeFloats(int64_t count) { return reinterpret_cast<float*>(Take(count * 4)); }
  const CudaContext& rest() const { return rest_; }

 private:
  CudaContext rest_;
};

// The most of the workspace that a comparison needs.
int64_t CheckBytes(const CudnnAttentionShape& s) {
  // A comparison keeps copies of the inputs and of the results of one key head, beside its peaks
  // and two log-sum-exps.
  const int64_t width = s.group * s.head_dim;
  const int64_t values = s.tokens * (2 * (width + 2 * s.head_dim) + 2 * width) * 2;
  const int64_t floats = (kCheckBlocks + 2 * s.group * s.tokens) * 4;
  return values + floats + 8 * kUnit;
}

}  // namespace

bool CudnnTakes(const AttentionArgs& a) {
  return TakesShape(a, a.out) && a.first_query == 0 &&
         AreAligned({a.q.data(), a.k.data(), a.v.data(), a.out.data(), a.lse});
}

bool CudnnTakes(const AttentionBackwardArgs& a) {
  return TakesShape(a, a.dq) &&
         AreAligned({a.q.data(), a.k.data(), a.v.data(), a.out.data(), a.dout.data(), a.lse,
                     a.dq.data(), a.dk.data(), a.dv.data()});
}

class CudnnAttention::Library {
 public:
  Library(const CudaContext& context, OperationNotes* notes, OperationErrors* errors)
      : library_(LoadCudnn()), context_(context), notes_(notes), errors_(*errors) {}
  ~Library() {
    // Plans refer to the handle, so they are destroyed before it.
    for (auto& [key, prepared] : prepared_) {
      if (prepared.arrived != nullptr) cudaEventDestroy(prepared.arrived);
      cudaFree(prepared.whole);
      cudaFreeHost(prepared.whole_on_host);
    }
    prepared_.clear();
    if (handle_ != nullptr) library_.destroy(handle_);
    cudaFree(flags_);
    cudaFreeHost(seen_);
  }

  // Null: our own kernel.
  struct Prepared;
  template <typename Args>
  Prepared* Usable(Direction direction, const Args& args) {
    if (!library_) {
      // The library is missing for all shapes alike, so it is reported once.
      if (!std::exchange(is_told_, true))
        FellBack("attention: our own kernel, which is slower: " + NameOf(library_));
      return nullptr;
    }
    const CudnnAttentionShape shape = ShapeOf(args);
    const std::pair key(direction, shape);
    const auto known = prepared_.find(key);
    const bool is_new = known == prepared_.end();
    // A captured stream can neither be prepared for nor queried for a verdict.
    if ((is_new || IsOpen(known->second.trust)) && IsCaptured()) {
      // All layers of a model come here alike.
      if (captured_.insert(key).second) {
        FellBack(Describe(direction, shape) +
                 ": our own kernel, which is slower, in a graph that is recorded before the "
                 "library's results were compared");
      }
      return nullptr;
    }
    Prepared& prepared = is_new ? prepared_[key] : known->second;
    if (is_new) {
      prepared.what = Describe(direction, shape);
      prepared.scale = shape.scale;
      prepared.keep = 1 - shape.dropout;
      prepared.kept_scale = 1 / prepared.keep;
      // A shape that cannot be prepared is refused for good, not tried again at each call.
      if (const std::string why = Prepare(direction, shape, prepared); !why.empty()) {
        prepared.trust = Trust::kRefused;
        FellBack(prepared.what + ": our own kernel, which is slower: " + why);
      }
    }
    if (prepared.trust == Trust::kPending) Look(prepared);
    return prepared.trust == Trust::kRefused ? nullptr : &prepared;
  }

  struct Prepared {
    std::string what;
    CudnnAttentionShape part;  // shape of one call of the library
    CudnnPlan plan;
    // Scalars, where the plan's pointers find them.
    float scale = 0;                   // of scores
    float keep = 1;                    // 1 - p
    float kept_scale = 1;              // 1 / (1 - p)
    int32_t* whole = nullptr;          // the tokens, for each sequence; memory of the device
    int32_t* whole_on_host = nullptr;  // the same, from which it is copied
    CudnnForwardIds forward = {};
    CudnnBackwardIds backward = {};
    Trust trust = Trust::kUnknown;
    CheckFlags* flags = nullptr;  // memory of the device
    CheckFlags* seen = nullptr;   // memory of the host
    cudaEvent_t arrived = nullptr;
  };

  // Calls function(corner) for each part.
  template <typename Args, typename Function>
  void ForParts(const Prepared& p, const Args& a, const Function& function) {
    const int64_t key_heads = a.heads / a.group;
    const int64_t taken = p.part.heads / a.group;
    for (int64_t sequence = 0; sequence < a.sequences; sequence += p.part.sequences) {
      for (int64_t head = 0; head < key_heads; head += taken) function(Corner{sequence, head});
    }
  }

  void Run(const char* operation, Prepared& p, const CudnnPointers& pointers, void* workspace) {
    const std::string failure = Execute(library_, handle_, p.plan, pointers, workspace);
    // The error ends the run, since the part of the result that this call owed is missing.
    if (failure.empty()) return;
    errors_.Report(operation, NameOf(library_) + ", " + p.what + ": " + failure);
  }

  // Adds the pointers of tensors that only some shapes have, and enqueues what fills them. `mask`
  // has MaskBytes.
  template <typename Args>
  void AddOptional(Prepared& p, const CudnnOptionalIds& t, const Args& a, const Corner& corner,
                   std::byte* mask, CudnnPointers& pointers) {
    if (p.part.causal || p.part.padded) pointers.emplace_back(t.hidden, &kHidden);
    if (p.part.padded) {
      pointers.emplace_back(t.queries, p.whole);
      pointers.emplace_back(t.keys, a.lengths + corner.sequence);
    }
    if (p.part.dropout == 0) return;
    Dropout dropout = a.dropout;
    dropout.first_sequence += corner.sequence;
    const Values values(mask, a.q.format(), a.q.format());
    AttentionMaskCuda({.mask = values,
                       .stride = CudnnMaskStride(a.tokens),
                       .sequences = p.part.sequences,
                       .tokens = a.tokens,
                       .heads = p.part.heads,
                       .first_head = a.first_head + corner.key_head * a.group,
                       .causal = a.causal,
                       .lengths = a.lengths == nullptr ? nullptr : a.lengths + corner.sequence,
                       .dropout = dropout},
                      context_);
    pointers.emplace_back(t.mask, mask);
    pointers.emplace_back(t.kept_scale, &p.kept_scale);
  }

  // Enqueues `compare` (corner, pieces, flags) for some corners, then `repair` (flags), then the
  // copy of the verdict.
  template <typename Args, typename Compare, typename Repair>
  void Check(Prepared& p, const Args& a, const Compare& compare, const Repair& repair) {
    if (p.trust == Trust::kTrusted) return;
    // A difference that was found once stays found.
    Note(cudaMemsetAsync(&p.flags->compared, 0, sizeof(CheckFlags) - sizeof(uint32_t),
                         context_.stream));
    const int64_t key_heads = a.heads / a.group;
    const int64_t all = a.sequences * key_heads;
    // The pairs are spread over the call, since faults often show at one end only.
    const int64_t compared = std::min(kCompared, all);
    for (int64_t i = 0; i < compared; ++i) {
      const int64_t at = compared == 1 ? 0 : i * (all - 1) / (compared - 1);
      compare(Corner{at / key_heads, at % key_heads}, Pieces(context_), p.flags);
    }
    // The repair is enqueued in any case and decides on the device, so that the host never waits.
    repair(&p.flags->differ);
    // The first verdict is still on its way, and its memory in use.
    if (p.trust == Trust::kPending) return;
    // The copy goes behind the comparison on the same stream, and the event behind the copy.
    Note(cudaMemcpyAsync(p.seen, p.flags, sizeof(CheckFlags), cudaMemcpyDeviceToHost,
                         context_.stream));
    Note(cudaEventRecord(p.arrived, context_.stream));
    p.trust = Trust::kPending;
  }

  bool HasVerdicts() {
    bool open = false;
    for (auto& [key, prepared] : prepared_) {
      if (prepared.trust == Trust::kPending) Look(prepared);
      open = open || IsOpen(prepared.trust);
    }
    return !open;
  }

  const CudaContext& context() const { return context_; }
  void Note(cudaError_t error) {
    if (error != cudaSuccess) errors_.Report("Attention", cudaGetErrorName(error));
  }

 private:
  void FellBack(std::string text) {
    if (notes_ == nullptr) return;
    notes_->Count(Fallback::kAttention);
    // Each shape is reported, since models have few, and its sizes say how much it costs.
    notes_->Warn(std::move(text));
  }

  // The verdict, if it has arrived.
  void Look(Prepared& p) {
    const cudaError_t state = cudaEventQuery(p.arrived);
    if (state != cudaSuccess) {
      if (state == cudaErrorNotReady) cudaGetLastError();  // not an error: it is queried again
      return;
    }
    // An undecided comparison leaves trust open, so the next call is compared again.
    p.trust = Trust::kUnknown;
    if (p.seen->differ != 0) {
      p.trust = Trust::kRefused;
      FellBack(p.what + ": " + NameOf(library_) +
               " and our own kernel differ by more than rounding; from now on we use our own, "
               "which is slower");
    } else if (p.seen->compared != 0 && p.seen->undecided == 0) {
      p.trust = Trust::kTrusted;
      if (notes_ != nullptr) notes_->Info(p.what + ": " + NameOf(library_));
    }
  }

  bool IsCaptured() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    Note(cudaStreamIsCapturing(context_.stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }

  // "" or why not.
  std::string Prepare(Direction direction, const CudnnAttentionShape& shape, Prepared& p) {
    if (std::string why = Open(); !why.empty()) return why;
    // The memory of flags was allocated for this many.
    if (shapes_ == kMostShapes) return "too many shapes";
    // Whatever cannot be compared cannot earn trust.
    if (CheckBytes(shape) > context_.workspace_bytes) {
      return "the workspace is too small to compare results";
    }
    CudnnRepetition repetition{true, {}};
    if (direction == Direction::kBackward) {
      repetition = RepetitionOf(shape, capability_, library_.version);
    }
    if (!repetition.repeats) return "the library does not guarantee to repeat bits on this GPU";
    // The workspace is cut into parts in the order in which a call takes them.
    const auto part = PartThatFits(direction, shape, context_.workspace_bytes);
    if (!part) {
      return direction == Direction::kForward
                 ? "the workspace is too small for the dropout mask of one head"
                 : "the workspace is too small for the gradients of one head's scores";
    }
    p.part = *part;
    int64_t room = context_.workspace_bytes - MaskBytes(p.part);
    CudnnGraph graph(library_);
    if (direction == Direction::kForward) {
      p.forward = AddAttention(p.part, graph);
    } else {
      // The sums of dout * out need memory of their own beside the plan's workspace.
      room -= DeltaBytes(p.part);
      p.backward = AddAttentionBackward(p.part, graph);
    }
    auto plan = graph.Plan({handle_, nullptr, room, std::move(repetition.engine)});
    if (!plan) return NameOf(library_) + ": " + graph.failure();
    // Nobody asks for this event's time, and without it recording is cheaper.
    cudaError_t error = cudaEventCreateWithFlags(&p.arrived, cudaEventDisableTiming);
    p.flags = flags_ + shapes_;
    p.seen = seen_ + shapes_;
    ++shapes_;
    if (error == cudaSuccess) {
      error = cudaMemsetAsync(p.flags, 0, sizeof(CheckFlags), context_.stream);
    }
    if (error == cudaSuccess && p.part.padded) error = MakeWhole(p);
    if (error != cudaSuccess) return cudaGetErrorName(error);
    // The plan is taken last, so a shape is either complete or refused.
    p.plan = *std::move(plan);
    return "";
  }

  // The library wants lengths of queries, too. Those that are padding are computed like others.
  cudaError_t MakeWhole(Prepared& p) {
    const size_t count = static_cast<size_t>(p.part.sequences);
    const size_t bytes = count * sizeof(int32_t);
    cudaError_t error = cudaMalloc(&p.whole, bytes);
    if (error == cudaSuccess) error = cudaMallocHost(&p.whole_on_host, bytes);
    if (error != cudaSuccess) return error;
    std::fill_n(p.whole_on_host, count, static_cast<int32_t>(p.part.tokens));
    return cudaMemcpyAsync(p.whole, p.whole_on_host, bytes, cudaMemcpyHostToDevice,
                           context_.stream);
  }

  // Allocates what only the first shape needs.
  std::string Open() {
    if (handle_ != nullptr) return "";
    int device = 0;
    int major = 0;
    int minor = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    }
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    }
    capability_ = 10 * major + minor;
    // After a failure the next attempt keeps what was already allocated.
    if (error == cudaSuccess && flags_ == nullptr) {
      error = cudaMalloc(&flags_, kMostShapes * sizeof(CheckFlags));
    }
    if (error == cudaSuccess && seen_ == nullptr) {
      error = cudaMallocHost(&seen_, kMostShapes * sizeof(CheckFlags));
    }
    if (error != cudaSuccess) {
      cudaGetLastError();  // reported here
      return cudaGetErrorName(error);
    }
    cudnnStatus_t status = library_.create(&handle_);
    if (status == CUDNN_STATUS_SUCCESS) status = library_.set_stream(handle_, context_.stream);
    if (status == CUDNN_STATUS_SUCCESS) return "";
    const std::string why = NameOf(library_) + ": " + Explain(library_, status);
    // A handle without a stream must not be mistaken for a complete one.
    if (handle_ != nullptr) library_.destroy(std::exchange(handle_, nullptr));
    return why;
  }

  const CudnnLibrary library_;
  const CudaContext context_;
  OperationNotes* const notes_;
  OperationErrors& errors_;
  cudnnHandle_t handle_ = nullptr;
  int capability_ = 0;    // the device's compute capability; 90: 9.0
  bool is_told_ = false;  // whether the missing library was reported
  CheckFlags* flags_ = nullptr;
  CheckFlags* seen_ = nullptr;
  int shapes_ = 0;
  std::map<std::pair<Direction, CudnnAttentionShape>, Prepared> prepared_;
  std::set<std::pair<Direction, CudnnAttentionShape>> captured_;  // reported
};

namespace {

// What masks of a call depend on, from this pair on.
template <typename Args>
void MoveTo(const Corner& corner, Args& args) {
  if (args.lengths != nullptr) args.lengths += corner.sequence;
  args.dropout.first_sequence += corner.sequence;
  args.first_head += corner.key_head * args.group;
}

// One sequence and key head of a call, for our own kernel.
AttentionArgs CornerOf(const AttentionArgs& a, const Corner& corner, Values out, float* lse) {
  const Offsets at = OffsetsOf(a, corner);
  AttentionArgs own = a;
  // Only the pair's own rows are computed, so a comparison costs little even for a long batch.
  own.q = a.q + at.q;
  own.k = a.k + at.k;
  own.v = a.v + at.k;
  own.out = out;
  own.lse = lse;
  own.sequences = 1;
  own.heads = a.group;
  MoveTo(corner, own);
  return own;
}

struct OwnGradients {
  AttentionBackwardArgs args;
  cudaError_t error = cudaSuccess;
};

// The same for gradients, from dense copies of the inputs, into adjacent rows.
OwnGradients CornerOf(const AttentionBackwardArgs& a, const Corner& corner, Pieces& pieces,
                      cudaStream_t stream) {
  const Offsets at = OffsetsOf(a, corner);
  const Format format = a.q.format();
  const int64_t width = a.group * a.head_dim;
  const int64_t stride = width + 2 * a.head_dim;
  OwnGradients own{a};
  // The first error is kept, and nothing is copied after it.
  const auto copy = [&](Values to, int64_t to_stride, ConstValues from, int64_t from_stride,
                        int64_t columns) {
    if (own.error != cudaSuccess) return;
    const auto bytes = [&](int64_t count) { return static_cast<size_t>(from.BytesFor(count)); };
    own.error = cudaMemcpy2DAsync(to.data(), bytes(to_stride), from.data(), bytes(from_stride),
                                  bytes(columns), static_cast<size_t>(a.tokens),
                                  cudaMemcpyDeviceToDevice, stream);
  };
  // Dense copies let our own kernel see one sequence and one key head as a whole call.
  const Values q = pieces.TakeValues(format, a.tokens * stride);
  const Values dq = pieces.TakeValues(format, a.tokens * stride);
  const Values out = pieces.TakeValues(format, a.tokens * width);
  const Values dout = pieces.TakeValues(format, a.tokens * width);
  copy(q, stride, a.q + at.q, a.stride, width);
  copy(q + width, stride, a.k + at.k, a.stride, a.head_dim);
  copy(q + width + a.head_dim, stride, a.v + at.k, a.stride, a.head_dim);
  copy(out, width, a.out + at.out, a.heads * a.head_dim, width);
  copy(dout, width, a.dout + at.out, a.heads * a.head_dim, width);
  AttentionBackwardArgs& args = own.args;
  args.q = q;
  args.k = q + width;
  args.v = q + width + a.head_dim;
  args.dq = dq;
  args.dk = dq + width;
  args.dv = dq + width + a.head_dim;
  args.out = out;
  args.dout = dout;
  args.lse = a.lse + at.lse;
  args.stride = stride;
  args.sequences = 1;
  args.heads = a.group;
  MoveTo(corner, args);
  return own;
}

float NearOf(Format format) { return format == Format::kBfloat16 ? kNearBfloat16 : kNearFloat16; }

}  // namespace

CudnnAttention::CudnnAttention(const CudaContext& context, OperationNotes* notes,
                               OperationErrors* errors)
    : library_(std::make_unique<Library>(context, notes, errors)) {}
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::Attention(const AttentionArgs& a) {
  if (!CudnnTakes(a)) return false;
  Library::Prepared* p = library_->Usable(Direction::kForward, a);
  if (p == nullptr) return false;
  const CudaContext& context = library_->context();
  Pieces pieces(context);
  std::byte* mask = pieces.Take(MaskBytes(p->part));
  library_->ForParts(*p, a, [&](const Corner& corner) {
    const Offsets at = OffsetsOf(a, corner);
    const CudnnForwardIds& t = p->forward;
    CudnnPointers pointers = {{t.q, (a.q + at.q).data()}, {t.k, (a.k + at.k).data()},
                              {t.v, (a.v + at.k).data()}, {t.out, (a.out + at.out).data()},
                              {t.lse, a.lse + at.lse},    {t.scale, &p->scale}};
    library_->AddOptional(*p, t.optional, a, corner, mask, pointers);
    library_->Run("Attention", *p, pointers, pieces.rest().workspace);
  });
  const int64_t width = a.group * a.head_dim;
  library_->Check(
      *p, a,
      [&](const Corner& corner, Pieces own_pieces, CheckFlags* flags) {
        const Offsets at = OffsetsOf(a, corner);
        float* peaks = own_pieces.TakeFloats(kCheckBlocks);
        float* lse = own_pieces.TakeFloats(a.group * a.tokens);
        const Values out = own_pieces.TakeValues(a.out.format(), a.tokens * width);
        AttentionCuda(CornerOf(a, corner, out, lse), own_pieces.rest());
        CheckCuda({.expected = out,
                   .actual = a.out + at.out,
                   .rows = a.tokens,
                   .columns = width,
                   .expected_stride = width,
                   .actual_stride = a.heads * a.head_dim},
                  NearOf(a.out.format()), peaks, flags, context.stream);
        CheckCuda({.expected = lse,
                   .actual = a.lse + at.lse,
                   .rows = a.group,
                   .columns = a.tokens,
                   .expected_stride = a.tokens,
                   .actual_stride = a.tokens},
                  kNearLse, peaks, flags, context.stream);
      },
      [&](const uint32_t* differ) { AttentionCuda(a, context, differ); });
  return true;
}

bool CudnnAttention::HasVerdicts() { return library_->HasVerdicts(); }

bool CudnnAttention::AttentionBackward(const AttentionBackwardArgs& a) {
  if (!CudnnTakes(a)) return false;
  Library::Prepared* p = library_->Usable(Direction::kBackward, a);
  if (p == nullptr) return false;
  const CudaContext& context = library_->context();
  Pieces pieces(context);
  std::byte* delta = pieces.Take(DeltaBytes(p->part));
  std::byte* mask = pieces.Take(MaskBytes(p->part));
  library_->ForParts(*p, a, [&](const Corner& corner) {
    const Offsets at = OffsetsOf(a, corner);
    const CudnnBackwardIds& t = p->backward;
    CudnnPointers pointers = {{t.q, (a.q + at.q).data()},
                              {t.k, (a.k + at.k).data()},
                              {t.v, (a.v + at.k).data()},
                              {t.out, (a.out + at.out).data()},
                              {t.dout, (a.dout + at.out).data()},
                              {t.lse, a.lse + at.lse},
                              {t.dq, (a.dq + at.q).data()},
                              {t.dk, (a.dk + at.k).data()},
                              {t.dv, (a.dv + at.k).data()},
                              {t.delta, delta},
                              {t.scale, &p->scale},
                              {t.keep, &p->keep}};
    library_->AddOptional(*p, t.optional, a, corner, mask, pointers);
    library_->Run("AttentionBackward", *p, pointers, pieces.rest().workspace);
  });
  // Nothing attends to padding, and the library does not promise what it writes there.
  if (p->part.padded) ZeroPaddingCuda(a, context);
  library_->Check(
      *p, a,
      [&](const Corner& corner, Pieces own_pieces, CheckFlags* flags) {
        const Offsets at = OffsetsOf(a, corner);
        float* peaks = own_pieces.TakeFloats(kCheckBlocks);
        const OwnGradients own = CornerOf(a, corner, own_pieces, context.stream);
        library_->Note(own.error);
        AttentionBackwardCuda(own.args, own_pieces.rest());
        const auto check = [&](Values expected, Values actual, int64_t columns) {
          CheckCuda({.expected = expected,
                     .actual = actual,
                     .rows = a.tokens,
                     .columns = columns,
                     .expected_stride = own.args.stride,
                     .actual_stride = a.stride},
                    NearOf(a.dq.format()), peaks, flags, context.stream);
        };
        check(own.args.dq, a.dq + at.q, a.group * a.head_dim);
        check(own.args.dk, a.dk + at.k, a.head_dim);
        check(own.args.dv, a.dv + at.k, a.head_dim);
      },
      [&](const uint32_t* differ) { AttentionBackwardCuda(a, context, differ); });
  return true;
}

}  // namespace tercio::kernels::cuda
