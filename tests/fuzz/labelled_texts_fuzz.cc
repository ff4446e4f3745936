// Labelled texts: a byte that says which form, then the file. Every example that is accepted has
// tokens and a class, and lies within what was read; the fuzzer finds reads outside of the file.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "data/labelled_dataset.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tercio::fuzz::Expect;
  if (size < 1) return 0;
  static const tercio::fuzz::Scratch scratch;
  static constexpr const char* kNames[] = {"x.csv", "x.tsv", "x.jsonl"};
  tercio::data::LabelRules rules;
  rules.context = 8;
  rules.cls = 1;
  rules.sep = 2;
  rules.labels = 2;
  rules.label_names = {"no", "yes"};
  rules.skip_bad_lines = (data[0] & 4) != 0;
  const std::string path =
      scratch.Write(kNames[data[0] % 4 % 3], {reinterpret_cast<const char*>(data) + 1, size - 1});
  auto read =
      tercio::data::ReadLabelledExamples({path}, tercio::tokenizer::Tokenizer::Bytes(), rules);
  if (!read.ok()) {
    Expect(read.status().message().find("x.") != std::string_view::npos, "a fault names the file");
    return 0;
  }
  const auto all = std::make_shared<const tercio::data::LabelledExamples>(*std::move(read));
  const auto count = static_cast<int64_t>(all->examples.size());
  Expect(count > 0 || all->skipped_lines > 0, "a file has an example");
  Expect(tercio::data::LongestSample(*all) <= rules.context, "examples are cut to the context");
  const tercio::data::LabelledDataset dataset(all, 0, count, rules);
  tercio::data::Sample sample(rules.context);
  for (int64_t i = 0; i < count; ++i) {
    dataset.Read(i, {}, &sample);
    Expect(sample.label == 0 || sample.label == 1, "a label is a class");
    Expect(sample.length >= 3, "a text has tokens");
  }
  return 0;
}
