#include "checkpoint/manifest.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/block_digests.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/numerics.h"
#include "plan/state_digest.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "tercio-checkpoint";
constexpr int kVersion = 3;
constexpr int kOldestVersion = 2;  // without digests of blocks and of itself
constexpr char kDigest[] = "digest";
// A training state is a few numbers: one that is nested deeper would overflow the stack of the code
// that writes it out again.
constexpr size_t kMostStateBytes = size_t{1} << 20;
constexpr int kMostStateDepth = 32;
// A manifest may be anyone's: its sizes are bounded before they are multiplied and added up.
constexpr int64_t kMostTensorElements = int64_t{1} << 58;

// Rows and columns of the matrix view: a vector is one column.
int64_t Rows(const ManifestTensor& tensor) { return tensor.shape[0]; }
int64_t Columns(const ManifestTensor& tensor) {
  return tensor.shape.size() == 2 ? tensor.shape[1] : 1;
}

bool HasPossibleShape(const ManifestTensor& tensor) {
  return (tensor.shape.size() == 1 || tensor.shape.size() == 2) && Rows(tensor) > 0 &&
         Columns(tensor) > 0 && Rows(tensor) <= kMostTensorElements / Columns(tensor);
}

// Rectangles overlap if they do in rows and in columns.
bool Overlap(const Piece& a, const Piece& b) {
  return a.row_begin < b.row_end && b.row_begin < a.row_end && a.column_begin < b.column_end &&
         b.column_begin < a.column_end;
}

bool Tiles(const ManifestTensor& tensor) {
  int64_t covered = 0;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const Piece& piece = tensor.pieces[i];
    // An empty piece is refused, for it would count as covering nothing and hide a mistake.
    if (piece.row_begin < 0 || piece.row_begin >= piece.row_end || piece.row_end > Rows(tensor) ||
        piece.column_begin < 0 || piece.column_begin >= piece.column_end ||
        piece.column_end > Columns(tensor)) {
      return false;
    }
    // Comparing all pairs is quadratic, but a tensor has no more pieces than a run has ranks.
    for (size_t k = 0; k < i; ++k) {
      if (Overlap(piece, tensor.pieces[k])) return false;
    }
    covered += (piece.row_end - piece.row_begin) * (piece.column_end - piece.column_begin);
  }
  // Without overlaps, the same number of elements means that nothing is left out.
  return covered == Rows(tensor) * Columns(tensor);
}

ManifestTensor TensorFromJson(const Json& json) {
  ManifestTensor tensor;
  tensor.shape = json.at("shape").get<std::vector<int64_t>>();
  tensor.dtype = json.at("dtype");
  for (const Json& item : json.at("pieces")) {
    Piece piece;
    piece.file = item.at("file");
    piece.offset = item.at("offset");
    piece.row_begin = item.at("rows").at(0);
    piece.row_end = item.at("rows").at(1);
    piece.column_begin = item.at("columns").at(0);
    piece.column_end = item.at("columns").at(1);
    // Version 2 has no such digests, and neither has an import.
    piece.block_digests = absl::HexStringToBytes(item.value("blocks", ""));
    tensor.pieces.push_back(piece);
  }
  return tensor;
}

// Missing keys and wrong types are exceptions here, which ManifestFromJson turns into an error.
Manifest Parse(const Json& json) {
  Manifest manifest;
  manifest.job = json.at("job");
  manifest.step = json.at("step");
  manifest.attempt = json.at("attempt");
  // What these two contain is not this library's business, so they stay text.
  manifest.model_json = json.at("model").dump();
  manifest.training_state_json = json.at("training_state").dump();
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    manifest.tensors[name] = TensorFromJson(tensor);
  }
  for (const auto& [name, file] : json.at("files").items()) {
    manifest.files[name] = {file.at("bytes"), file.at("xxh128")};
  }
  manifest.tokenizer_file = json.value("tokenizer", "");
  if (manifest.tokenizer_file.empty() && manifest.files.contains("tokenizer.json")) {
    manifest.tokenizer_file = "tokenizer.json";  // by its name, in version 2
  }
  return manifest;
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const Piece& piece : tensor.pieces) {
      Json item = {{"file", piece.file},
                   {"offset", piece.offset},
                   {"rows", {piece.row_begin, piece.row_end}},
                   {"columns", {piece.column_begin, piece.column_end}}};
      // Pieces without digests have no key, as in files of version 2.
      if (!piece.block_digests.empty()) {
        item["blocks"] = absl::BytesToHexString(piece.block_digests);
      }
      pieces.push_back(std::move(item));
    }
    tensors[name] = {{"shape", tensor.shape}, {"dtype", tensor.dtype}, {"pieces", pieces}};
  }
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"xxh128", file.checksum}};
  }
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"job", manifest.job},
               {"step", manifest.step},
               {"attempt", manifest.attempt},
               // Other readers of the format need the size of blocks; this one has a single size.
               {"block_bytes", kBlockBytes},
               {"model", Json::parse(manifest.model_json, nullptr, /*allow_exceptions=*/false)},
               {"training_state",
                Json::parse(manifest.training_state_json, nullptr, /*allow_exceptions=*/false)},
               {"tensors", tensors},
               {"files", files}};
  if (!manifest.tokenizer_file.empty()) json["tokenizer"] = manifest.tokenizer_file;
  // The library sorts keys, so the text of a parsed manifest is the same again. Spaces and line
  // ends are not part of it.
  json[kDigest] = ChecksumHex(json.dump());
  return json.dump(1);
}

