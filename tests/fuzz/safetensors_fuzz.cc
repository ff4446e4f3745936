// Headers of safetensors files: what is accepted says where the tensors are, within the file, and
// is the same when it is written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/safetensors.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tercio;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  (void)checkpoint::ParseSafetensors(file, static_cast<int64_t>(size));
  auto layout = checkpoint::ParseSafetensorsHeader(file);
  if (!layout.ok()) return 0;
  fuzz::Expect(layout->data_begin <= static_cast<int64_t>(size), "the header is within the file");
  for (const checkpoint::TensorEntry& tensor : layout->tensors) {
    fuzz::Expect(0 <= tensor.begin && tensor.begin <= tensor.end, "tensors have a place");
    fuzz::Expect(checkpoint::DtypeBytes(tensor.dtype) > 0, "types are known");
  }
  const std::string again = checkpoint::SafetensorsHeader(&layout->tensors);
  const auto read = checkpoint::ParseSafetensorsHeader(again);
  fuzz::Expect(read.ok(), "what is written can be read");
  fuzz::Expect(read->tensors.size() == layout->tensors.size(), "no tensor is lost");
  return 0;
}
