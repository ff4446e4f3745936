#include "checkpoint/adapted_weights.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/read_stored.h"
#include "common/status_macros.h"
#include "model/adapters.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

class AdaptedWeights : public WeightSource {
 public:
  AdaptedWeights(std::unique_ptr<WeightSource> base, std::unique_ptr<PeftAdapter> adapter,
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
  const std::unique_ptr<WeightSource> base_;
  const std::unique_ptr<PeftAdapter> adapter_;
  const std::string directory_;
  v1::ModelSpec model_;
};

// All of a matrix.
v1::TensorSlice WholeOf(const std::string& tensor, int64_t rows, int64_t columns) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor);
  slice.add_shape(rows);
  slice.add_shape(columns);
  slice.set_row_end(rows);
  slice.set_column_end(columns);
  return slice;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> WithAdapter(std::unique_ptr<WeightSource> base,
                                                          const std::string& directory) {
  if (base->model().has_adapter()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has an adapter already, and cannot take that of ", directory,
                     "; merge it first (tercio checkpoint export --merge)"));
  }
  TERCIO_ASSIGN_OR_RETURN(auto adapter, PeftAdapter::Open(directory, base->model()));
  return std::make_unique<AdaptedWeights>(std::move(base), std::move(adapter), directory);
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenInitialSource(const v1::ModelSpec& model,
                                                                DigestCheck check) {
  TERCIO_ASSIGN_OR_RETURN(auto base, OpenWeightSource(model.from(), check));
  if (model.adapter().from().empty()) return base;
  return WithAdapter(std::move(base), model.adapter().from());
}

absl::StatusOr<std::unique_ptr<MergedWeights>> MergedWeights::Of(const WeightSource& adapted) {
  auto merged = std::unique_ptr<MergedWeights>(new MergedWeights(adapted));
  const v1::AdapterSpec adapter = adapted.model().adapter();
  merged->model_ = adapted.model();
  merged->model_.clear_adapter();
  merged->scale_ = model::LowRankScale(adapter);
  merged->rank_ = adapter.rank();
  const model::Architecture architecture = model::ArchitectureOf(adapted.model());
  std::map<std::string, plan::LogicalTensor> tensors;
  for (plan::LogicalTensor& tensor : plan::ModelTensors(adapted.model())) {
    const std::string name = tensor.name;
    tensors.emplace(name, std::move(tensor));
  }
  const auto read = [&](const std::string& name, std::vector<float>* values) -> absl::Status {
    const plan::LogicalTensor& tensor = tensors.at(name);
    values->resize(static_cast<size_t>(tensor.rows * tensor.columns));
    return adapted.ReadSlice(WholeOf(name, tensor.rows, tensor.columns), values->data());
  };
  for (int layer = 0; layer < static_cast<int>(architecture.layers.size()); ++layer) {
    for (const model::Sublayer& sublayer : architecture.layer(layer).sublayers) {
      for (const model::Branch& branch : sublayer.branches) {
        const std::string block = absl::StrCat("layers.", layer, ".", branch.name, ".");
        for (const model::AdaptablePart& part : model::AdaptablePartsOf(branch.block)) {
          const std::string a = block + part.name + model::kLoraA;
          if (!tensors.contains(a)) continue;
          for (const std::string& weight : part.weights) {
            Factors& factors = merged->factors_[absl::StrCat(block, weight, ".weight")];
            factors.inputs = tensors.at(a).columns;
            TERCIO_RETURN_IF_ERROR(read(a, &factors.a));
            TERCIO_RETURN_IF_ERROR(read(block + weight + model::kLoraB, &factors.b));
          }
        }
      }
    }
  }
  return merged;
}

bool MergedWeights::Has(const std::string& tensor) const {
  return !model::IsOfAdapter(tensor) && adapted_.Has(tensor);
}

absl::Status MergedWeights::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  TERCIO_RETURN_IF_ERROR(adapted_.ReadSlice(slice, out));
  const auto found = factors_.find(slice.tensor());
  if (found == factors_.end()) return absl::OkStatus();
  const Factors& factors = found->second;
  const int64_t width = slice.column_end() - slice.column_begin();
  std::vector<double> added(static_cast<size_t>(width));
  for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row, out += width) {
    added.assign(added.size(), 0.0);
    for (int64_t r = 0; r < rank_; ++r) {
      const double b = factors.b[static_cast<size_t>(row * rank_ + r)];
      const float* const a = factors.a.data() + r * factors.inputs + slice.column_begin();
      for (int64_t c = 0; c < width; ++c) added[static_cast<size_t>(c)] += b * double{a[c]};
    }
    for (int64_t c = 0; c < width; ++c) {
      out[c] = static_cast<float>(double{out[c]} + scale_ * added[static_cast<size_t>(c)]);
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
