#include "checkpoint/base_digest.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "plan/state_digest.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kDigestedElements = int64_t{1} << 18;  // stays in the cache until it is summed
constexpr char kDigestKey[] = "digest";

absl::StatusOr<uint64_t> DigestOfTensors(const WeightSource& source,
                                         const std::vector<plan::LogicalTensor>& tensors) {
  uint64_t digest = 0;
  std::vector<float> values;
  for (const plan::LogicalTensor& tensor : tensors) {
    v1::TensorSlice whole;
    whole.set_tensor(tensor.name);
    whole.add_shape(tensor.rows);
    if (!tensor.is_vector) whole.add_shape(tensor.columns);
    whole.set_row_end(tensor.rows);
    whole.set_column_end(tensor.columns);
    uint64_t sum = 0;
    for (const v1::TensorSlice& part : DivideSlice(whole, kDigestedElements)) {
      const int64_t width = part.column_end() - part.column_begin();
      values.resize(static_cast<size_t>((part.row_end() - part.row_begin()) * width));
      TERCIO_RETURN_IF_ERROR(ReadSliceFor(source, part, values.data()));
      // Parts have whole rows, or one row.
      sum +=
          plan::DigestOfElements(values, part.row_begin() * tensor.columns + part.column_begin());
    }
    digest += plan::FactorOfTensor(tensor.name) * sum;
  }
  return digest;
}

}  // namespace

absl::StatusOr<uint64_t> DigestOfBase(const WeightSource& source, const v1::ModelSpec& adapted) {
  std::vector<plan::LogicalTensor> below;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(adapted)) {
    if (tensor.below_adapters) below.push_back(tensor);
  }
  return DigestOfTensors(source, below);
}

absl::StatusOr<uint64_t> DigestOfWeights(const WeightSource& source) {
  return DigestOfTensors(source, plan::ModelTensors(source.model()));
}

std::string BaseDigestJson(uint64_t digest) {
  return nlohmann::json({{kDigestKey, plan::StateDigestText(digest)}}).dump() + "\n";
}

absl::Status CheckBaseDigest(const std::string& directory, const WeightSource& source,
                             const v1::ModelSpec& adapted) {
  const std::string path = absl::StrCat(directory, "/", kBaseDigestFile);
  if (!PathExists(path)) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool named = json.is_object() && json.contains(kDigestKey) && json[kDigestKey].is_string();
  const std::optional<uint64_t> expected =
      named ? plan::ParseStateDigest(json[kDigestKey].get<std::string>()) : std::nullopt;
  if (!expected.has_value()) {
    return absl::DataLossError(absl::StrCat(path, ": it holds no digest of a base"));
  }
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, DigestOfBase(source, adapted));
  if (digest == *expected) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the adapter in ", directory, " was trained beside other weights (digest ",
      plan::StateDigestText(*expected), ") than these (", plan::StateDigestText(digest),
      "); name its own base, or remove ", path, " to use it with this one"));
}

}  // namespace tercio::checkpoint
