#include "checkpoint/adapted_weights.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/base_digest.h"
#include "checkpoint/huggingface/read_stored.h"
#include "checkpoint/model_description.h"
#include "common/status_macros.h"
#include "model/adapters.h"
#include "plan/model_tensors.h"
#include "plan/state_digest.h"

namespace tercio::checkpoint {
namespace {

class AdaptedWeights : public WeightSource {
 public:
  AdaptedWeights(std::shared_ptr<const WeightSource> base, std::unique_ptr<PeftAdapter> adapter,
                 std::string directory)
      : base_(std::move(base)),
        adapter_(std::move(adapter)),
        directory_(std::move(directory)),
        model_(base_->model()) {
    *model_.mutable_adapter() = adapter_->spec();
  }

  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override { return base_->TokenizerJson(); }
  bool Has(const std::string& tensor) const override {
    return adapter_->Find(tensor) != nullptr || base_->Has(tensor);
  }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override {
    const StoredPlace* const place = adapter_->Find(slice.tensor());
    return place == nullptr ? base_->ReadSlice(slice, out)
                            : ReadStored(*place, slice, directory_, out);
  }
  std::vector<std::string> NotesFor(const v1::ModelSpec& model) const override {
    return base_->NotesFor(model);
  }

 private:
  const std::shared_ptr<const WeightSource> base_;
  const std::unique_ptr<PeftAdapter> adapter_;
  const std::string directory_;
  v1::ModelSpec model_;
};

absl::Status CheckPlain(const WeightSource& base, const std::string& directory) {
  if (!base.model().has_adapter()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has an adapter already, and cannot take that of ", directory,
                   "; merge it first (tercio checkpoint export --merge)"));
}

absl::StatusOr<std::unique_ptr<WeightSource>> WithPeftAdapter(
    std::shared_ptr<const WeightSource> base, const std::string& directory, DigestCheck check) {
  TERCIO_RETURN_IF_ERROR(CheckPlain(*base, directory));
  TERCIO_ASSIGN_OR_RETURN(auto adapter, PeftAdapter::Open(directory, base->model()));
  if (check == DigestCheck::kEveryByte) {
    v1::ModelSpec adapted = base->model();
    *adapted.mutable_adapter() = adapter->spec();
    TERCIO_RETURN_IF_ERROR(CheckBaseDigest(directory, *base, adapted));
  }
  return std::make_unique<AdaptedWeights>(std::move(base), std::move(adapter), directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> WithAdapter(std::unique_ptr<WeightSource> base,
                                                          const std::string& directory,
                                                          DigestCheck check) {
  return WithPeftAdapter(std::move(base), directory, check);
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenAdapterOf(const WeightSource& base,
                                                            const std::string& directory) {
  if (IsPeftAdapter(directory)) {
    // The caller keeps the base.
    const std::shared_ptr<const WeightSource> shared(std::shared_ptr<void>(), &base);
    return WithPeftAdapter(shared, directory, DigestCheck::kEveryByte);
  }
  TERCIO_RETURN_IF_ERROR(CheckPlain(base, directory));
  TERCIO_ASSIGN_OR_RETURN(auto adapted, OpenWeightSource(directory, DigestCheck::kEveryByte));
  if (!adapted->model().has_adapter()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory,
                     " is a model without an adapter; name a directory that peft has "
                     "saved, or a checkpoint of a job that trains an adapter"));
  }
  const std::vector<ModelDifference> differences = DifferencesOf(adapted->model(), base.model());
  if (!differences.empty()) {
    const ModelDifference& first = differences.front();
    return absl::FailedPreconditionError(
        absl::StrCat("the adapter in ", directory, " is for another model: its ", first.key, " is ",
                     first.ours, ", but this one has ", first.theirs, "; name its own base"));
  }
  TERCIO_ASSIGN_OR_RETURN(const uint64_t expected, DigestOfBase(*adapted, adapted->model()));
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, DigestOfBase(base, adapted->model()));
  if (digest != expected) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the adapter in ", directory, " was trained beside other weights (digest ",
        plan::StateDigestText(expected), ") than these (", plan::StateDigestText(digest),
        "); name its own base, or export the adapter alone (tercio checkpoint export --format "
        "peft)"));
  }
  return adapted;
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenInitialSource(const v1::ModelSpec& model,
                                                                DigestCheck check) {
  TERCIO_ASSIGN_OR_RETURN(auto base, OpenWeightSource(model.from(), check));
  if (model.adapter().from().empty()) return base;
  return WithAdapter(std::move(base), model.adapter().from(), check);
}

// Reads the tensors of an adapter.
class MergedWeights::Builder {
 public:
  explicit Builder(MergedWeights* merged) : merged_(*merged) {
    for (plan::LogicalTensor& tensor : plan::ModelTensors(merged->adapted_.model())) {
      const std::string name = tensor.name;
      tensors_.emplace(name, std::move(tensor));
    }
  }

