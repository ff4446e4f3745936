// The beginnings of the documents of a token data set, and of the sequences within them: the
// sentences, if the data was made that way (docs/formats.md).
//
// The tables of Megatron's index are read where they are mapped, so that a data set of any size
// costs no memory. Positions are token numbers of the TokenDataset that the borders belong to.
//
// A value: copies share the mapping. Immutable; any number of threads may read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace tercio::data {

// The tables of an index that OpenIndexedDataset has checked, little-endian, of any alignment.
struct IndexTables {
  std::shared_ptr<const void> owner;
  const char* offsets = nullptr;  // int64 for each sequence: its first byte in the .bin file
  const char* borders = nullptr;  // int64: the sequence that a document begins with
  int64_t sequences = 0;
  int64_t border_count = 0;
  int64_t tokens = 0;
  int token_bytes = 1;
};

class DocumentBorders {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };

  // No documents.
  DocumentBorders() = default;

  // One document of one sequence; none where there are no tokens.
  static DocumentBorders OneDocument(int64_t tokens);
  // Sequences after the last border are a document, too.
  static DocumentBorders OfIndex(IndexTables tables);
  // Borders of TokenDataset::Concatenate.
  static DocumentBorders Concatenate(absl::Span<const DocumentBorders> parts);
  // Borders of TokenDataset::Slice; a document that is cut counts on both sides. REQUIRES: 0 <=
  // begin <= end <= tokens().
  DocumentBorders Slice(int64_t begin, int64_t end) const;

  int64_t tokens() const { return end_ - begin_; }
  int64_t documents() const { return document_count_; }

  // REQUIRES: 0 <= document < documents(). May be empty.
  Range Document(int64_t document) const;

  // The first tokens of sequences that lie in the open interval (begin, end) of a document, in
  // their order. REQUIRES: the interval lies within the document.
  std::vector<int64_t> SequencesBetween(int64_t document, int64_t begin, int64_t end) const;

 private:
  struct Part {
    IndexTables tables;  // owner is empty: one document
    int64_t documents = 0;
    int64_t first_document = 0;  // number among the documents of all parts
    int64_t first_token = 0;
  };

  void Add(Part part);
  // Document numbers and tokens of all parts, without the slice.
  const Part& PartOf(int64_t document) const;
  Range WholeDocument(int64_t document) const;
  // The first document that ends after a token.
  int64_t FirstEndingBehind(int64_t token) const;

  std::vector<Part> parts_;
  int64_t all_documents_ = 0;
  int64_t all_tokens_ = 0;
  // The slice.
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t first_document_ = 0;
  int64_t document_count_ = 0;
};

}  // namespace tercio::data
