// Samples of a sequence classifier, from labelled .jsonl files: an object a line,
//
//   {"text": "...", "text_pair": "...", "label": 0}       keys as data.*_key name them
//
// or from .csv and .tsv tables (data/delimited.h), whose header names such columns; with a class
// number or one of the names in model.labels, and a second text where there is one. All values of a
// table are texts: a label in it is a name if a class has this name, else a number. The column of
// second texts may be missing where its name is the default, and an empty field is none. A sample
// is [CLS] text [SEP] or [CLS] text [SEP] text_pair [SEP]; the types of the latter's second
// half are 1 where the model has several. What is longer than the context is cut at the end, of two
// texts token by token from the longer one (from the second where both are as long).
//
// All examples are in memory, as ids.
//
// Thread safety: immutable; any number of threads may read. Errors: INVALID_ARGUMENT naming file
// and line: no JSON, no text, a label that is not a class, another number of fields than the header
// has; a file without examples; or one that is neither .jsonl nor a table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/sample_dataset.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

// The default of LabelRules::text_pair_key.
inline constexpr char kTextPairKey[] = "text_pair";

struct LabelRules {
  int64_t context = 0;  // at least 4
  int32_t cls = 0;
  int32_t sep = 0;
  int32_t pad = 0;
  int32_t token_types = 2;
  int32_t labels = 0;
  std::vector<std::string> label_names;  // empty: classes have only numbers
  std::string text_key = "text";
  std::string text_pair_key = kTextPairKey;
  std::string label_key = "label";
  bool skip_bad_lines = false;
  int threads = 1;
};

// Examples as they were read, one after the other.
struct LabelledExamples {
  struct Example {
    int64_t begin = 0;  // in `ids`
    int32_t first = 0;  // ids of the text
    int32_t second = 0;
    int32_t label = 0;
    bool pair = false;
  };
  std::vector<int32_t> ids;  // already cut to the context
  std::vector<Example> examples;
  int64_t skipped_lines = 0;
  std::string first_skipped;  // "a.jsonl:7: ...", empty if none was skipped
};

// Every file has at least one line of an example, which may have been skipped.
absl::StatusOr<LabelledExamples> ReadLabelledExamples(const std::vector<std::string>& paths,
                                                      const tokenizer::Tokenizer& tokenizer,
                                                      const LabelRules& rules);

// Positions of the longest sample, special tokens included; 0 where there are no examples.
int64_t LongestSample(const LabelledExamples& all);

// Examples [begin, end) of a list.
class LabelledDataset : public SampleDataset {
 public:
  LabelledDataset(std::shared_ptr<const LabelledExamples> all, int64_t begin, int64_t end,
                  LabelRules rules)
      : all_(std::move(all)), begin_(begin), end_(end), rules_(std::move(rules)) {}

  int64_t samples() const override { return end_ - begin_; }
  void Read(int64_t sample, SampleKey key, Sample* out) const override;

  // Ids of the texts, without the special tokens around them.
  int64_t tokens() const;
  // Adds the number of examples of each class. REQUIRES: as many counts as classes.
  void CountLabels(std::vector<int64_t>* counts) const;

 private:
  std::shared_ptr<const LabelledExamples> all_;
  int64_t begin_;
  int64_t end_;
  LabelRules rules_;
};

}  // namespace tercio::data
