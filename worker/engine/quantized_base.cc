#include "worker/engine/quantized_base.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/quantized_base.h"
#include "plan/base_format.h"
#include "worker/blocks/quantized_weights.h"
#include "worker/engine/initialization.h"

namespace tercio::engine {

// A part of what checkpoints have of a matrix, as floats.
class BasePart : public StatePart {
 public:
  enum class Kind { kCodes, kScales, kGroups };

  BasePart(QuantizedBase& base, const plan::QuantizedTensor& tensor, Kind kind)
      : base_(base), tensor_(tensor), kind_(kind) {}

  std::string tensor() const override {
    const char* prefix = kind_ == Kind::kCodes    ? plan::kBaseCodes
                         : kind_ == Kind::kScales ? plan::kBaseScales
                                                  : plan::kBaseGroups;
    return absl::StrCat(prefix, tensor_.tensor.name);
  }
  std::vector<int64_t> shape() const override {
    if (kind_ == Kind::kGroups) return {1 + tensor_.group_count};
    return {tensor_.tensor.rows, tensor_.tensor.columns / Width()};
  }
  // Codes and scales are cut as the matrix is.
  v1::TensorSlice Slice() const override {
    v1::TensorSlice slice = StatePart::Slice();
    if (kind_ == Kind::kGroups) return slice;
    const plan::TensorShard shard = Shard();
    slice.set_row_begin(shard.row_begin);
    slice.set_row_end(shard.row_end);
    slice.set_column_begin(shard.column_begin / Width());
    slice.set_column_end(shard.column_end / Width());
    return slice;
  }
  bool IsSaved() const override {
    const v1::RankPlacement& at = base_.plan_.placement();
    const bool differs = kind_ != Kind::kGroups && base_.IsCut(tensor_);
    return at.data_index() == 0 && (differs || at.tensor_index() == 0);
  }

  std::vector<float> Values() const override {
    std::vector<float> values(static_cast<size_t>(Count()));
    if (kind_ != Kind::kScales) {
      base_.stream_.CopyToHost(values.data(), Place(), Bytes());
      TERCIO_CHECK(base_.stream_.Synchronize().ok());
      return values;
    }
    std::vector<uint8_t> codes(values.size());
    base_.stream_.CopyToHost(codes.data(), Place(), Bytes());
    TERCIO_CHECK(base_.stream_.Synchronize().ok());
    std::copy(codes.begin(), codes.end(), values.begin());
    return values;
  }
  absl::Status Restore(absl::Span<const float> values) override { return RestorePiece(0, values); }
  bool TakesPieces() const override { return true; }
  absl::Status RestorePiece(int64_t first, absl::Span<const float> values) override {
    const auto count = static_cast<int64_t>(values.size());
    if (kind_ != Kind::kScales) {
      constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
      base_.stream_.CopyFromHost(Place() + first * kFloat, values.data(), count * kFloat);
      return base_.stream_.Synchronize();
    }
    std::vector<uint8_t> codes(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // A code that is none would read behind the table.
      if (!(values[i] >= 0 && values[i] <= 255)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", tensor(), " does not hold codes of scales"));
      }
      codes[i] = static_cast<uint8_t>(values[i]);
    }
    base_.stream_.CopyFromHost(Place() + first, codes.data(), count);
    return base_.stream_.Synchronize();
  }

 private:
  plan::TensorShard Shard() const {
    return plan::ShardOfRank(tensor_.tensor, base_.plan_.layout().tensor(),
                             base_.plan_.placement().tensor_index(), 0);
  }
  // Elements of the matrix for each float.
  int64_t Width() const {
    if (kind_ == Kind::kScales) return kernels::kBaseBlock;
    return tensor_.elements() / plan::SavedCodes(base_.tensors_.base_format, tensor_);
  }
  int64_t Count() const {
    if (kind_ == Kind::kGroups) return 1 + tensor_.group_count;
    return tensor_.elements() / Width();
  }
  int64_t Bytes() const {
    return kind_ == Kind::kScales ? Count() : Count() * static_cast<int64_t>(sizeof(float));
  }
  std::byte* Place() const {
    return base_.base_ + (kind_ == Kind::kCodes    ? tensor_.codes
                          : kind_ == Kind::kScales ? tensor_.scales
                                                   : tensor_.groups);
  }

