#include "worker/engine/product_shapes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/fp8.h"
#include "plan/lanes.h"
#include "plan/memory_map.h"
#include "plan/model_traits.h"
#include "plan/precision.h"
#include "worker/engine/stage_weights.h"

namespace tercio::engine {
namespace {

using kernels::Format;
using kernels::cuda::ProductEpilogue;
using kernels::cuda::ProductKind;
using kernels::cuda::ProductShape;

constexpr int64_t kGeluColumns = 8;  // the multiple that the library's GELU wants them to be

// A set, because layers, lanes and micro-batches ask for the same few products again and again.
class Shapes {
 public:
  Shapes(const v1::JobSpec& job, const v1::RankPlan& plan)
      : shape_(plan::ShapeOfStage(job, plan.layout(), plan.placement().pipeline_index())),
        traits_(plan::TraitsOf(job.model())),
        format_(shape_.precision.format),
        // TF32 is a way to multiply fp32 factors, so jobs in 16 bits have no such algorithms.
        tf32_(job.training().tf32() && format_ == Format::kFloat32),
        weights_(FindWeights(
            plan::TensorsOfStage(job.model(), plan.layout(), plan.placement().pipeline_index()),
            plan.stage().layers())) {
    // A weight gradient is one product per segment of a lane, and adds unless it starts the lane.
    const int lanes = plan::LanesPerDataRank(plan.lanes(), plan.layout().data());
    for (int i = 0; i < plan.layout().micro_batches(); ++i) {
      for (const plan::LaneSegment& segment : plan::SegmentsOfMicroBatch(
               i, plan.layout().micro_batch(), shape_.sequences_per_rank, lanes)) {
        segments_.insert({segment.sequences * shape_.tokens, !segment.starts_lane});
      }
    }
  }

  std::vector<ProductShape> Get() {
    // All layers of a model have the same sizes.
    const LayerWeights& layer = weights_.layers.front();
    const auto& s = shape_;
    Linear({s.qkv, s.hidden, layer.qkv_bias.elements > 0, Sum::kBackward});
    Linear({s.hidden, s.attention, false, Sum::kForward});
    const auto gelu = [&](ProductEpilogue epilogue) {
      // Where the library's GELU does not fit, the operations take a plain
      // product and a kernel of their own (GeluFits in kernels/cuda).
      const bool fits = !traits_.gated_mlp && !traits_.exact_gelu && format_ != Format::kFloat32 &&
                        s.ffn % kGeluColumns == 0;
      return fits ? epilogue : ProductEpilogue::kNone;
    };
    Linear(
        {s.up, s.hidden, layer.up_bias.elements > 0, Sum::kBackward, gelu(ProductEpilogue::kGelu)});
    Linear({s.hidden, s.ffn, false, Sum::kForward, ProductEpilogue::kNone,
            gelu(ProductEpilogue::kGeluGradient)});
    // The rows of an encoder's head are known only when the data is.
    if (s.last && s.causal) Head();
    return {shapes_.begin(), shapes_.end()};
  }

 private:
  void Add(ProductKind kind, int64_t m, int64_t n, int64_t k, ProductEpilogue epilogue, bool bias,
           bool accumulate) {
    // Weight gradients stay in fp32, since micro-batches and ranks are added up in them.
    const Format result = kind == ProductKind::kWeightGradient ? Format::kFloat32 : format_;
    shapes_.insert({kind, format_, result, m, n, k, epilogue, bias, accumulate, tf32_});
  }

  // Forward products have fast accumulation, gradients do not (LinearLayers).
  void AddScaled(ProductKind kind, Format result, int64_t m, int64_t n, int64_t k, bool bias,
                 bool accumulate) {
    const Format operands = kind == ProductKind::kScaledFast ? Format::kE4m3 : Format::kE5m2;
    shapes_.insert(
        {kind, operands, result, m, n, k, ProductEpilogue::kNone, bias, accumulate, false});
  }