  absl::Status Build() {
    const model::Architecture architecture = model::ArchitectureOf(merged_.adapted_.model());
    for (int layer = 0; layer < static_cast<int>(architecture.layers.size()); ++layer) {
      for (const model::Sublayer& sublayer : architecture.layer(layer).sublayers) {
        for (const model::Branch& branch : sublayer.branches) {
          const std::string block = absl::StrCat("layers.", layer, ".", branch.name, ".");
          for (const model::AdaptablePart& part : model::AdaptablePartsOf(branch.block)) {
            TERCIO_RETURN_IF_ERROR(AddLowRank(block, part));
            TERCIO_RETURN_IF_ERROR(AddFactors(block, part));
          }
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Read(const std::string& name, std::vector<float>* values) const {
    const plan::LogicalTensor& tensor = tensors_.at(name);
    values->resize(static_cast<size_t>(tensor.rows * tensor.columns));
    v1::TensorSlice slice;
    slice.set_tensor(name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    return merged_.adapted_.ReadSlice(slice, values->data());
  }

  absl::Status AddLowRank(const std::string& block, const model::AdaptablePart& part) {
    const std::string a = block + part.name + model::kLoraA;
    if (!tensors_.contains(a)) return absl::OkStatus();
    for (const std::string& weight : part.weights) {
      Change& change = merged_.changes_[absl::StrCat(block, weight, ".weight")];
      change.inputs = tensors_.at(a).columns;
      TERCIO_RETURN_IF_ERROR(Read(a, &change.a));
      TERCIO_RETURN_IF_ERROR(Read(block + weight + model::kLoraB, &change.b));
    }
    return absl::OkStatus();
  }

  absl::Status AddFactors(const std::string& block, const model::AdaptablePart& part) {
    for (const std::string& weight : part.weights) {
      const std::string factors = block + weight + model::kIa3;
      if (!tensors_.contains(factors)) continue;
      const plan::LogicalTensor& matrix = tensors_.at(absl::StrCat(block, weight, ".weight"));
      Change& change = merged_.changes_[matrix.name];
      change.inputs = matrix.columns;
      if (matrix.shard == plan::Shard::kColumns) {
        TERCIO_RETURN_IF_ERROR(Read(factors, &change.of_columns));
        continue;
      }
      TERCIO_RETURN_IF_ERROR(Read(factors, &change.of_rows));
      const std::string bias = absl::StrCat(block, weight, ".bias");
      if (tensors_.contains(bias)) merged_.changes_[bias].of_rows = change.of_rows;
    }
    return absl::OkStatus();
  }

  MergedWeights& merged_;
  std::map<std::string, plan::LogicalTensor> tensors_;
};

absl::StatusOr<std::unique_ptr<MergedWeights>> MergedWeights::Of(const WeightSource& adapted) {
  auto merged = std::unique_ptr<MergedWeights>(new MergedWeights(adapted));
  merged->model_ = adapted.model();
  merged->model_.clear_adapter();
  merged->scale_ = model::LowRankScale(adapted.model().adapter());
  merged->rank_ = adapted.model().adapter().rank();
  TERCIO_RETURN_IF_ERROR(Builder(merged.get()).Build());
  return merged;
}

bool MergedWeights::Has(const std::string& tensor) const {
  return !model::IsOfAdapter(tensor) && adapted_.Has(tensor);
}

absl::Status MergedWeights::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  TERCIO_RETURN_IF_ERROR(adapted_.ReadSlice(slice, out));
  const auto found = changes_.find(slice.tensor());
  if (found == changes_.end()) return absl::OkStatus();
  const Change& change = found->second;
  const int64_t width = slice.column_end() - slice.column_begin();
  std::vector<double> values(static_cast<size_t>(width));
  for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row, out += width) {
    values.assign(values.size(), 0.0);
    for (int64_t r = 0; r < (change.a.empty() ? 0 : rank_); ++r) {
      const double b = scale_ * change.b[static_cast<size_t>(row * rank_ + r)];
      const float* const a = change.a.data() + r * change.inputs + slice.column_begin();
      for (int64_t c = 0; c < width; ++c) values[static_cast<size_t>(c)] += b * double{a[c]};
    }
    const double of_row = change.of_rows.empty() ? 1.0 : change.of_rows[static_cast<size_t>(row)];
    for (int64_t c = 0; c < width; ++c) {
      const double of_column =
          change.of_columns.empty()
              ? 1.0
              : change.of_columns[static_cast<size_t>(slice.column_begin() + c)];
      out[c] =
          static_cast<float>(double{out[c]} * of_row * of_column + values[static_cast<size_t>(c)]);
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
