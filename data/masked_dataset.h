// Samples of a masked language model (Devlin et al., BERT, 2019), with the order of two segments
// (Lan et al., ALBERT, 2020) if the model asks for it.
//
// With context T each document is cut into pieces of at most T - 2 tokens, one after the other,
// and each piece of at least 2 is a sample; with sentence order at most T - 3 and at least 4:
//
//   inputs  [CLS] piece [SEP] [PAD] ...             types 0
//           [CLS] A [SEP] B [SEP] [PAD] ...         types 0 up to the first [SEP], then 1
//
// A [SEP] that a document ends with is left out. A and B are the two sides of one of the sentence
// borders within the piece, each with the same chance, or of any position if there is none; B comes
// first with probability 1/2, which is label 1 (0: in order).
//
// round(probability * n) of the n tokens that are not special are to be predicted, at least one:
// 80 % of them are [MASK], 10 % any id of the vocabulary, 10 % as they were. Whole words are taken
// in random order as long as they fit, the first one in any case. A sample without such tokens has
// no targets.
//
// Every decision is a hash of (seed, epoch, sample, position): docs/formats.md has the formulas.
//
// Immutable; any number of threads may read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/document_borders.h"
#include "data/sample_dataset.h"
#include "data/token_dataset.h"

namespace tercio::data {

struct MaskingRules {
  int64_t context = 0;
  int32_t vocab_size = 0;
  int32_t cls = 0;
  int32_t sep = 0;
  int32_t mask = 0;
  int32_t pad = 0;
  double probability = 0.15;
  bool sentence_order = false;
  // By id: whether a token continues a word; null: every token is masked by itself.
  std::shared_ptr<const std::vector<bool>> continues_word;

  // Tokens of a piece.
  int64_t most_tokens() const { return context - (sentence_order ? 3 : 2); }
  int64_t least_tokens() const { return sentence_order ? 4 : 2; }
};

class MaskedDataset : public SampleDataset {
 public:
  // REQUIRES: the borders are those of the tokens; most_tokens() >= least_tokens(); ids below
  // vocab_size.
  MaskedDataset(TokenDataset tokens, DocumentBorders borders, MaskingRules rules);

  int64_t samples() const override { return samples_; }
  void Read(int64_t sample, SampleKey key, Sample* out) const override;

 private:
  struct Piece {
    int64_t document;
    DocumentBorders::Range tokens;
  };
  int64_t SamplesOf(int64_t document) const;
  Piece PieceOf(int64_t sample) const;
  // Tokens of the first segment; all of them if sentence order is not predicted.
  int64_t CutPlace(const Piece& piece, uint64_t random) const;

  TokenDataset tokens_;
  DocumentBorders borders_;
  MaskingRules rules_;
  int64_t samples_ = 0;
  std::vector<int64_t> samples_before_;  // each kDocumentsOfEntry-th document
};

}  // namespace tercio::data
