// Attention by cuDNN: what it takes, its results against the CPU's, repeated bits, parts of a call,
// and whom it is trusted by when. On a GPU the library is the real one; under the emulation the
// library's graph is executed as it is described (emulation/include/cudnn.h), and it can be
// missing, old, wrong or stubborn.
#include "kernels/cuda/attention_cudnn.h"

#include <cudnn.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/testing/both_backends.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kBfloat16, Format::kFloat16};

// The library rounds probabilities and the gradients of scores to the format, before products that
// are as large as the row's largest element (docs/numerics.md).
double NearOf(Format format) { return format == Format::kBfloat16 ? 0x1p-6 : 0x1p-9; }

struct Case {
  int64_t sequences, tokens, heads, group, head_dim;
  bool causal;
  int64_t more_stride = 0;
  float dropout = 0;
  bool padded = false;
  float scale = 0;

  int64_t width() const { return heads * head_dim; }
  int64_t key_width() const { return width() / group; }
  int64_t stride() const { return width() + 2 * key_width() + more_stride; }
  int64_t rows() const { return sequences * tokens; }
};
constexpr Case kCases[] = {
    {2, 64, 2, 1, 64, true},
    {1, 37, 4, 2, 16, true},
    {2, 33, 2, 1, 24, false, 8},
    {3, 16, 3, 3, 8, false},
    {1, 130, 2, 1, 32, true, 16},
    {2, 5, 4, 4, 128, true},
    {1, 2, 1, 1, 8, true},
    {1, 40, 1, 1, 256, false},
    // Masks of an odd length, padding, and both; with and without groups.
    {2, 37, 4, 2, 16, true, 0, 0.1f},
    {3, 64, 4, 2, 32, false, 0, 0, true},
    {4, 33, 2, 1, 16, false, 0, 0.1f, true},
    // Another scale, which is a number beside the graph.
    {1, 37, 2, 1, 16, true, 0, 0, false, 0.5f},
};

std::string NameOf(const Case& c) {
  return std::to_string(c.sequences) + " x " + std::to_string(c.tokens) + ", heads " +
         std::to_string(c.heads) + " / " + std::to_string(c.group) + " of " +
         std::to_string(c.head_dim) + (c.causal ? ", causal" : "") + (c.padded ? ", padded" : "") +
         (c.dropout > 0 ? ", dropout" : "");
}

// Masks depend on where a call is in its batch and its model.
template <typename Args>
void SetMasks(const Case& c, const int32_t* lengths, Args& args) {
  args.causal = c.causal;
  args.lengths = c.padded ? lengths : nullptr;
  args.first_head = 5;
  args.scale = c.scale;
  args.dropout = {.probability = c.dropout,
                  .seed = 7,
                  .step = 11,
                  .layer = 2,
                  .site = kSiteAttention,
                  .first_sequence = 9,
                  .tokens = c.tokens};
}

AttentionArgs ForwardOf(const Case& c, Values qkv, Values out, float* lse, float* scratch,
                        const int32_t* lengths) {
  AttentionArgs args{.q = qkv,
                     .k = qkv + c.width(),
                     .v = qkv + c.width() + c.key_width(),
                     .stride = c.stride(),
                     .out = out,
                     .lse = lse,
                     .sequences = c.sequences,
                     .tokens = c.tokens,
                     .heads = c.heads,
                     .head_dim = c.head_dim,
                     .group = c.group};
  SetMasks(c, lengths, args);
  args.scratch = scratch;
  return args;
}

AttentionBackwardArgs BackwardOf(const Case& c, Values qkv, Values out, Values dout,
                                 const float* lse, Values dqkv, float* scratch,
                                 const int32_t* lengths) {
  const int64_t key = c.width();
  const int64_t value = key + c.key_width();
  AttentionBackwardArgs args{.dout = dout,
                             .out = out,
                             .lse = lse,
                             .q = qkv,
                             .k = qkv + key,
                             .v = qkv + value,
                             .dq = dqkv,
                             .dk = dqkv + key,
                             .dv = dqkv + value,
                             .stride = c.stride(),
                             .sequences = c.sequences,
                             .tokens = c.tokens,
                             .heads = c.heads,
                             .head_dim = c.head_dim,
                             .group = c.group};
  SetMasks(c, lengths, args);
  args.scratch = scratch;
  return args;
}

