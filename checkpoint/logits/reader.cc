#include "checkpoint/logits/reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

template <typename Value>
Value ElementAt(const char* begin, int64_t index) {
  Value value;
  std::memcpy(&value, begin + index * static_cast<int64_t>(sizeof(Value)), sizeof(Value));
  return value;
}

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(path, ": ", what, "; write the logits again (tercio evaluate --write-logits)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const StoredLogits>> StoredLogits::Open(const std::string& directory,
                                                                       DigestCheck check) {
  TERCIO_ASSIGN_OR_RETURN(LogitsHeader header, ReadLogitsHeader(directory));
  std::unique_ptr<StoredLogits> logits(new StoredLogits(std::move(header)));
  for (const LogitsShard& shard : logits->header_.shards) {
    TERCIO_RETURN_IF_ERROR(logits->Add(directory, shard, check));
  }
  return logits;
}

absl::Status StoredLogits::Add(const std::string& directory, const LogitsShard& expected,
                               DigestCheck check) {
  const std::string path = absl::StrCat(directory, "/", expected.file);
  auto file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return Damaged(path, "the file is missing");
  TERCIO_RETURN_IF_ERROR(file.status());
  const std::string_view content = (*file)->content();
  if (static_cast<int64_t>(content.size()) != expected.bytes) {
    return Damaged(path, absl::StrCat("it has ", content.size(), " bytes, but ", kLogitsHeader,
                                      " names ", expected.bytes));
  }
  const auto layout = ParseSafetensors(content, expected.bytes);
  if (!layout.ok()) return Damaged(path, std::string(layout.status().message()));
  const bool narrow = HasNarrowIds(header_.subject.vocabulary);
  std::map<std::string, std::pair<std::string, std::vector<int64_t>>> wanted = {
      {kRowsOfLogits, {"I64", {expected.samples + 1}}},
      {kLogitsOfRows, {"F32", {expected.rows, header_.k}}},
      {kIdsOfLogits, {narrow ? "U16" : "I32", {expected.rows, header_.k}}}};
  Shard shard{.file = *file,
              .first_sample = shards_.empty() ? 0
                                              : shards_.back().first_sample +
                                                    header_.shards[shards_.size() - 1].samples};
  std::map<std::string, const char**> places = {
      {kRowsOfLogits, &shard.rows}, {kLogitsOfRows, &shard.logits}, {kIdsOfLogits, &shard.ids}};
  for (const TensorEntry& tensor : layout->tensors) {
    const auto found = wanted.find(tensor.name);
    if (found == wanted.end() || found->second != std::pair(tensor.dtype, tensor.shape)) {
      return Damaged(path,
                     absl::StrCat("its tensors are not those that ", kLogitsHeader, " describes"));
    }
    *places[tensor.name] = content.data() + layout->data_begin + tensor.begin;
    wanted.erase(found);
  }
  if (!wanted.empty()) {
    return Damaged(path, absl::StrCat("it has no tensor '", wanted.begin()->first, "'"));
  }
  TERCIO_RETURN_IF_ERROR(CheckRows(path, expected, shard));
  if (check == DigestCheck::kEveryByte) {
    if (Sha256Hex(content) != expected.sha256) {
      return Damaged(path, "its digest is not the one of the header: it was changed or damaged");
    }
    TERCIO_RETURN_IF_ERROR(CheckIds(path, expected, shard));
  }
  shards_.push_back(std::move(shard));
  return absl::OkStatus();
}

// Reads of any sample stay in the file then.
absl::Status StoredLogits::CheckRows(const std::string& path, const LogitsShard& expected,
                                     const Shard& shard) const {
  int64_t last = 0;
  for (int64_t i = 0; i <= expected.samples; ++i) {
    const auto row = ElementAt<int64_t>(shard.rows, i);
    const bool fits = i == 0 ? row == 0 : row >= last && row - last <= header_.subject.context;
    if (!fits) return Damaged(path, absl::StrCat("sample ", i, " has no range of rows"));
    last = row;
  }
  if (last == expected.rows) return absl::OkStatus();
  return Damaged(path, "its samples have another number of rows than it has");
}

absl::Status StoredLogits::CheckIds(const std::string& path, const LogitsShard& expected,
                                    const Shard& shard) const {
  for (int64_t i = 0; i < expected.rows * header_.k; ++i) {
    const int32_t id = IdAt(shard, i);
    if (id >= 0 && id < header_.subject.vocabulary) continue;
    return Damaged(
        path, absl::StrCat("row ", i / header_.k, " has the id ", id,
                           ", which is outside the vocabulary of ", header_.subject.vocabulary));
  }
  return absl::OkStatus();
}

int32_t StoredLogits::IdAt(const Shard& shard, int64_t place) const {
  if (HasNarrowIds(header_.subject.vocabulary)) return ElementAt<uint16_t>(shard.ids, place);
  return ElementAt<int32_t>(shard.ids, place);
}

StoredLogits::Range StoredLogits::RangeOf(int64_t sample) const {
  TERCIO_CHECK(sample >= 0 && sample < header_.subject.sample_count());
  const auto after = std::upper_bound(
      shards_.begin(), shards_.end(), sample,
      [](int64_t value, const Shard& shard) { return value < shard.first_sample; });
  const Shard& shard = *(after - 1);
  const int64_t of_shard = sample - shard.first_sample;
  return {&shard, ElementAt<int64_t>(shard.rows, of_shard),
          ElementAt<int64_t>(shard.rows, of_shard + 1)};
}

int64_t StoredLogits::RowsOf(int64_t sample) const {
  const Range range = RangeOf(sample);
  return range.end - range.begin;
}

void StoredLogits::Read(int64_t sample, std::vector<int32_t>* ids,
                        std::vector<float>* logits) const {
  const Range range = RangeOf(sample);
  const int64_t first = range.begin * header_.k;
  const auto count = static_cast<size_t>((range.end - range.begin) * header_.k);
  ids->resize(count);
  logits->resize(count);
  if (count == 0) return;
  std::memcpy(logits->data(), range.shard->logits + first * static_cast<int64_t>(sizeof(float)),
              count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    (*ids)[i] = IdAt(*range.shard, first + static_cast<int64_t>(i));
  }
}

}  // namespace tercio::checkpoint
