// From the job's data section to data sets that can be trained on: tokens that predict the next
// one, conversations (chat_dataset.h), BERT's samples (rules in bert_rules.h), or T5's
// (span_rules.h). Called by `tercio run` before it creates the job, by every agent, and by every
// trainer; all get the same samples for the same content.
//
//   .txt and other text   tokenised once per node into `cache_dir`, in an entry named by content
//   .jsonl                and tokenizer
//   Megatron PREFIX       PREFIX.bin / PREFIX.idx are mapped where they are (PREFIX.bin or
//                         PREFIX.idx may be named instead of PREFIX)
//   llm.c .bin            mapped where it is
//   labelled .jsonl,      read into memory (data/labelled_dataset.h)
//   .csv and .tsv
//   chats (.jsonl)        read into memory (data/chat_dataset.h)
//   answers (.jsonl)      likewise (data/preference_dataset.h)
//
// A data set may be several files of one kind (data/data_files.h), and training or
// validation a blend of several data sets (data/blended_dataset.h). The test is one data set.
//
// Cache: an entry's index appears by rename, under a file lock per entry, so that any number of
// processes may prepare the same data at the same time. An invalid entry is made again; an
// interrupted one is resumed.
//
// Thread safety: thread-safe. Errors: NOT_FOUND | PERMISSION_DENIED | INVALID_ARGUMENT: the data
// cannot be used: missing, empty, a directory, unreadable, too short for one sample, not UTF-8, a
// broken line, wrong magic, truncated, ids outside the vocabulary, tokenizers or vocabularies that
// disagree, weights that are not positive, special tokens that are missing, labels that are not
// classes. Every message says what, where and how to fix it.
//   RESOURCE_EXHAUSTED | FAILED_PRECONDITION: the cache directory is full or cannot be written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "data/blended_dataset.h"
#include "data/chat_dataset.h"
#include "data/data_files.h"
#include "data/preference_dataset.h"
#include "data/sample_dataset.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::data {

struct PreparedData {
  int32_t vocab_size = 0;
  int64_t train_tokens = 0;       // without the special tokens around BERT's texts
  int64_t validation_tokens = 0;  // 0: none
  // Samples of an epoch; of a blend those before a data set would begin again.
  int64_t train_sample_count = 0;
  int64_t validation_sample_count = 0;  // 0: none
  int64_t test_sample_count = 0;        // 0: none
  std::string digest;          // hex SHA-256 of all that decides samples; equal on all nodes
  std::string tokenizer_json;  // empty: token files without a tokenizer
  BlendedDataset train;        // causal models only
  BlendedDataset validation;
  BlendedDataset test;
  BlendedSamples train_samples;  // all other models
  BlendedSamples validation_samples;
  BlendedSamples test_samples;
  // Samples of each data set whose samples have numbers (sample_source.h), in their order; empty:
  // they have none.
  std::vector<int64_t> numbered;
  // Where preferences are learnt, those of all three, in the order of their numbers.
  std::vector<std::shared_ptr<const PreferenceDataset>> preferences;
  std::vector<std::shared_ptr<const ChatDataset>> chats;  // likewise, without packing
  std::vector<std::string> notices;                       // lines that were skipped, for people
  // As long as these live, the entries of the cache that were read stay there.
  std::vector<std::shared_ptr<const FileLock>> uses;
  std::vector<std::string> cache_entries;  // names of those entries in the cache directory
};

// Uses the model's kind, context, vocabulary and labels. Every data set must hold at least one
// sample. With a validation fraction v training takes the first floor(N*(1-v)) tokens of each data
// set, or labelled examples. model.vocab_size (0: none given) is used if no tokenizer gives one,
// and must not be smaller than a tokenizer's; without either it is the largest id + 1.
//
// Without training data there must be a test: a job of no steps only evaluates.
//
// If the content was checked before (by the agent, for the same attempt) token files are not read
// from end to end: the digest is empty then, and ids outside the vocabulary are not found.
absl::StatusOr<PreparedData> PrepareData(const v1::DataSpec& spec, const v1::ModelSpec& model,
                                         const std::string& cache_dir,
                                         ContentCheck check = ContentCheck::kHere);

// The number of ids that a job's data will have, as far as it is known before tokenising: those of
// its tokenizer, or of the one beside its token files. An error if it cannot be known here.
absl::StatusOr<int32_t> ExpectedVocabulary(const v1::DataSpec& spec, const v1::ModelSpec& model);

}  // namespace tercio::data