namespace {

// Whether the manifest is as it was written: its digest matches the rest of it.
bool IsUnchanged(Json json) {
  const std::string digest = json.value(kDigest, "");
  // The digest cannot cover itself.
  json.erase(kDigest);
  return ChecksumHex(json.dump()) == digest;
}

absl::Status CheckBlocks(const std::string& tensor, const Piece& piece) {
  const size_t expected = static_cast<size_t>(BlocksOf(piece.bytes())) * kDigestBytes;
  if (piece.block_digests.empty() || piece.block_digests.size() == expected) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("a piece of tensor ", tensor, " does not have one digest per block"));
}

bool StaysInside(const std::string& name) {
  // Names are appended to the checkpoint's path, and must not lead out of it.
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && part != "." && part != "..";
  });
}

}  // namespace

absl::StatusOr<Manifest> ManifestFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    if (!json.is_object() || json.value("format", "") != kFormat) {
      return absl::DataLossError("not the manifest of a Tercio checkpoint");
    }
    const int version = json.value("version", 0);
    // A newer program is no damage, so this comes before the content is looked at.
    if (version > kVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "manifest version ", version, " was written by a newer Tercio; this one reads ",
          kOldestVersion, " to ", kVersion));
    }
    if (version < kOldestVersion) {
      return absl::DataLossError(absl::StrCat("unknown manifest version ", version));
    }
    // Version 2 has no digest of itself.
    if (version >= 3 && !IsUnchanged(json)) {
      return absl::DataLossError(
          "the manifest was changed after it was written: its digest does not match");
    }
    Manifest manifest = Parse(json);
    for (const auto& [name, file] : manifest.files) {
      if (StaysInside(name)) continue;
      return absl::DataLossError(
          absl::StrCat("the manifest names a file that is not in its directory: \"", name, "\""));
    }
    // A digest says that nothing has changed, not that it was right when it was written.
    TERCIO_RETURN_IF_ERROR(CheckCoverage(manifest));
    return manifest;
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("damaged manifest: ", error.what()));
  }
}

absl::Status CheckCoverage(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!HasPossibleShape(tensor)) {
      return absl::DataLossError(
          absl::StrCat("tensor ", name, " has the shape of no tensor of a model"));
    }
    if (!Tiles(tensor)) {
      return absl::DataLossError(
          absl::StrCat("the pieces of tensor ", name, " do not cover it exactly once"));
    }
    for (const Piece& piece : tensor.pieces) {
      const auto file = manifest.files.find(piece.file);
      if (file == manifest.files.end() || piece.offset < 0 ||
          piece.offset > file->second.bytes - piece.bytes()) {
        return absl::DataLossError(
            absl::StrCat("a piece of tensor ", name, " lies outside of file ", piece.file));
      }
      TERCIO_RETURN_IF_ERROR(CheckBlocks(name, piece));
    }
  }
  return absl::OkStatus();
}

std::string DigestOfManifest(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto digest = json.find(kDigest);
  return digest != json.end() && digest->is_string() ? digest->get<std::string>() : "";
}

int NumericsOf(const Manifest& manifest) {
  const Json state = Json::parse(manifest.training_state_json, nullptr, /*allow_exceptions=*/false);
  const auto found = state.is_object() ? state.find("numerics") : state.end();
  // Another program may have written anything.
  if (found == state.end() || !found->is_number_integer()) return plan::RecordedNumerics(0);
  return plan::RecordedNumerics(found->get<int>());
}

std::optional<uint64_t> StateDigestOf(const Manifest& manifest) {
  const Json state = Json::parse(manifest.training_state_json, nullptr, /*allow_exceptions=*/false);
  const auto found = state.is_object() ? state.find("state_digest") : state.end();
  if (found == state.end() || !found->is_string()) return std::nullopt;
  return plan::ParseStateDigest(found->get_ref<const std::string&>());
}

absl::Status CheckTrainingState(const std::string& text) {
  if (text.size() > kMostStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the training state has ", text.size(),
                                                   " bytes; the limit is ", kMostStateBytes));
  }
  bool deep = false;
  const Json json = Json::parse(
      text,
      // The parser stops here before a deep tree exists, which could not even be destroyed safely.
      [&deep](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kMostStateDepth;
        return !deep;
      },
      /*allow_exceptions=*/false);
  if (deep || !json.is_object()) {
    return absl::InvalidArgumentError(
        "the training state is not a JSON object, or is nested too deeply");
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
