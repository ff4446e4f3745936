// For tests of operations on CUDA against those of the CPU: a case is a list of tensors and a call
// of an operation on them. It runs once on the CPU, and on the device at aligned and unaligned
// addresses, each in several orders of threads and blocks. All runs on the device must have the
// same bits, and be near the CPU's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/eight_bits.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/testing/device_test.h"

namespace tercio::kernels::cuda {

inline float RoundTo(Format format, float x) {
  if (format == Format::kBfloat16) return __bfloat162float(__float2bfloat16_rn(x));
  if (format == Format::kFloat16) return __half2float(__float2half_rn(x));
  return x;
}

// The distance of neighbouring numbers of a format at x; 0 for fp32, where tolerances say it all.
inline double StepOf(Format format, double x) {
  if (format == Format::kBfloat16) return std::ldexp(std::abs(x), -7);
  if (format == Format::kFloat16) return std::ldexp(std::abs(x), -10) + 0x1p-24;
  return 0;
}

struct Tensor {
  enum class Kind { kValues, kFloats, kInts, kDoubles, kBits, kEightBits };
  std::string name;
  Kind kind;
  std::vector<double> data;       // exact for all kinds but kBits
  std::vector<uint64_t> bits;     // kBits
  int64_t columns;                // length of a row, whose largest magnitude counts
  double tolerance;               // relative to that; negative: the same bits
  Format format = Format::kE4m3;  // kEightBits

  int64_t size() const {
    return static_cast<int64_t>(kind == Kind::kBits ? bits.size() : data.size());
  }
};

// The addresses of a case's tensors on one backend.
class Bound {
 public:
  Bound(std::vector<std::byte*> at, Format format, Format stored, float* attention_scratch)
      : scratch(attention_scratch), at_(std::move(at)), format_(format), stored_(stored) {}

  static constexpr int kNone = -1;
  Values values(int id) const {
    if (id == kNone) return nullptr;
    return Values(at_[static_cast<size_t>(id)], format_, stored_);
  }
  // In cases of 16-bit values.
  Values eight_bits(int id, Format format) const {
    if (id == kNone) return nullptr;
    return Values(at_[static_cast<size_t>(id)], format,
                  stored_ == Format::kFloat32 ? Format::kFloat32 : format);
  }
  Scale* scale(int id) const { return As<Scale>(id); }
  float* floats(int id) const { return As<float>(id); }
  int32_t* ints(int id) const { return As<int32_t>(id); }
  double* doubles(int id) const { return As<double>(id); }
  uint64_t* bits(int id) const { return As<uint64_t>(id); }

  float* const scratch;  // scratch of the CPU's attention

 private:
  template <typename T>
  T* As(int id) const {
    return id == kNone ? nullptr : reinterpret_cast<T*>(at_[static_cast<size_t>(id)]);
  }

  std::vector<std::byte*> at_;
  Format format_;
  Format stored_;
};

class BothBackendsTest : public DeviceTest {
 protected:
  static constexpr uint64_t kSeed = 20261123;
  using Call = std::function<void(Ops&, const Bound&)>;

  // Forgets the tensors of the case before. Those that follow are of this format.
  void Begin(Format format, const std::string& name) {
    format_ = format;
    name_ = name + (format == Format::kFloat32    ? " fp32"
                    : format == Format::kBfloat16 ? " bf16"
                                                  : " fp16");
    tensors_.clear();
  }

  // Each returns the tensor's number. `columns`: of a row; 0: all is one row.
  int AddValues(const std::string& name, int64_t count, int64_t columns = 0, double scale = 1,
                double offset = 0) {
    return AddRandom(Tensor::Kind::kValues, name, count, columns, scale, offset);
  }
  int AddFloats(const std::string& name, int64_t count, int64_t columns = 0, double scale = 1,
                double offset = 0) {
    return AddRandom(Tensor::Kind::kFloats, name, count, columns, scale, offset);
  }
  int AddInts(const std::string& name, int64_t count, int32_t least, int32_t most) {
    std::uniform_int_distribution<int32_t> draw(least, most);
    Tensor tensor{name, Tensor::Kind::kInts, {}, {}, 1, -1};
    for (int64_t i = 0; i < count; ++i) tensor.data.push_back(draw(random_));
    return Add(std::move(tensor));
  }
  int AddDoubles(const std::string& name, int64_t count) {
    return AddRandom(Tensor::Kind::kDoubles, name, count, 0, 1, 0);
  }
  int AddBits(const std::string& name) { return Add({name, Tensor::Kind::kBits, {}, {0}, 1, -1}); }
  int AddEightBits(const std::string& name, Format format, int64_t count) {
    const int id = AddRandom(Tensor::Kind::kEightBits, name, count, 0, 1, 0);
    At(id).format = format;
    for (double& value : At(id).data) {
      value = RoundToEightBits(format, static_cast<float>(value));
    }
    return id;
  }
  int AddScale(const std::string& name, float multiplier) {
    const int id = AddFloats(name, 2);
    At(id).data = {multiplier, 1 / multiplier};
    return id;
  }
  Tensor& At(int id) { return tensors_[static_cast<size_t>(id)]; }

