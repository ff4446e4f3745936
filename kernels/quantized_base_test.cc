// Codes, scales and values of quantised weights are bitsandbytes' (tests/bitsandbytes, which says
// what its fixtures hold), to the bit; and what is quantised in parts is that of the whole.
#include "kernels/quantized_base.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace tercio::kernels {
namespace {

struct Fixture {
  BaseFormat format = BaseFormat::kNone;
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> scale_codes;
  float mean = 0;
  std::vector<float> largest;
  std::vector<float> dequantized;
};

template <typename T>
void Take(const std::string& bytes, size_t* at, T* values, int64_t count) {
  const size_t size = static_cast<size_t>(count) * sizeof(T);
  ASSERT_LE(*at + size, bytes.size());
  std::memcpy(values, bytes.data() + *at, size);
  *at += size;
}
template <typename T>
void Take(const std::string& bytes, size_t* at, std::vector<T>* values, int64_t count) {
  values->resize(static_cast<size_t>(count));
  Take(bytes, at, values->data(), count);
}

Fixture Read(BaseFormat format) {
  const std::string path = format == BaseFormat::kNf4 ? "tests/bitsandbytes/fixtures/nf4.bin"
                                                      : "tests/bitsandbytes/fixtures/int8.bin";
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  Fixture fixture;
  fixture.format = format;
  size_t at = 0;
  Take(bytes, &at, &fixture.rows, 1);
  Take(bytes, &at, &fixture.columns, 1);
  const int64_t elements = fixture.rows * fixture.columns;
  const int64_t scales = elements / kBaseBlock;
  Take(bytes, &at, &fixture.values, elements);
  Take(bytes, &at, &fixture.codes, CodesBytes(format, elements));
  Take(bytes, &at, &fixture.scales, scales);
  Take(bytes, &at, &fixture.scale_codes, scales);
  Take(bytes, &at, &fixture.mean, 1);
  Take(bytes, &at, &fixture.largest, GroupsOf(scales));
  Take(bytes, &at, &fixture.dequantized, elements);
  EXPECT_EQ(bytes.size() - at, static_cast<size_t>(elements) * 2);  // in bfloat16
  return fixture;
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};
Quantized Quantize(BaseFormat format, absl::Span<const float> values) {
  Quantized made;
  const auto count = static_cast<int64_t>(values.size());
  made.codes.resize(static_cast<size_t>(CodesBytes(format, count)));
  made.scales.resize(values.size() / kBaseBlock);
  EXPECT_TRUE(QuantizeBase(format, values, reinterpret_cast<std::byte*>(made.codes.data()),
                           made.scales.data()));
  return made;
}

class QuantizedBase : public ::testing::TestWithParam<BaseFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedBase,
                         ::testing::Values(BaseFormat::kNf4, BaseFormat::kInt8));

TEST_P(QuantizedBase, HasTheCodesAndScalesOfBitsandbytes) {
  const Fixture expected = Read(GetParam());
  const Quantized made = Quantize(GetParam(), expected.values);
  EXPECT_EQ(made.codes, expected.codes);
  EXPECT_EQ(made.scales, expected.scales);
}

TEST_P(QuantizedBase, HasTheQuantizedScalesOfBitsandbytes) {
  const Fixture expected = Read(GetParam());
  const ScaleGroups groups = GroupsOfScales(expected.scales);
  EXPECT_EQ(groups.mean, expected.mean);
  EXPECT_EQ(groups.largest, expected.largest);
  for (size_t i = 0; i < expected.scales.size(); ++i) {
    ASSERT_EQ(CodeOfScale(expected.scales[i], groups.mean, groups.largest[i / kScalesOfGroup]),
              expected.scale_codes[i])
        << i;
  }
}

TEST_P(QuantizedBase, StandsForTheValuesOfBitsandbytes) {
  const Fixture expected = Read(GetParam());
  std::vector<float> scales;
  for (size_t i = 0; i < expected.scale_codes.size(); ++i) {
    scales.push_back(
        ScaleOfCode(expected.scale_codes[i], expected.mean, expected.largest[i / kScalesOfGroup]));
  }
  std::vector<float> values(expected.values.size());
  DequantizeBase(GetParam(), reinterpret_cast<const std::byte*>(expected.codes.data()), scales,
                 values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected.dequantized[i]))
        << i;
  }
}

TEST_P(QuantizedBase, HasTheCodesOfTheWholeInEveryPart) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(kBaseBlock * 40);
  for (float& value : values) value = normal(random);
  const Quantized whole = Quantize(GetParam(), values);
  for (const int64_t blocks : {1, 3, 8}) {
    Quantized joined;
    for (int64_t at = 0; at < 40; at += blocks) {
      const Quantized part =
          Quantize(GetParam(), absl::MakeConstSpan(values).subspan(
                                   static_cast<size_t>(at * kBaseBlock),
                                   static_cast<size_t>(std::min(blocks, 40 - at) * kBaseBlock)));
      joined.codes.insert(joined.codes.end(), part.codes.begin(), part.codes.end());
      joined.scales.insert(joined.scales.end(), part.scales.begin(), part.scales.end());
    }
    EXPECT_EQ(joined.codes, whole.codes) << blocks;
    EXPECT_EQ(joined.scales, whole.scales) << blocks;
  }
}

TEST_P(QuantizedBase, RefusesWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(2 * kBaseBlock, 0.5f);
    values[kBaseBlock + 17] = bad;
    std::vector<std::byte> codes(values.size());
    std::vector<float> scales(2);
    EXPECT_FALSE(QuantizeBase(GetParam(), values, codes.data(), scales.data()));
  }
}

TEST(QuantizedScales, AreTheirMeanWhereAllAreEqual) {
  const std::vector<float> scales(300, 0.0625f);
  const ScaleGroups groups = GroupsOfScales(scales);
  EXPECT_EQ(groups.mean, 0.0625f);
  EXPECT_EQ(groups.largest, std::vector<float>(2, 0.0f));
  const uint8_t code = CodeOfScale(0.0625f, groups.mean, 0);
  EXPECT_EQ(ScaleOfCode(code, groups.mean, 0), 0.0625f);
}

}  // namespace
}  // namespace tercio::kernels
