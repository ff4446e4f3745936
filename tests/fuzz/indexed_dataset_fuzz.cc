// Megatron data sets: two bytes that are the size of the .bin file, then the .idx file. What is
// accepted can be read from end to end, and cut into samples.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/masked_dataset.h"
#include "tests/fuzz/scratch.h"

namespace tercio::data {
namespace {

void ReadAll(const IndexedDataset& dataset) {
  const int64_t tokens = dataset.tokens.tokens();
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  dataset.tokens.Read(0, tokens, ids.data());
  fuzz::Expect(dataset.borders.tokens() == tokens, "the borders are those of the tokens");
  int64_t place = 0;
  for (int64_t d = 0; d < dataset.borders.documents(); ++d) {
    const DocumentBorders::Range range = dataset.borders.Document(d);
    fuzz::Expect(range.begin == place && range.end >= place, "documents follow one another");
    for (const int64_t sequence : dataset.borders.SequencesBetween(d, range.begin, range.end)) {
      fuzz::Expect(range.begin < sequence && sequence < range.end, "sequences lie in documents");
    }
    place = range.end;
  }
  fuzz::Expect(place == tokens, "documents are all of the tokens");
}

void ReadSamples(const IndexedDataset& dataset, int32_t highest) {
  MaskingRules rules;
  rules.context = 9;
  rules.vocab_size = std::min(highest, INT32_MAX - 1) + 1;
  rules.sentence_order = true;
  const MaskedDataset samples(dataset.tokens, dataset.borders, rules);
  data::Sample sample(9);
  for (int64_t i = 0; i < samples.samples(); ++i) samples.Read(i, kValidationKey, &sample);
}

}  // namespace
}  // namespace tercio::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace tercio;
  static const fuzz::Scratch scratch;
  if (size < 2) return 0;
  std::string content(static_cast<size_t>(bytes[0] | bytes[1] << 8), '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i % 7);
  scratch.Write("t.bin", content);
  scratch.Write("t.idx", {reinterpret_cast<const char*>(bytes) + 2, size - 2});
  const auto dataset = data::OpenIndexedDataset(scratch.Path("t"));
  if (!dataset.ok()) return 0;
  data::ReadAll(*dataset);
  const auto highest = dataset->tokens.HighestToken("t");
  if (highest.ok() && *highest >= 0) data::ReadSamples(*dataset, *highest);
  return 0;
}