  // Tensors that only have to be near, and how near. All others must have the CPU's bits.
  void Near(double tolerance, std::initializer_list<int> ids) {
    for (const int id : ids) {
      if (id != Bound::kNone) At(id).tolerance = tolerance;
    }
  }

  struct Options {
    // Bits at unaligned addresses are those at aligned ones; not asked of a library's products.
    bool same_bits_unaligned = true;
    int64_t attention_scratch = 0;
    bool unaligned = true;  // run there, too
  };

  // Returns the device's tensors.
  std::vector<Tensor> Check(const Call& call, const Options& options) {
    const std::vector<Tensor> expected = RunOnCpu(call, options);
    std::vector<unsigned char> first;
    std::vector<Tensor> result;
    for (const int64_t offset : {0, 1}) {
      const auto bytes = SameInEveryOrder([&] { return RunOnDevice(call, offset); });
      if (offset == 0) first = bytes;
      EXPECT_TRUE(!options.same_bits_unaligned || bytes == first)
          << name_ << ": other bits at unaligned addresses";
      const std::vector<Tensor> actual = Unpack(bytes);
      for (size_t i = 0; i < expected.size(); ++i) Compare(actual[i], expected[i], offset);
      if (offset == 0) result = actual;
      if (!options.unaligned) break;
    }
    return result;
  }
  std::vector<Tensor> Check(const Call& call) { return Check(call, Options()); }

  static int64_t ElementBytes(const Tensor& tensor, Format stored) {
    switch (tensor.kind) {
      case Tensor::Kind::kValues:
        return BytesOf(stored);
      case Tensor::Kind::kEightBits:
        return stored == Format::kFloat32 ? 4 : 1;
      case Tensor::Kind::kFloats:
      case Tensor::Kind::kInts:
        return 4;
      case Tensor::Kind::kDoubles:
      case Tensor::Kind::kBits:
        break;
    }
    return 8;
  }

  std::vector<unsigned char> Pack(const Tensor& tensor, Format stored) const {
    const int64_t each = ElementBytes(tensor, stored);
    std::vector<unsigned char> bytes(static_cast<size_t>(tensor.size() * each));
    for (int64_t i = 0; i < tensor.size(); ++i) {
      unsigned char* to = bytes.data() + i * each;
      const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
      if (tensor.kind == Tensor::Kind::kBits) {
        put(tensor.bits[static_cast<size_t>(i)]);
        continue;
      }
      const double value = tensor.data[static_cast<size_t>(i)];
      const auto number = static_cast<float>(value);
      if (tensor.kind == Tensor::Kind::kInts) {
        put(static_cast<int32_t>(value));
      } else if (tensor.kind == Tensor::Kind::kDoubles) {
        put(value);
      } else if (each == 4) {
        put(number);
      } else if (each == 1) {
        put(ToEightBits(tensor.format, number));
      } else if (stored == Format::kBfloat16) {
        put(__bfloat16_as_ushort(__float2bfloat16_rn(number)));
      } else {
        put(__half_as_ushort(__float2half_rn(number)));
      }
    }
    return bytes;
  }

  // What lies at `from`; advances it.
  Tensor UnpackOne(const Tensor& like, Format stored, const unsigned char*& from) const {
    Tensor tensor = like;
    const auto take = [&from](auto& value) {
      std::memcpy(&value, from, sizeof(value));
      from += sizeof(value);
    };
    for (uint64_t& value : tensor.bits) take(value);
    for (double& value : tensor.data) {
      if (tensor.kind == Tensor::Kind::kDoubles) {
        take(value);
      } else if (tensor.kind == Tensor::Kind::kInts) {
        int32_t number = 0;
        take(number);
        value = number;
      } else if (ElementBytes(tensor, stored) == 4) {
        float number = 0;
        take(number);
        value = number;
      } else if (ElementBytes(tensor, stored) == 1) {
        uint8_t number = 0;
        take(number);
        value = FromEightBits(tensor.format, number);
      } else {
        unsigned short number = 0;
        take(number);
        value = stored == Format::kBfloat16 ? __bfloat162float(__ushort_as_bfloat16(number))
                                            : __half2float(__ushort_as_half(number));
      }
    }
    return tensor;
  }