  // y (rows x n) of x (rows x k), forward and backward. In one of the two directions the result is
  // summed over tensor ranks, in pieces; the bias after such a sum is added elsewhere.
  enum class Sum { kForward, kBackward };
  struct LinearLayer {
    int64_t n;
    int64_t k;
    bool bias;
    Sum summed;
    ProductEpilogue forward = ProductEpilogue::kNone;
    ProductEpilogue backward = ProductEpilogue::kNone;
  };
  void Linear(const LinearLayer& layer) {
    for (const plan::RowPiece& piece : Pieces(layer.summed == Sum::kForward)) {
      if (plan::TakesFp8(shape_, piece.count, layer.n, layer.k)) {
        AddScaled(ProductKind::kScaledFast, format_, piece.count, layer.n, layer.k, layer.bias,
                  false);
        continue;
      }
      Add(ProductKind::kForward, piece.count, layer.n, layer.k, layer.forward, layer.bias, false);
    }
    for (const plan::RowPiece& piece : Pieces(layer.summed == Sum::kBackward)) {
      if (plan::TakesFp8(shape_, piece.count, layer.n, layer.k)) {
        // The sum is over the last dimension of both factors, so n and k change places.
        AddScaled(ProductKind::kScaled, format_, piece.count, layer.k, layer.n, false, false);
        continue;
      }
      Add(ProductKind::kInputGradient, piece.count, layer.n, layer.k, layer.backward, false, false);
    }
    for (const auto& [rows, accumulate] : segments_) {
      if (plan::TakesFp8(shape_, rows, layer.n, layer.k)) {
        AddScaled(ProductKind::kScaled, Format::kFloat32, layer.n, layer.k, rows, false,
                  accumulate);
        continue;
      }
      Add(ProductKind::kWeightGradient, rows, layer.n, layer.k,
          layer.bias ? ProductEpilogue::kBiasGradient : ProductEpilogue::kNone, false, accumulate);
    }
  }
  std::vector<plan::RowPiece> Pieces(bool summed) const {
    // Only products that are summed over tensor ranks are cut, to run beside their sums.
    return plan::PiecesOfRows(shape_.rows, summed ? shape_.tensor_overlap : 1);
  }

  // In chunks of rows, as StageModel::ForChunks cuts them; evaluation cuts whole micro-batches.
  void Head() {
    const int64_t evaluated = shape_.tokens > shape_.chunk_rows ? shape_.tokens : shape_.rows;
    for (int64_t at = 0; at < evaluated; at += shape_.chunk_rows) {
      Add(ProductKind::kForward, std::min(shape_.chunk_rows, evaluated - at), shape_.vocabulary,
          shape_.hidden, ProductEpilogue::kNone, false, false);
    }
    for (const auto& [rows, accumulates] : segments_) {
      // A long sequence is cut by itself, so no chunk spans two.
      const int64_t run = shape_.tokens > shape_.chunk_rows ? shape_.tokens : rows;
      for (int64_t at = 0; at < run; at += shape_.chunk_rows) {
        const int64_t m = std::min(shape_.chunk_rows, run - at);
        Add(ProductKind::kForward, m, shape_.vocabulary, shape_.hidden, ProductEpilogue::kNone,
            false, false);
        Add(ProductKind::kInputGradient, m, shape_.vocabulary, shape_.hidden,
            ProductEpilogue::kNone, false, false);
        // The first chunk of a segment does as the segment does, later ones always add.
        for (const bool accumulate : {accumulates, accumulates || rows > m}) {
          Add(ProductKind::kWeightGradient, m, shape_.vocabulary, shape_.hidden,
              ProductEpilogue::kNone, false, accumulate);
        }
      }
    }
  }

  const plan::StageShape shape_;
  const plan::ModelTraits traits_;
  const Format format_;
  const bool tf32_;
  const StageWeights weights_;
  std::set<std::pair<int64_t, bool>> segments_;  // rows, and whether they add to what is there
  std::set<ProductShape> shapes_;
};

}  // namespace

std::vector<ProductShape> ProductShapes(const v1::JobSpec& job, const v1::RankPlan& plan) {
  return Shapes(job, plan).Get();
}

}  // namespace tercio::engine
