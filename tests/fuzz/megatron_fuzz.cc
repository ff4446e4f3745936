// The only rank's file of a Megatron-LM checkpoint: an archive or a stream of torch with a pickle
// in it. What is accepted has every tensor of the model that it describes, and all of them can be
// read.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "checkpoint/megatron/weights.h"
#include "checkpoint/model_description.h"
#include "plan/model_tensors.h"
#include "tests/fuzz/scratch.h"

namespace tercio::checkpoint {
namespace {

void ReadModel(const MegatronModel& model) {
  std::vector<float> values;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(model.model())) {
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    values.resize(static_cast<size_t>(tensor.rows * tensor.columns));
    fuzz::Expect(model.ReadSlice(slice, values.data()).ok(), "every tensor is there");
  }
}

}  // namespace
}  // namespace tercio::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tercio;
  static const fuzz::Scratch scratch;
  std::filesystem::create_directories(scratch.Path("mp_rank_00"));
  scratch.Write("mp_rank_00/model_optim_rng.pt", {reinterpret_cast<const char*>(data), size});
  const auto model = checkpoint::MegatronModel::Open(scratch.Path(""));
  if (!model.ok()) return 0;
  checkpoint::ReadModel(**model);
  fuzz::Expect(checkpoint::DescribeModel(scratch.Path("")).ok(), "a model can be described");
  return 0;
}
