#include "checkpoint/logits/header.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "tercio-logits";
constexpr int kVersion = 1;
constexpr char kDigestKey[] = "digest";
constexpr size_t kDigestDigits = 64;
// Sums of as many counts of this size do not overflow.
constexpr int64_t kMostCount = int64_t{1} << 48;
constexpr size_t kMostParts = 4096;
constexpr int64_t kMostShards = int64_t{1} << 20;

// Paths may hold bytes that are no UTF-8; they are replaced.
std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Members of an object from a file that is not trusted. The first fault is kept.
class Members {
 public:
  Members(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) Fault("is no object");
  }

  std::string Text(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) Fault(absl::StrCat("has no text ", key));
    return value->is_string() ? value->get<std::string>() : "";
  }
  int64_t Count(const char* key, int64_t least) {
    const Json* value = Find(key);
    return value == nullptr ? least : CountOf(*value, key, least);
  }
  int64_t CountOf(const Json& value, const char* key, int64_t least) {
    const bool fits = value.is_number_unsigned() &&
                      value.get<uint64_t>() <= static_cast<uint64_t>(kMostCount) &&
                      value.get<int64_t>() >= least;
    if (!fits) Fault(absl::StrCat("has an impossible ", key));
    return fits ? value.get<int64_t>() : least;
  }
  const Json* Find(const char* key) {
    const Json* value = json_.is_object() && json_.contains(key) ? &json_[key] : nullptr;
    if (value == nullptr) Fault(absl::StrCat("has no ", key));
    return value;
  }
  void Fault(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(
          path_, ": it ", what, "; write the logits again (tercio evaluate --write-logits)"));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  const std::string path_;
  absl::Status status_;
};

Json ToJson(const LogitsHeader& header) {
  const LogitsSubject& subject = header.subject;
  Json shards = Json::array();
  for (const LogitsShard& shard : header.shards) {
    shards.push_back({{"file", shard.file},
                      {"samples", shard.samples},
                      {"rows", shard.rows},
                      {"bytes", shard.bytes},
                      {"sha256", shard.sha256}});
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"vocab_size", subject.vocabulary},
          {"context", subject.context},
          {"template", subject.chat_template},
          {"loss_on", subject.loss_on},
          {"data", subject.data},
          {"tokenizer", subject.tokenizer},
          {"samples", subject.samples},
          {"top_k", header.k},
          {"teacher", {{"name", header.teacher.name}, {"digest", header.teacher.digest}}},
          {"shards", shards}};
}

// The name comes from a file that is not trusted, and must not lead out of the directory.
bool IsFileName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name != "." && name != "..";
}

void ReadShards(const Json& all, const std::string& path, Members& members, LogitsHeader* header) {
  if (!all.is_array() || static_cast<int64_t>(all.size()) > kMostShards) {
    return members.Fault("has no list of shards");
  }
  int64_t samples = 0;
  for (const Json& one : all) {
    Members shard(one, path);
    LogitsShard& read = header->shards.emplace_back();
    read.file = shard.Text("file");
    read.samples = shard.Count("samples", 1);
    read.rows = shard.Count("rows", 0);
    read.bytes = shard.Count("bytes", 1);
    read.sha256 = shard.Text("sha256");
    samples += read.samples;
    if (!shard.status().ok() || !IsFileName(read.file) || read.sha256.size() != kDigestDigits) {
      return members.Fault("has a shard without a file, its size or its digest");
    }
  }
  if (samples != header->subject.sample_count()) {
    members.Fault(absl::StrCat("has shards of ", samples, " samples, but ",
                               header->subject.sample_count(), " samples"));
  }
}

void ReadSubject(const std::string& path, Members& members, LogitsHeader* header) {
  LogitsSubject& subject = header->subject;
  subject.vocabulary = members.Count("vocab_size", 1);
  subject.context = members.Count("context", 1);
  subject.chat_template = members.Text("template");
  subject.loss_on = members.Text("loss_on");
  subject.data = members.Text("data");
  subject.tokenizer = members.Text("tokenizer");
  header->k = members.Count("top_k", 1);
  if (header->k > subject.vocabulary || subject.vocabulary > std::numeric_limits<int32_t>::max()) {
    members.Fault("has an impossible top_k or vocab_size");
  }
  const Json* samples = members.Find("samples");
  if (samples == nullptr || !samples->is_array() || samples->size() > kMostParts) {
    return members.Fault("has no list of samples");
  }
  for (const Json& one : *samples) subject.samples.push_back(members.CountOf(one, "samples", 0));
  if (const Json* teacher = members.Find("teacher")) {
    Members of_teacher(*teacher, path);
    header->teacher.name = of_teacher.Text("name");
    header->teacher.digest = of_teacher.Text("digest");
    if (!of_teacher.status().ok()) members.Fault("has no teacher");
  }
}

