// Values of quantised weights on CUDA against the CPU's: the same bits, in all storages of results,
// at all addresses, of whole matrices and of parts that are cut by rows and columns.
#include <string>

#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

struct Part {
  int64_t rows, columns;  // of the part
  int64_t first = 0;
  int64_t stride = 0;  // 0: the blocks of the part's rows
};

class BaseBlocksTest : public BothBackendsTest {
 protected:
  void CheckPart(BaseFormat format, const Part& part) {
    const int64_t of_row = part.columns / kBaseBlock;
    const int64_t stride = part.stride > 0 ? part.stride : of_row;
    const int64_t elements = part.rows * part.columns;
    const int64_t last = part.first + (part.rows - 1) * stride + of_row;
    // Integers are bytes of any value.
    const int codes = AddInts("codes", (CodesBytes(format, elements) + 3) / 4, -(1 << 30), 1 << 30);
    const int scales = AddInts("scales", (part.rows * of_row + 3) / 4, -(1 << 30), 1 << 30);
    const int groups = AddFloats("groups", 1 + GroupsOf(last), 0, 0.5, 0.25);
    const int to = AddValues("to", elements);
    Check([&](Ops& ops, const Bound& t) {
      ops.DequantizeBlocks({.to = t.values(to),
                            .codes = reinterpret_cast<const std::byte*>(t.ints(codes)),
                            .scales = reinterpret_cast<const std::byte*>(t.ints(scales)),
                            .groups = t.floats(groups),
                            .rows = part.rows,
                            .columns = part.columns,
                            .first = part.first,
                            .stride = stride,
                            .format = format});
    });
  }
};

TEST_F(BaseBlocksTest, HaveTheBitsOfTheCpu) {
  for (const Format stored : {Format::kFloat32, Format::kBfloat16, Format::kFloat16}) {
    for (const BaseFormat format : {BaseFormat::kNf4, BaseFormat::kInt8}) {
      for (const Part& part : {Part{1, 64}, Part{3, 64}, Part{33, 64}, Part{5, 192}, Part{130, 320},
                               Part{.rows = 70, .columns = 128, .first = 3, .stride = 11},
                               Part{.rows = 9, .columns = 256, .first = 252, .stride = 129}}) {
        Begin(stored, std::to_string(part.rows) + " x " + std::to_string(part.columns));
        CheckPart(format, part);
      }
    }
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