  QuantizedBase& base_;
  const plan::QuantizedTensor& tensor_;
  const Kind kind_;
};

QuantizedBase::QuantizedBase(const plan::StageTensors& tensors, const v1::RankPlan& plan,
                             Arena& arena, device::Stream& stream,
                             collective::Communicator& tensor_group)
    : tensors_(tensors), plan_(plan), stream_(stream), tensor_group_(tensor_group) {
  // Tables of jobs without a base lack its buffer.
  if (tensors.quantized.empty()) return;
  constexpr char kScratch[] = "workspace.norm_gradient";
  base_ = arena.Get<std::byte>(plan::kBaseBuffer);
  scratch_ = arena.Floats(kScratch);
  scratch_elements_ = arena.Bytes(kScratch) / static_cast<int64_t>(sizeof(float));
  for (const plan::QuantizedTensor& each : tensors.quantized) {
    const plan::TensorShard shard =
        plan::ShardOfRank(each.tensor, plan.layout().tensor(), plan.placement().tensor_index(), 0);
    v1::TensorSlice slice;
    slice.set_tensor(each.tensor.name);
    slice.add_shape(each.tensor.rows);
    slice.add_shape(each.tensor.columns);
    slice.set_row_begin(shard.row_begin);
    slice.set_row_end(shard.row_end);
    slice.set_column_begin(shard.column_begin);
    slice.set_column_end(shard.column_end);
    slice.set_dtype("F32");
    value_slices_.push_back(slice);
  }
}

bool QuantizedBase::IsCut(const plan::QuantizedTensor& tensor) const {
  return tensor.tensor.shard != plan::Shard::kWhole;
}

absl::Status QuantizedBase::QuantizeRows(const plan::QuantizedTensor& tensor, int64_t first,
                                         absl::Span<const float> values,
                                         std::vector<float>* scales) {
  const auto count = static_cast<int64_t>(values.size());
  const auto bytes = kernels::CodesBytes(tensors_.base_format, count);
  std::vector<std::byte> codes(static_cast<size_t>(bytes));
  const size_t before = scales->size();
  scales->resize(before + static_cast<size_t>(count / kernels::kBaseBlock));
  if (!kernels::QuantizeBase(tensors_.base_format, values, codes.data(), scales->data() + before)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.tensor.name,
                     " has numbers that are not finite, for which there are no codes; leave out "
                     "model.base_format, or mend the model"));
  }
  stream_.CopyFromHost(base_ + tensor.codes + kernels::CodesBytes(tensors_.base_format, first),
                       codes.data(), bytes);
  return stream_.Synchronize();
}

absl::Status QuantizedBase::Load(size_t slice, int64_t first, absl::Span<const float> values) {
  const plan::QuantizedTensor& tensor = tensors_.quantized.at(slice);
  if (first == 0) pending_ = {.slice = slice, .loaded = 0, .scales = {}};
  const auto count = static_cast<int64_t>(values.size());
  if (slice != pending_.slice || first != pending_.loaded || count % kernels::kBaseBlock != 0 ||
      first + count > tensor.elements()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.tensor.name, ": got ", count,
                                                   " values from ", first,
                                                   " on, but whole blocks of ", kernels::kBaseBlock,
                                                   " from ", pending_.loaded, " on are next"));
  }
  TERCIO_RETURN_IF_ERROR(QuantizeRows(tensor, first, values, &pending_.scales));
  pending_.loaded += count;
  if (pending_.loaded < tensor.elements()) return absl::OkStatus();
  return Complete(tensor, std::exchange(pending_.scales, {}));
}

absl::Status QuantizedBase::Complete(const plan::QuantizedTensor& tensor,
                                     const std::vector<float>& mine) {
  if (!IsCut(tensor) || tensor_group_.size() == 1) return WriteScales(tensor, mine, mine);
  TERCIO_ASSIGN_OR_RETURN(const std::vector<float> whole, ScalesOfAll(tensor, mine));
  return WriteScales(tensor, mine, whole);
}