TEST(CudnnTakesTest, WhatItsGraphExpresses) {
  alignas(16) std::byte memory[64] = {};
  float* floats = reinterpret_cast<float*>(memory);
  const auto takes = [&](const auto& change) {
    const Values values(memory, Format::kBfloat16, Format::kBfloat16);
    AttentionArgs args =
        ForwardOf({2, 64, 4, 2, 64, true}, values, values, floats, nullptr, nullptr);
    change(args);
    return CudnnTakes(args);
  };
  EXPECT_TRUE(takes([](AttentionArgs&) {}));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.causal = false; }));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.head_dim = 256; }));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.tokens = 2; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.tokens = 1; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.sequences = 0; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.head_dim = 264; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.head_dim = 20; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.stride += 4; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.k = a.k + 4; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.lse += 1; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.first_query = 1; }));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.scale = 1; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.softcap = 50; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.window = 63; }));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.window = 64; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.bias.weight = a.q; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.key_tokens = 32; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.key_stride = 2 * a.stride; }));
  EXPECT_TRUE(takes([](AttentionArgs& a) {
    a.key_tokens = a.tokens;
    a.key_stride = a.stride;
  }));
  EXPECT_TRUE(takes([](AttentionArgs& a) { a.dropout.probability = 0.1f; }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.dropout.probability = 1; }));
  const int32_t lengths[] = {64, 3};
  EXPECT_TRUE(takes([&](AttentionArgs& a) {
    a.causal = false;
    a.lengths = lengths;
  }));
  EXPECT_FALSE(takes([&](AttentionArgs& a) { a.q = a.k = a.v = a.out = Values(floats); }));
  EXPECT_FALSE(takes([](AttentionArgs& a) { a.tokens = int64_t{1} << 24; }));

  const auto takes_backward = [&](const auto& change) {
    const Values values(memory, Format::kFloat16, Format::kFloat16);
    AttentionBackwardArgs args = BackwardOf({2, 64, 4, 2, 64, false}, values, values, values,
                                            floats, values, nullptr, nullptr);
    change(args);
    return CudnnTakes(args);
  };
  EXPECT_TRUE(takes_backward([](AttentionBackwardArgs&) {}));
  EXPECT_FALSE(takes_backward([](AttentionBackwardArgs& a) { a.dv = a.dv + 1; }));
  EXPECT_FALSE(takes_backward([](AttentionBackwardArgs& a) { a.key_tokens = 32; }));
  EXPECT_TRUE(takes_backward([](AttentionBackwardArgs& a) { a.dropout.probability = 0.5f; }));
}

class AttentionCudnnTest : public BothBackendsTest {
 protected:
  AttentionCudnnTest() {
    scratch_.product_bytes = 4 << 20;
    notes_ = &of_case_;
  }
  void SetUp() override {
#ifdef TERCIO_CUDA_EMULATED
    emulation::ConfigureCudnn({});
#endif
    BothBackendsTest::SetUp();
  }
  void TearDown() override {
    BothBackendsTest::TearDown();
#ifdef TERCIO_CUDA_EMULATED
    EXPECT_EQ(emulation::GetCudnnCounts().descriptors, 0);
    emulation::ConfigureCudnn({});
#endif
  }

  // The case's call, twice: then the verdict of the first one is there.
  std::vector<Tensor> CheckTwice(const Call& call, const Options& options) {
    auto results = Check(
        [&](Ops& ops, const Bound& t) {
          call(ops, t);
          EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
          call(ops, t);
        },
        options);
    // Our own kernel repairs what the library does wrong: that would not be seen in the results.
    int trusted = 0;
    for (const OperationNote& note : of_case_.Take()) {
      EXPECT_FALSE(note.warning) << note.text;
      ++trusted;
    }
    EXPECT_GT(trusted, 0) << name_;
    return results;
  }
  // Whether gradients are the library's on this device.
  static bool RepeatsBits() {
    int major = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    return major == 8 || major == 9;
  }

