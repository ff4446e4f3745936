#include "data/document_borders.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace tercio::data {
namespace {

// The tables lie in a mapped file at any alignment, so a number cannot be read in place.
int64_t NumberAt(const char* table, int64_t index) {
  int64_t value;
  std::memcpy(&value, table + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}

// The first token of a sequence; for the one past the last, the number of tokens.
int64_t FirstToken(const IndexTables& tables, int64_t sequence) {
  return sequence == tables.sequences ? tables.tokens
                                      : NumberAt(tables.offsets, sequence) / tables.token_bytes;
}

// The sequence that document `document` begins with; sequences after the last border count as a
// document.
int64_t FirstSequence(const IndexTables& tables, int64_t document) {
  if (document == 0) return 0;
  return document < tables.border_count ? NumberAt(tables.borders, document) : tables.sequences;
}

int64_t DocumentsOf(const IndexTables& tables) {
  if (tables.sequences == 0) return 0;
  // An index without borders still holds tokens, and they are one document.
  if (tables.border_count == 0) return 1;
  const int64_t last = NumberAt(tables.borders, tables.border_count - 1);
  return tables.border_count - 1 + (last < tables.sequences ? 1 : 0);
}

// The first of [begin, end) for which `holds` is true; it stays true after that.
template <typename Holds>
int64_t FirstWhere(int64_t begin, int64_t end, const Holds& holds) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

}  // namespace

void DocumentBorders::Add(Part part) {
  part.first_document = all_documents_;
  // Numbers of documents and tokens run through all parts, so that a search finds the part.
  part.first_token = all_tokens_;
  all_documents_ += part.documents;
  all_tokens_ += part.tables.tokens;
  parts_.push_back(std::move(part));
  end_ = all_tokens_;
  document_count_ = all_documents_;
}

DocumentBorders DocumentBorders::OneDocument(int64_t tokens) {
  DocumentBorders borders;
  if (tokens > 0) borders.Add({.tables = {.tokens = tokens}, .documents = 1});
  return borders;
}

DocumentBorders DocumentBorders::OfIndex(IndexTables tables) {
  DocumentBorders borders;
  const int64_t documents = DocumentsOf(tables);
  borders.Add({.tables = std::move(tables), .documents = documents});
  return borders;
}

DocumentBorders DocumentBorders::Concatenate(absl::Span<const DocumentBorders> parts) {
  DocumentBorders whole;
  for (const DocumentBorders& one : parts) {
    TERCIO_CHECK(one.tokens() == one.all_tokens_);  // slices are cut from the whole
    for (const Part& part : one.parts_) whole.Add(part);
  }
  return whole;
}

DocumentBorders DocumentBorders::Slice(int64_t begin, int64_t end) const {
  TERCIO_CHECK(begin >= 0 && begin <= end && end <= tokens());
  // The slice keeps the tables of the whole and only moves its window over them.
  DocumentBorders slice = *this;
  slice.begin_ = begin_ + begin;
  slice.end_ = begin_ + end;
  slice.first_document_ = FirstEndingBehind(slice.begin_);
  const int64_t behind =
      // Nothing lies in an empty slice, though a document may span its position.
      begin == end ? slice.first_document_
                   : FirstWhere(slice.first_document_, all_documents_, [&](int64_t document) {
                       return WholeDocument(document).begin >= slice.end_;
                     });
  slice.document_count_ = behind - slice.first_document_;
  return slice;
}

const DocumentBorders::Part& DocumentBorders::PartOf(int64_t document) const {
  return *(std::upper_bound(
               parts_.begin(), parts_.end(), document,
               [](int64_t number, const Part& part) { return number < part.first_document; }) -
           1);
}

DocumentBorders::Range DocumentBorders::WholeDocument(int64_t document) const {
  const Part& part = PartOf(document);
  const IndexTables& tables = part.tables;
  // An llm.c file has no tables, and is a single document.
  if (tables.owner == nullptr) return {part.first_token, part.first_token + tables.tokens};
  const int64_t here = document - part.first_document;
  const int64_t next =
      here + 1 == part.documents ? tables.sequences : FirstSequence(tables, here + 1);
  return {part.first_token + FirstToken(tables, FirstSequence(tables, here)),
          part.first_token + FirstToken(tables, next)};
}

int64_t DocumentBorders::FirstEndingBehind(int64_t token) const {
  // The ends of documents ascend, also where some of them are empty.
  return FirstWhere(0, all_documents_,
                    [&](int64_t document) { return WholeDocument(document).end > token; });
}

DocumentBorders::Range DocumentBorders::Document(int64_t document) const {
  TERCIO_CHECK(document >= 0 && document < document_count_);
  const Range whole = WholeDocument(first_document_ + document);
  // A document that the slice cuts has only the part that lies within.
  return {std::max(whole.begin, begin_) - begin_, std::min(whole.end, end_) - begin_};
}

std::vector<int64_t> DocumentBorders::SequencesBetween(int64_t document, int64_t begin,
                                                       int64_t end) const {
  TERCIO_CHECK(document >= 0 && document < document_count_);
  const Part& part = PartOf(first_document_ + document);
  const IndexTables& tables = part.tables;
  std::vector<int64_t> found;
  if (tables.owner == nullptr) return found;
  const int64_t shift = part.first_token - begin_;
  // The first sequence at or before `begin` starts the segment itself, and is no border in it.
  int64_t sequence = FirstWhere(0, tables.sequences, [&](int64_t candidate) {
    return FirstToken(tables, candidate) + shift > begin;
  });
  for (; sequence < tables.sequences; ++sequence) {
    const int64_t token = FirstToken(tables, sequence) + shift;
    if (token >= end) break;
    // Sequences without tokens begin at the same token as the next.
    if (found.empty() || found.back() != token) found.push_back(token);
  }
  return found;
}

}  // namespace tercio::data