  std::vector<Tensor> RunOnCpu(const Call& call, const Options& options) {
    std::vector<std::vector<unsigned char>> memory;
    std::vector<std::byte*> at;
    for (const Tensor& tensor : tensors_) memory.push_back(Pack(tensor, Format::kFloat32));
    for (auto& bytes : memory) at.push_back(reinterpret_cast<std::byte*>(bytes.data()));
    std::vector<float> scratch(static_cast<size_t>(options.attention_scratch + 64));
    auto aligned = (reinterpret_cast<uintptr_t>(scratch.data()) + 255) / 256 * 256;
    call(*CreateCpuOps(1), Bound(at, format_, Format::kFloat32, reinterpret_cast<float*>(aligned)));
    std::vector<Tensor> results;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const unsigned char* from = memory[i].data();
      results.push_back(UnpackOne(tensors_[i], Format::kFloat32, from));
    }
    return results;
  }

  // All tensors, `offset` elements behind an aligned address, after the call, one behind the other.
  std::vector<unsigned char> RunOnDevice(const Call& call, int64_t offset) {
    std::vector<std::unique_ptr<DeviceBuffer<unsigned char>>> memory;
    std::vector<std::byte*> at;
    for (const Tensor& tensor : tensors_) {
      memory.push_back(std::make_unique<DeviceBuffer<unsigned char>>(
          Pack(tensor, format_), offset * ElementBytes(tensor, format_)));
      at.push_back(reinterpret_cast<std::byte*>(memory.back()->data()));
    }
    DeviceBuffer<unsigned char> workspace(CudaScratchBytes(scratch_));
    OperationErrors errors;
    const auto ops = CreateCudaOps({stream_, reinterpret_cast<std::byte*>(workspace.data()),
                                    CudaScratchBytes(scratch_), &errors, algorithms_, attention_,
                                    notes_, tf32_});
    call(*ops, Bound(at, format_, format_, nullptr));
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << name_;
    if (errors.first()) {
      ADD_FAILURE() << name_ << ": " << errors.first()->operation << ": " << errors.first()->what;
    }
    std::vector<unsigned char> all;
    for (auto& buffer : memory) {
      const auto bytes = buffer->Read(stream_);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  std::vector<Tensor> Unpack(const std::vector<unsigned char>& bytes) const {
    std::vector<Tensor> results;
    const unsigned char* from = bytes.data();
    for (const Tensor& tensor : tensors_) results.push_back(UnpackOne(tensor, format_, from));
    return results;
  }

  void Compare(const Tensor& actual, const Tensor& expected, int64_t offset) const {
    EXPECT_EQ(actual.bits, expected.bits) << name_ << ": " << expected.name;
    const Format rounded = expected.kind == Tensor::Kind::kValues ? format_ : Format::kFloat32;
    double largest = 0;
    for (size_t i = 0; i < expected.data.size(); ++i) {
      const double value = expected.data[i];
      if (i % static_cast<size_t>(expected.columns) == 0) largest = RowLargest(expected, i);
      const double allowed =
          expected.tolerance < 0 ? 0 : expected.tolerance * largest + StepOf(rounded, value);
      const bool same = std::memcmp(&actual.data[i], &value, sizeof(value)) == 0 ||
                        (std::isnan(value) && std::isnan(actual.data[i])) ||
                        actual.data[i] == value;
      if (same || std::abs(actual.data[i] - value) <= allowed) continue;
      ADD_FAILURE() << name_ << ": " << expected.name << " at " << i << " of "
                    << expected.data.size() << ", offset " << offset << ": " << actual.data[i]
                    << ", the CPU's " << value << ", allowed " << allowed;
      return;
    }
  }

  static double RowLargest(const Tensor& tensor, size_t begin) {
    double largest = 1e-30;
    const size_t end = std::min(tensor.data.size(), begin + static_cast<size_t>(tensor.columns));
    for (size_t i = begin; i < end; ++i) {
      if (std::isfinite(tensor.data[i])) largest = std::max(largest, std::abs(tensor.data[i]));
    }
    return largest;
  }

  Format format_ = Format::kFloat32;
  std::string name_;
  std::vector<Tensor> tensors_;
  std::mt19937_64 random_{kSeed};
  // Enough for all cases.
  ScratchShapes scratch_ = {.rows = 1300,
                            .norm_columns = 300,
                            .sum_columns = 300,
                            .heads = 8,
                            .digest_count = 140003,
                            .squares_count = 140003,
                            .product_bytes = 1 << 20};
  ProductAlgorithms* algorithms_ = nullptr;
  AttentionKernel attention_ = AttentionKernel::kAuto;
  OperationNotes* notes_ = nullptr;
  bool tf32_ = false;

 private:
  int Add(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return static_cast<int>(tensors_.size()) - 1;
  }
  int AddRandom(Tensor::Kind kind, const std::string& name, int64_t count, int64_t columns,
                double scale, double offset) {
    std::normal_distribution<double> normal(offset, scale);
    Tensor tensor{name, kind, {}, {}, columns > 0 ? columns : std::max<int64_t>(count, 1), -1};
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(normal(random_));
      tensor.data.push_back(kind == Tensor::Kind::kValues ? RoundTo(format_, value) : value);
    }
    return Add(std::move(tensor));
  }
};

}  // namespace tercio::kernels::cuda
