// The header of a directory of stored logits, logits.json: what a teacher's largest logits belong
// to, and the files that hold them (docs/formats.md). It ends with a digest of itself, so that an
// edited one is found.
//
// Threads: any.
// Errors: NOT_FOUND for a directory without a header; DATA_LOSS for a header that is damaged or of
// another version. Each names the file, and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::checkpoint {

inline constexpr char kLogitsHeader[] = "logits.json";

// What decides the samples of a job, their numbers, and the tokens that they predict.
struct LogitsSubject {
  int64_t vocabulary = 0;
  int64_t context = 0;
  // Where conversations are learnt, the names of both; else empty.
  std::string chat_template;
  std::string loss_on;
  std::string data;              // hex SHA-256 of the data as the job prepares it
  std::string tokenizer;         // likewise; empty: token files without one
  std::vector<int64_t> samples;  // number of samples in each data set, in data set order

  int64_t sample_count() const;
  friend bool operator==(const LogitsSubject&, const LogitsSubject&) = default;
};

struct LogitsTeacher {
  std::string name;    // for people
  std::string digest;  // digest of the weights, hexadecimal

  friend bool operator==(const LogitsTeacher&, const LogitsTeacher&) = default;
};

// A file with the rows of samples that follow each other.
struct LogitsShard {
  std::string file;
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t bytes = 0;
  std::string sha256;

  friend bool operator==(const LogitsShard&, const LogitsShard&) = default;
};

struct LogitsHeader {
  LogitsSubject subject;
  LogitsTeacher teacher;
  int64_t k = 0;                    // logits of a row
  std::vector<LogitsShard> shards;  // in the order of the samples

  friend bool operator==(const LogitsHeader&, const LogitsHeader&) = default;
};

// The content of the file.
std::string LogitsHeaderJson(const LogitsHeader& header);
// `path` is for messages.
absl::StatusOr<LogitsHeader> ParseLogitsHeader(std::string_view text, const std::string& path);

absl::StatusOr<LogitsHeader> ReadLogitsHeader(const std::string& directory);

// INVALID_ARGUMENT: the logits in `directory` are not those of the job's samples, with every
// difference.
absl::Status CheckSubject(const LogitsHeader& header, const LogitsSubject& job,
                          const std::string& directory);

// ids are 16 bits wide where that is enough for all of them.
bool HasNarrowIds(int64_t vocabulary);
// Bytes of a row.
int64_t BytesOfRow(int64_t vocabulary, int64_t k);

}  // namespace tercio::checkpoint