// The scales of the whole matrix, block by block. Each rank has equally many.
absl::StatusOr<std::vector<float>> QuantizedBase::ScalesOfAll(const plan::QuantizedTensor& tensor,
                                                              const std::vector<float>& mine) {
  const int ranks = tensor_group_.size();
  const int64_t blocks = tensor.blocks();
  const int64_t of_row = tensor.columns / kernels::kBaseBlock;
  const int64_t most = scratch_elements_ / (1 + ranks);
  TERCIO_CHECK_GT(most, 0);
  std::vector<float> whole(static_cast<size_t>(blocks * ranks));
  std::vector<float> piece;
  for (int64_t begin = 0; begin < blocks; begin += most) {
    const int64_t count = std::min(most, blocks - begin);
    piece.resize(static_cast<size_t>(count * ranks));
    stream_.CopyFromHost(scratch_, mine.data() + begin,
                         count * static_cast<int64_t>(sizeof(float)));
    tensor_group_.AllGather(stream_, scratch_, scratch_ + most, count);
    stream_.CopyToHost(piece.data(), scratch_ + most,
                       count * ranks * static_cast<int64_t>(sizeof(float)));
    TERCIO_RETURN_IF_ERROR(stream_.Synchronize());
    for (int rank = 0; rank < ranks; ++rank) {
      const blocks::BlockPlace place = blocks::PlaceOfBlocks(tensor, ranks, rank);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t block = begin + i;
        const int64_t number = place.first + block / of_row * place.stride + block % of_row;
        whole[static_cast<size_t>(number)] = piece[static_cast<size_t>(rank * count + i)];
      }
    }
  }
  return whole;
}

absl::Status QuantizedBase::WriteScales(const plan::QuantizedTensor& tensor,
                                        absl::Span<const float> mine,
                                        absl::Span<const float> whole) {
  const kernels::ScaleGroups groups = kernels::GroupsOfScales(whole);
  TERCIO_CHECK_EQ(static_cast<int64_t>(groups.largest.size()), tensor.group_count);
  const blocks::BlockPlace place =
      blocks::PlaceOfBlocks(tensor, plan_.layout().tensor(), plan_.placement().tensor_index());
  const int64_t of_row = tensor.columns / kernels::kBaseBlock;
  std::vector<uint8_t> codes(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    const int64_t number = place.first + block / of_row * place.stride + block % of_row;
    const float largest = groups.largest[static_cast<size_t>(number / kernels::kScalesOfGroup)];
    codes[i] = kernels::CodeOfScale(mine[i], groups.mean, largest);
  }
  std::vector<float> numbers = {groups.mean};
  numbers.insert(numbers.end(), groups.largest.begin(), groups.largest.end());
  stream_.CopyFromHost(base_ + tensor.scales, codes.data(), static_cast<int64_t>(codes.size()));
  stream_.CopyFromHost(base_ + tensor.groups, numbers.data(),
                       static_cast<int64_t>(numbers.size() * sizeof(float)));
  return stream_.Synchronize();
}

absl::Status QuantizedBase::Initialize(uint64_t seed) {
  // Numbers are keyed by their place in the whole tensor, which one tensor rank would have.
  v1::RankPlan whole_plan = plan_;
  whole_plan.mutable_layout()->set_tensor(1);
  whole_plan.mutable_placement()->set_tensor_index(0);
  for (const plan::QuantizedTensor& tensor : tensors_.quantized) {
    const std::vector<float> values = InitialValues(tensor.tensor, plan_, seed);
    std::vector<float> mine;
    TERCIO_RETURN_IF_ERROR(QuantizeRows(tensor, 0, values, &mine));
    std::vector<float> whole = mine;
    if (IsCut(tensor) && plan_.layout().tensor() > 1) {
      const std::vector<float> all = InitialValues(tensor.tensor, whole_plan, seed);
      std::vector<std::byte> codes(static_cast<size_t>(
          kernels::CodesBytes(tensors_.base_format, static_cast<int64_t>(all.size()))));
      whole.resize(all.size() / kernels::kBaseBlock);
      TERCIO_CHECK(kernels::QuantizeBase(tensors_.base_format, all, codes.data(), whole.data()));
    }
    TERCIO_RETURN_IF_ERROR(WriteScales(tensor, mine, whole));
  }
  return absl::OkStatus();
}

void QuantizedBase::AddParts(StateParts* parts) {
  for (const plan::QuantizedTensor& tensor : tensors_.quantized) {
    for (const BasePart::Kind kind :
         {BasePart::Kind::kCodes, BasePart::Kind::kScales, BasePart::Kind::kGroups}) {
      parts->push_back(std::make_unique<BasePart>(*this, tensor, kind));
    }
  }
}

}  // namespace tercio::engine
