// Files of torch.save: a byte that says whether a whole file follows or its pickle alone. What is
// accepted holds tensors that lie within their storages, and those within the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/torch/pickle_machine.h"
#include "checkpoint/torch/torch_file.h"
#include "tests/fuzz/scratch.h"

namespace tercio::checkpoint {
namespace {

void ReadTensor(const TorchTensor& tensor, std::string_view file) {
  fuzz::Expect(tensor.shape.size() == tensor.strides.size(), "each extent has a stride");
  if (tensor.storage.empty()) return;
  fuzz::Expect(tensor.storage.data() >= file.data() &&
                   tensor.storage.data() + tensor.storage.size() <= file.data() + file.size(),
               "storages lie within the file");
  if (!tensor.IsContiguous()) return;
  // Reading shows the sanitizer that the bytes are there.
  uint64_t sum = 0;
  for (const char byte : tensor.bytes()) sum += static_cast<uint8_t>(byte);
  fuzz::Expect(sum <= UINT8_MAX * tensor.bytes().size(), "the bytes are there");
}

// The tensors of a map; a file may go in circles, so that no deeper ones are looked for.
void ReadMembers(const PickleValue& root, std::string_view file) {
  if (root.kind() != PickleValue::Kind::kMap && root.kind() != PickleValue::Kind::kObject) return;
  for (const auto& [key, member] : root.members()) {
    if (member.kind() == PickleValue::Kind::kTensor) ReadTensor(member.tensor(), file);
    if (key.kind() == PickleValue::Kind::kText) (void)member.Find(key.text());
  }
}

}  // namespace
}  // namespace tercio::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tercio;
  static const fuzz::Scratch scratch;
  if (size < 1) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 != 0) {
    checkpoint::PickleArena arena;
    const auto pickle = checkpoint::ReadPickle(content, &arena);
    if (pickle.ok())
      fuzz::Expect(pickle->bytes <= content.size(), "a pickle ends within its bytes");
    return 0;
  }
  const auto file = checkpoint::TorchFile::Open(scratch.Write("weights.pt", content));
  if (file.ok()) checkpoint::ReadMembers((*file)->root(), (*file)->content());
  return 0;
}