  // From two tokens to all of them.
  int AddLengths(const Case& c) {
    const int id = AddInts("lengths", c.sequences, 2, static_cast<int32_t>(c.tokens));
    At(id).data.front() = 2;
    At(id).data.back() = static_cast<double>(c.tokens);
    return id;
  }

  OperationNotes of_case_;

  // Addresses that are not aligned are our own kernel's affair.
  static Options OptionsOf(const Case& c) {
    return {false, AttentionScratch({.tokens = c.tokens, .head_dim = c.head_dim}, 1), false};
  }
};

TEST_F(AttentionCudnnTest, Forward) {
  for (const Format format : kFormats) {
    for (const Case& c : kCases) {
      Begin(format, NameOf(c));
      const int qkv = AddValues("qkv", c.rows() * c.stride());
      const int out = AddValues("out", c.rows() * c.width(), c.width());
      const int lse = AddFloats("lse", c.rows() * c.heads);
      const int lengths = AddLengths(c);
      Near(NearOf(format), {out});
      Near(2e-5, {lse});
      CheckTwice(
          [&](Ops& ops, const Bound& t) {
            ops.Attention(ForwardOf(c, t.values(qkv), t.values(out), t.floats(lse), t.scratch,
                                    t.ints(lengths)));
          },
          OptionsOf(c));
    }
  }
}

TEST_F(AttentionCudnnTest, Backward) {
  if (!RepeatsBits()) GTEST_SKIP() << "our own kernel's affair on this GPU";
  for (const Format format : kFormats) {
    for (const Case& c : kCases) {
      Begin(format, NameOf(c));
      const int qkv = AddValues("qkv", c.rows() * c.stride());
      const int out = AddValues("out", c.rows() * c.width(), c.width());
      const int lse = AddFloats("lse", c.rows() * c.heads);
      const int dout = AddValues("dout", c.rows() * c.width());
      const int dqkv = AddValues("dqkv", c.rows() * c.stride(), c.rows() * c.stride());
      const int lengths = AddLengths(c);
      // What the forward pass gives, the same for both backends.
      const auto forward = RunOnCpu(
          [&](Ops& ops, const Bound& t) {
            ops.Attention(ForwardOf(c, t.values(qkv), t.values(out), t.floats(lse), t.scratch,
                                    t.ints(lengths)));
          },
          OptionsOf(c));
      At(out).data = forward[static_cast<size_t>(out)].data;
      At(lse).data = forward[static_cast<size_t>(lse)].data;
      Near(NearOf(format), {dqkv});
      CheckTwice(
          [&](Ops& ops, const Bound& t) {
            ops.AttentionBackward(BackwardOf(c, t.values(qkv), t.values(out), t.values(dout),
                                             t.floats(lse), t.values(dqkv), t.scratch,
                                             t.ints(lengths)));
          },
          OptionsOf(c));
    }
  }
}

// One operations object that is called again and again.
class Session {
 public:
  Session(const Case& c, Format format, cudaStream_t stream, int64_t workspace_bytes = 4 << 20,
          AttentionKernel attention = AttentionKernel::kAuto)
      : c_(c),
        format_(format),
        stream_(stream),
        qkv_(Draw(c.rows() * c.stride(), 1), 0),
        dout_(Draw(c.rows() * c.width(), 2), 0),
        out_(std::vector<uint16_t>(
                 static_cast<size_t>(c.rows() * c.width() + kMoreOutputs * kOutputStep)),
             0),
        dqkv_(std::vector<uint16_t>(static_cast<size_t>(c.rows() * c.stride())), 0),
        lse_(c.rows() * c.heads),
        lengths_(Lengths(c), 0),
        workspace_(workspace_bytes),
        ops_(CreateCudaOps({stream, reinterpret_cast<std::byte*>(workspace_.data()),
                            workspace_bytes, &errors_, nullptr, attention, &notes_})) {}