std::string SamplesText(const std::vector<int64_t>& samples) {
  return absl::StrJoin(samples, " + ");
}

}  // namespace

int64_t LogitsSubject::sample_count() const {
  return std::accumulate(samples.begin(), samples.end(), int64_t{0});
}

std::string LogitsHeaderJson(const LogitsHeader& header) {
  Json json = ToJson(header);
  json[kDigestKey] = Sha256Hex(Dump(json, -1));
  return Dump(json, 1) + "\n";
}

absl::StatusOr<LogitsHeader> ParseLogitsHeader(std::string_view text, const std::string& path) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Members members(json, path);
  const std::string format = members.Text("format");
  const int64_t version = members.Count("version", 1);
  if (members.status().ok() && format != kFormat) members.Fault("is no header of stored logits");
  if (members.status().ok() && version != kVersion) {
    members.Fault(absl::StrCat("has version ", version, ", and this program reads ", kVersion));
  }
  const std::string digest = members.Text(kDigestKey);
  TERCIO_RETURN_IF_ERROR(members.status());
  Json rest = json;
  rest.erase(kDigestKey);
  if (Sha256Hex(Dump(rest, -1)) != digest) members.Fault("was changed: its digest is another one");
  TERCIO_RETURN_IF_ERROR(members.status());
  LogitsHeader header;
  ReadSubject(path, members, &header);
  TERCIO_RETURN_IF_ERROR(members.status());
  if (const Json* shards = members.Find("shards")) ReadShards(*shards, path, members, &header);
  TERCIO_RETURN_IF_ERROR(members.status());
  return header;
}

absl::StatusOr<LogitsHeader> ReadLogitsHeader(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kLogitsHeader);
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(path, " is not there: ", directory, " holds no complete logits; write them ",
                     "with `tercio evaluate --checkpoint TEACHER --job JOB.yaml --write-logits ",
                     directory, "`"));
  }
  TERCIO_RETURN_IF_ERROR(text.status());
  return ParseLogitsHeader(*text, path);
}

absl::Status CheckSubject(const LogitsHeader& header, const LogitsSubject& job,
                          const std::string& directory) {
  const LogitsSubject& stored = header.subject;
  std::vector<std::string> faults;
  const auto compare = [&](const char* what, const auto& theirs, const auto& ours) {
    if (theirs != ours) faults.push_back(absl::StrCat(what, " ", theirs, ", the job has ", ours));
  };
  compare("a vocabulary of", stored.vocabulary, job.vocabulary);
  compare("model.context", stored.context, job.context);
  const auto named = [](const std::string& name) { return name.empty() ? "none" : name; };
  compare("data.template", named(stored.chat_template), named(job.chat_template));
  compare("data.loss_on", named(stored.loss_on), named(job.loss_on));
  // Digests say nothing to people, so that their beginnings are shown.
  const auto compare_digests = [&](const char* what, const std::string& theirs,
                                   const std::string& ours) {
    if (theirs == ours) return;
    faults.push_back(absl::StrCat(what, " ", named(theirs.substr(0, 12)), ", the job has ",
                                  named(ours.substr(0, 12))));
  };
  compare_digests("the tokenizer", stored.tokenizer, job.tokenizer);
  // Each difference above makes another digest of the data.
  if (faults.empty()) compare_digests("data", stored.data, job.data);
  compare("samples", SamplesText(stored.samples), SamplesText(job.samples));
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      directory, "/", kLogitsHeader, ": the logits belong to other samples than the job's: ",
      absl::StrJoin(faults, "; "), "; write them for this job (tercio evaluate --write-logits), ",
      "or train with the data and settings that they were written for"));
}

bool HasNarrowIds(int64_t vocabulary) {
  return vocabulary <= int64_t{std::numeric_limits<uint16_t>::max()} + 1;
}

int64_t BytesOfRow(int64_t vocabulary, int64_t k) {
  const size_t id = HasNarrowIds(vocabulary) ? sizeof(uint16_t) : sizeof(int32_t);
  return k * static_cast<int64_t>(sizeof(float) + id);
}

}  // namespace tercio::checkpoint