  // The results may lie at other addresses.
  static constexpr int64_t kOutputStep = 8, kMoreOutputs = kMostCudnnPacks + 16;
  void EnqueueForward(int64_t output = 0) {
    ops_->Attention(ForwardOf(c_, At(qkv_), At(out_) + output * kOutputStep, lse_.data(), nullptr,
                              lengths_.data()));
  }
  void EnqueueBackward() {
    ops_->AttentionBackward(BackwardOf(c_, At(qkv_), At(out_), At(dout_), lse_.data(), At(dqkv_),
                                       nullptr, lengths_.data()));
  }
  // All results, after what was enqueued.
  std::vector<uint16_t> Results() {
    std::vector<uint16_t> all = out_.Read(stream_);
    for (const float value : lse_.Read(stream_)) {
      uint16_t words[2];
      std::memcpy(words, &value, sizeof(value));
      all.insert(all.end(), words, words + 2);
    }
    const std::vector<uint16_t> gradients = dqkv_.Read(stream_);
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
  std::vector<uint16_t> Run() {
    EnqueueForward();
    EnqueueBackward();
    return Results();
  }
  // The texts so far, a line each, warnings with an exclamation mark.
  std::string Notes() {
    for (const OperationNote& note : notes_.Take()) {
      texts_ += (note.warning ? "! " : "") + note.text + "\n";
    }
    return texts_;
  }
  bool ReadyToRecord() { return ops_->ReadyToRecord(); }
  const FallbackCounts& fallbacks() const { return notes_.fallbacks(); }
  // One number of a query that is none.
  void SetNumber(bool is_one) {
    const uint16_t value = is_one ? 0 : 0x7fff;
    EXPECT_EQ(cudaMemcpy(qkv_.data() + 3, &value, sizeof(value), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  const OperationErrors& errors() const { return errors_; }
  Ops& ops() { return *ops_; }

 private:
  static std::vector<int32_t> Lengths(const Case& c) {
    std::vector<int32_t> lengths;
    for (int64_t i = 0; i < c.sequences; ++i) {
      lengths.push_back(static_cast<int32_t>(c.tokens * (i + 1) / (c.sequences + 1)));
    }
    return lengths;
  }
  std::vector<uint16_t> Draw(int64_t count, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(format_ == Format::kBfloat16
                           ? __bfloat16_as_ushort(__float2bfloat16_rn(normal(random)))
                           : __half_as_ushort(__float2half_rn(normal(random))));
    }
    return values;
  }
  Values At(DeviceBuffer<uint16_t>& buffer) const {
    return Values(reinterpret_cast<std::byte*>(buffer.data()), format_, format_);
  }

  const Case c_;
  const Format format_;
  cudaStream_t stream_;
  DeviceBuffer<uint16_t> qkv_, dout_, out_, dqkv_;
  DeviceBuffer<float> lse_;
  DeviceBuffer<int32_t> lengths_;
  DeviceBuffer<unsigned char> workspace_;
  OperationErrors errors_;
  OperationNotes notes_;
  std::string texts_;
  std::unique_ptr<Ops> ops_;
};

constexpr Case kLayer = {2, 48, 4, 2, 32, true};
constexpr Case kEncoder = {4, 48, 4, 1, 32, false, 0, 0.1f, true};

// Compared at first, then trusted: the same bits.
TEST_F(AttentionCudnnTest, BitsRepeat) {
  for (const Format format : kFormats) {
    for (const Case& c : {kLayer, kEncoder, Case{1, 200, 2, 1, 64, false}}) {
      Session session(c, format, stream_);
      const auto first = session.Run();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(session.Run(), first) << NameOf(c);
      EXPECT_FALSE(session.errors().first());
      EXPECT_EQ(Session(c, format, stream_).Run(), first) << NameOf(c);
    }
  }
}

#ifdef TERCIO_CUDA_EMULATED

constexpr char kName[] = "2 x 48 tokens, heads 4 / 2 of 32, causal, bf16";

std::vector<uint16_t> OwnBits(cudaStream_t stream, const Case& c = kLayer) {
  Session own(c, Format::kBfloat16, stream, 1 << 20, AttentionKernel::kOwn);
  const auto bits = own.Run();
  EXPECT_EQ(own.Notes(), "");
  return bits;
}

TEST_F(AttentionCudnnTest, IsTrustedAfterAComparisonThatNobodyWaitsFor) {
  Session session(kLayer, Format::kBfloat16, stream_);
  const int64_t works = emulation::GetCounts().works;
  session.EnqueueForward();
  session.EnqueueBackward();
  EXPECT_EQ(emulation::GetCounts().works, works);  // all of it is only enqueued
  EXPECT_FALSE(session.ReadyToRecord());
  const auto first = session.Results();
  EXPECT_EQ(session.Notes(), "");
  EXPECT_NE(first, OwnBits(stream_));
  EXPECT_EQ(session.Run(), first);  // the verdicts were there
  EXPECT_EQ(session.Notes(), std::string("attention of ") + kName +
                                 ": cuDNN 9.19.0\ngradients of attention of " + kName +
                                 ": cuDNN 9.19.0\n");
  const int64_t kernels = emulation::GetCounts().kernels;
  EXPECT_EQ(session.Run(), first);
  EXPECT_EQ(emulation::GetCounts().kernels, kernels);  // none of ours
  EXPECT_EQ(emulation::GetCudnnCounts().plans, 2);
  EXPECT_EQ(emulation::GetCudnnCounts().executions, 6);
  EXPECT_TRUE(session.ReadyToRecord());
  EXPECT_EQ(session.fallbacks(), FallbackCounts());
}

// However long the verdict takes.
TEST_F(AttentionCudnnTest, CallsBeforeTheVerdictHaveTheSameBits) {
  Session session(kLayer, Format::kBfloat16, stream_);
  for (int i = 0; i < 3; ++i) session.EnqueueForward();
  const auto first = session.Results();
  session.EnqueueForward();
  EXPECT_EQ(session.Results(), first);
}

TEST_F(AttentionCudnnTest, WrongResultsAreReplacedAndTheLibraryIsRefused) {
  emulation::ConfigureCudnn({.fault = emulation::CudnnFault::kIgnoresMask});
  const auto own = OwnBits(stream_);
  Session session(kLayer, Format::kBfloat16, stream_);
  EXPECT_EQ(session.Run(), own);  // the device knows
  EXPECT_EQ(session.Run(), own);  // the host, too
  const int64_t executions = emulation::GetCudnnCounts().executions;
  EXPECT_EQ(session.Run(), own);
  EXPECT_EQ(emulation::GetCudnnCounts().executions, executions);
  const std::string why =
      ": cuDNN 9.19.0 and our own kernel differ by more than rounding; from now on we use our own, "
      "which is slower\n";
  EXPECT_EQ(session.Notes(), std::string("! attention of ") + kName + why +
                                 "! gradients of attention of " + kName + why);
  EXPECT_FALSE(session.errors().first());
  // Every call until the host learns it.
  Session eager(kLayer, Format::kBfloat16, stream_);
  for (int i = 0; i < 3; ++i) eager.EnqueueForward();
  eager.EnqueueBackward();
  EXPECT_EQ(eager.Results(), own);
}

// A library that attends to padding.
TEST_F(AttentionCudnnTest, WrongPaddingIsFound) {
  emulation::ConfigureCudnn({.fault = emulation::CudnnFault::kIgnoresMask});
  for (const float dropout : {0.0f, 0.1f}) {
    Case c = kEncoder;
    c.dropout = dropout;
    const auto own = OwnBits(stream_, c);
    Session session(c, Format::kBfloat16, stream_);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(session.Run(), own) << dropout;
    EXPECT_EQ(session.fallbacks()[static_cast<size_t>(Fallback::kAttention)], 2);
    EXPECT_NE(session.Notes().find(", padded"), std::string::npos) << session.Notes();
  }
}

TEST_F(AttentionCudnnTest, NumbersThatAreNoneDecideNothing) {
  Session session(kLayer, Format::kBfloat16, stream_);
  session.SetNumber(false);
  for (int i = 0; i < 3; ++i) session.Run();
  EXPECT_EQ(session.Notes(), "");
  EXPECT_FALSE(session.ReadyToRecord());
  session.SetNumber(true);
  for (int i = 0; i < 3; ++i) session.Run();
  EXPECT_TRUE(session.ReadyToRecord());
  EXPECT_NE(session.Notes().find("attention of"), std::string::npos);
  EXPECT_EQ(session.Notes().find("!"), std::string::npos);
}

TEST_F(AttentionCudnnTest, LibrariesThatDoNotDoLeaveItToUs) {
  const auto own = OwnBits(stream_);
  const struct {
    emulation::CudnnSettings settings;
    std::string why;
  } cases[] = {
      {{.present = false},
       "! attention: our own kernel, which is slower: no cuDNN: the emulation is configured to "
       "have none\n"},
      {{.version = 91500},
       "! attention: our own kernel, which is slower: no cuDNN: 9.15.0 is older than 9.16.0\n"},
      {{.fault = emulation::CudnnFault::kNoHandle}, "CUDNN_STATUS_NOT_INITIALIZED: the library "},
      {{.fault = emulation::CudnnFault::kNoEngine}, "cuDNN 9.19.0: no engine supports it"},
  };
  for (const auto& c : cases) {
    emulation::ConfigureCudnn(c.settings);
    Session session(kLayer, Format::kBfloat16, stream_);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(session.Run(), own) << c.why;
    EXPECT_NE(session.Notes().find(c.why), std::string::npos) << session.Notes();
    EXPECT_FALSE(session.errors().first());
    EXPECT_EQ(emulation::GetCudnnCounts().executions, 0);
  }
}

TEST_F(AttentionCudnnTest, GradientsAreComputedInPartsThatFit) {
  const Case c = {4, 48, 4, 2, 32, true};
  Session whole(c, Format::kBfloat16, stream_);
  const auto bits = whole.Run();
  whole.Run();
  EXPECT_EQ(emulation::GetCudnnCounts().executions, 4);
  // A head's scores take 16 KiB, padded.
  struct Fit {
    int64_t bytes;
    int64_t parts;
  };
  for (const Fit& fit : {Fit{250 << 10, 2}, Fit{130 << 10, 4}, Fit{80 << 10, 8}}) {
    emulation::ConfigureCudnn({});
    Session parts(c, Format::kBfloat16, stream_, fit.bytes);
    EXPECT_EQ(parts.Run(), bits) << fit.bytes;
    EXPECT_EQ(parts.Run(), bits) << fit.bytes;
    EXPECT_EQ(emulation::GetCudnnCounts().executions, 2 * (1 + fit.parts)) << fit.bytes;
    EXPECT_EQ(parts.Notes().find("!"), std::string::npos) << parts.Notes();
  }
}

// On compute capability 10 one engine repeats its bits; not with dropout, nor in all versions.
TEST_F(AttentionCudnnTest, GradientsOfBlackwellHaveAnEngineOfTheirOwn) {
  EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  emulation::Configure({.major = 10});
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  Case padded = kEncoder;
  padded.dropout = 0;
  constexpr Case kWide = {1, 40, 1, 1, 256, false};
  const struct {
    Case layer;
    size_t version;
    int plans;
  } cases[] = {{kLayer, 91800, 2}, {padded, 91900, 2},   {kLayer, 91700, 1},
               {kLayer, 92300, 1}, {kEncoder, 91900, 1}, {kWide, 91900, 1}};
  for (const auto& c : cases) {
    emulation::ConfigureCudnn({.version = c.version});
    Session session(c.layer, Format::kBfloat16, stream_, 8 << 20);
    const auto first = session.Run();
    EXPECT_EQ(session.Run(), first);
    EXPECT_FALSE(session.errors().first());
    EXPECT_EQ(emulation::GetCudnnCounts().plans, c.plans) << NameOf(c.layer) << c.version;
    EXPECT_EQ(session.Notes().find("! gradients") == std::string::npos, c.plans == 2)
        << session.Notes();
  }
  EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  emulation::Configure({});
  stream_ = nullptr;
}

// Masks take memory, for the forward pass as well, and padding has to be that of the part.
TEST_F(AttentionCudnnTest, MasksAreMadeInPartsThatFit) {
  Session whole(kEncoder, Format::kBfloat16, stream_);
  const auto bits = whole.Run();
  EXPECT_EQ(whole.Run(), bits);
  EXPECT_EQ(emulation::GetCudnnCounts().executions, 4);
  // A sequence's mask takes 18 KiB, its gradients beside it 50 KiB.
  for (const int64_t bytes : {int64_t{100} << 10, int64_t{60} << 10}) {
    emulation::ConfigureCudnn({});
    Session parts(kEncoder, Format::kBfloat16, stream_, bytes);
    EXPECT_EQ(parts.Run(), bits) << bytes;
    EXPECT_EQ(parts.Run(), bits) << bytes;
    EXPECT_GT(emulation::GetCudnnCounts().executions, 4) << bytes;
    EXPECT_EQ(parts.Notes().find("!"), std::string::npos) << parts.Notes();
  }
}

TEST_F(AttentionCudnnTest, PointersThatComeBackAreMadeOnce) {
  Session session(kLayer, Format::kBfloat16, stream_);
  for (int i = 0; i < 5; ++i) session.Run();
  EXPECT_EQ(emulation::GetCudnnCounts().executions, 10);
  EXPECT_EQ(emulation::GetCudnnCounts().packs, 2);
  session.EnqueueForward(1);
  EXPECT_EQ(emulation::GetCudnnCounts().packs, 3);
  session.EnqueueForward(0);
  EXPECT_EQ(emulation::GetCudnnCounts().packs, 3);
  EXPECT_FALSE(session.errors().first());
  session.Results();
}

// However many there are, the library keeps few.
TEST_F(AttentionCudnnTest, PointersThatNeverComeBackAreForgotten) {
  Session session({1, 2, 1, 1, 8, true}, Format::kBfloat16, stream_);
  session.EnqueueForward();
  session.Results();
  const int64_t others = emulation::GetCudnnCounts().descriptors - 1;
  for (int64_t i = 1; i < Session::kMoreOutputs; ++i) session.EnqueueForward(i);
  EXPECT_EQ(emulation::GetCudnnCounts().packs, Session::kMoreOutputs);
  EXPECT_LE(emulation::GetCudnnCounts().descriptors, others + int64_t{kMostCudnnPacks});
  EXPECT_FALSE(session.errors().first());
  session.Results();
}

TEST_F(AttentionCudnnTest, WorkspacesThatAreTooSmallLeaveItToUs) {
  const Case c = {1, 200, 2, 1, 8, true};
  Session session(c, Format::kBfloat16, stream_, 64 << 10);
  for (int i = 0; i < 2; ++i) session.Run();
  EXPECT_NE(session.Notes().find("too small for the gradients of one head's scores"),
            std::string::npos)
      << session.Notes();
  EXPECT_EQ(emulation::GetCudnnCounts().plans, 1);  // that of the forward pass
  emulation::ConfigureCudnn({});
  Session smaller(c, Format::kBfloat16, stream_, 8 << 10);
  EXPECT_EQ(smaller.Run(), OwnBits(stream_, c));
  EXPECT_NE(smaller.Notes().find("too small to compare"), std::string::npos) << smaller.Notes();
  EXPECT_EQ(emulation::GetCudnnCounts().plans, 0);
}

TEST_F(AttentionCudnnTest, APlanThatCannotBeExecutedIsAnError) {
  emulation::ConfigureCudnn({.fault = emulation::CudnnFault::kCannotExecute});
  Session session(kLayer, Format::kBfloat16, stream_);
  session.EnqueueForward();
  ASSERT_TRUE(session.errors().first());
  EXPECT_EQ(session.errors().first()->operation, "Attention");
  EXPECT_EQ(session.errors().first()->what,
            std::string("cuDNN 9.19.0, attention of ") + kName +
                ": CUDNN_STATUS_EXECUTION_FAILED: an injected fault");
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

// A verdict cannot be asked for while a graph is made.
TEST_F(AttentionCudnnTest, IsNotTriedForTheFirstTimeInACapturedStream) {
  Session session(kLayer, Format::kBfloat16, stream_);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  session.EnqueueForward();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(emulation::GetCudnnCounts().executions, 0);
  EXPECT_FALSE(session.errors().first());
  // The graph keeps our own kernel, and that is reported.
  EXPECT_NE(session.Notes().find("! attention of"), std::string::npos);
  EXPECT_EQ(session.fallbacks()[static_cast<size_t>(Fallback::kAttention)], 1);
}

#endif

}  // namespace
}  // namespace tercio::kernels::cuda
