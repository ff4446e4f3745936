#include "worker/engine/product_shapes.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "plan/distillation.h"
#include "plan/fp8.h"
#include "plan/lanes.h"
#include "plan/precision.h"
#include "plan/stage_units.h"
#include "plan/teacher_memory.h"

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
        format_(shape_.precision.format),
        // TF32 is a way to multiply fp32 factors, so jobs in 16 bits have no such algorithms.
        tf32_(job.training().tf32() && format_ == Format::kFloat32),
        units_(plan::UnitsOfStage(job.model(), plan.layout(), plan.placement().pipeline_index())) {
    // A weight gradient is one product per segment of a lane, and adds unless it starts the lane.
    const int lanes = plan::LanesPerDataRank(plan.lanes(), plan.layout().data());
    for (int i = 0; i < plan.layout().micro_batches(); ++i) {
      for (const plan::LaneSegment& segment : plan::SegmentsOfMicroBatch(
               i, plan.layout().micro_batch(), shape_.sequences_per_rank, lanes)) {
        segments_.insert({segment.sequences, !segment.starts_lane});
      }
    }
  }

  std::vector<ProductShape> Get() {
    for (size_t kind = 0; kind < units_.kinds.size(); ++kind) {
      Layer(units_.architecture.kinds[kind], units_.kinds[kind]);
    }
    // The rows of an encoder's head are known only when the data is.
    if (shape_.last && units_.architecture.head.language.has_value()) Head();
    return {shapes_.begin(), shapes_.end()};
  }

 private:
  void Add(ProductKind kind, int64_t m, int64_t n, int64_t k, ProductEpilogue epilogue, bool bias,
           bool accumulate) {
    // Weight gradients stay in fp32, since micro-batches and ranks are added up in them.
    const Format result = kind == ProductKind::kWeightGradient ? Format::kFloat32 : format_;
    shapes_.insert({kind, format_, result, m, n, k, epilogue, bias, accumulate, tf32_});
  }

  // Forward products have fast accumulation, gradients do not (blocks::Products).
  void AddScaled(ProductKind kind, Format result, int64_t m, int64_t n, int64_t k, bool bias,
                 bool accumulate) {
    const Format operands = kind == ProductKind::kScaledFast ? Format::kE4m3 : Format::kE5m2;
    shapes_.insert(
        {kind, operands, result, m, n, k, ProductEpilogue::kNone, bias, accumulate, false});
  }

  void Layer(const model::Layer& layer, const model::LayerDescription& description) {
    std::set<int> added;  // products whose input gradient is added to another branch's
    for (size_t i = 0; i < layer.sublayers.size(); ++i) {
      const std::vector<model::Branch>& branches = layer.sublayers[i].branches;
      for (size_t j = 0; j + 1 < branches.size(); ++j) {
        if (branches[j + 1].norm.has_value()) continue;
        added.insert(description.sublayers[i].branches[j].first_product);
      }
    }
    for (size_t i = 0; i < description.products.size(); ++i) {
      const int stream = description.products[i].of_memory ? 0 : description.stream;
      Linear(description.products[i], shape_.stream(stream), added.contains(static_cast<int>(i)));
      Adapters(description.products[i], OptionsOf(layer, static_cast<int>(i), description),
               shape_.stream(stream));
    }
  }

  // Those of the block that a layer's product belongs to.
  static model::AdapterOptions OptionsOf(const model::Layer& layer, int product,
                                         const model::LayerDescription& description) {
    model::AdapterOptions options;
    for (size_t i = 0; i < layer.sublayers.size(); ++i) {
      const std::vector<model::Branch>& branches = layer.sublayers[i].branches;
      for (size_t j = 0; j < branches.size(); ++j) {
        if (description.sublayers[i].branches[j].first_product > product) return options;
        options = std::visit([](const auto& block) { return block.adapters; }, branches[j].block);
      }
    }
    return options;
  }

  // blocks::Adapters: A x and B (A x) of each part, and their gradients.
  void Adapters(const model::Product& product, const model::AdapterOptions& options,
                const plan::StreamShape& stream) {
    if (options.kind != model::AdapterKind::kLowRank) return;
    const int64_t rank = options.rank;
    for (const model::AdaptedPart& part : product.adapted) {
      const bool whole = part.outputs == product.outputs;
      for (const plan::RowPiece& piece :
           Pieces(stream, product.summed == model::Summed::kForward)) {
        Add(ProductKind::kForward, piece.count, rank, product.inputs, ProductEpilogue::kNone, false,
            false);
        Add(ProductKind::kForward, piece.count, part.outputs, rank, ProductEpilogue::kNone, false,
            whole);
      }
      Add(ProductKind::kInputGradient, stream.rows, part.outputs, rank, ProductEpilogue::kNone,
          false, false);
      for (const plan::RowPiece& piece : Pieces(stream, SumsInPieces(product))) {
        Add(ProductKind::kInputGradient, piece.count, rank, product.inputs, ProductEpilogue::kNone,
            false, options.dropout == 0);
      }
      for (const auto& [sequences, accumulate] : segments_) {
        const int64_t rows = sequences * stream.tokens;
        Add(ProductKind::kWeightGradient, rows, rank, product.inputs, ProductEpilogue::kNone, false,
            accumulate);
        Add(ProductKind::kWeightGradient, rows, part.outputs, rank, ProductEpilogue::kNone, false,
            accumulate);
      }
    }
  }

  ProductEpilogue EpilogueOf(bool activates, const model::Product& product, int64_t columns,
                             ProductEpilogue epilogue) const {
    // An adapter changes what the activation reads, or its gradient.
    if (!product.adapted.empty()) return ProductEpilogue::kNone;
    // Where the library's GELU does not fit, the operations take a plain
    // product and a kernel of their own (GeluFits in kernels/cuda).
    const bool fits = activates && product.activation == model::Activation::kGeluTanh &&
                      format_ != Format::kFloat32 && columns % kGeluColumns == 0;
    return fits ? epilogue : ProductEpilogue::kNone;
  }

  // Forward and backward. In one of the two directions the result is summed over tensor ranks, in
  // pieces; the bias after such a sum is added elsewhere.
  void Linear(const model::Product& product, const plan::StreamShape& stream,
              bool adds_input_gradient) {
    const int64_t n = product.outputs;
    const int64_t k = product.inputs;
    const ProductEpilogue forward =
        EpilogueOf(product.activates, product, n, ProductEpilogue::kGelu);
    const ProductEpilogue backward =
        EpilogueOf(product.activates_gradient, product, k, ProductEpilogue::kGeluGradient);
    for (const plan::RowPiece& piece : Pieces(stream, product.summed == model::Summed::kForward)) {
      if (plan::TakesFp8(shape_, piece.count, n, k)) {
        AddScaled(ProductKind::kScaledFast, format_, piece.count, n, k, product.bias, false);
        continue;
      }
      Add(ProductKind::kForward, piece.count, n, k, forward, product.bias, false);
    }
    for (const plan::RowPiece& piece : Pieces(stream, SumsInPieces(product))) {
      if (plan::TakesFp8(shape_, piece.count, n, k)) {
        // The sum is over the last dimension of both factors, so n and k change places.
        AddScaled(ProductKind::kScaled, format_, piece.count, k, n, false, adds_input_gradient);
        continue;
      }
      Add(ProductKind::kInputGradient, piece.count, n, k, backward, false, adds_input_gradient);
    }
    if (TrainsTheModel()) WeightGradients(product, stream);
  }

  // Weights below adapters have no gradients, but for those that the job names.
  bool TrainsTheModel() const {
    return !units_.architecture.adapted || !units_.architecture.trained.empty();
  }

  void WeightGradients(const model::Product& product, const plan::StreamShape& stream) {
    const int64_t n = product.outputs;
    const int64_t k = product.inputs;
    for (const auto& [sequences, accumulate] : segments_) {
      const int64_t rows = sequences * stream.tokens;
      if (plan::TakesFp8(shape_, rows, n, k)) {
        AddScaled(ProductKind::kScaled, Format::kFloat32, n, k, rows, false, accumulate);
        continue;
      }
      Add(ProductKind::kWeightGradient, rows, n, k,
          product.bias ? ProductEpilogue::kBiasGradient : ProductEpilogue::kNone, false,
          accumulate);
    }
  }
  // Input gradients of the first stream's rows are added up whole.
  static bool SumsInPieces(const model::Product& product) {
    return product.summed == model::Summed::kBackward && !product.of_memory;
  }
  std::vector<plan::RowPiece> Pieces(const plan::StreamShape& stream, bool summed) const {
    // Only products that are summed over tensor ranks are cut, to run beside their sums.
    return plan::PiecesOfRows(stream.rows, summed ? shape_.tensor_overlap : 1);
  }

  // In chunks of rows, as blocks::LanguageHead cuts them; evaluation cuts whole micro-batches.
  void Head() {
    const bool bias = units_.architecture.head.language->bias;
    const plan::StreamShape& stream = shape_.head_stream();
    const int64_t evaluated = stream.tokens > shape_.chunk_rows ? stream.tokens : stream.rows;
    for (int64_t at = 0; at < evaluated; at += shape_.chunk_rows) {
      Add(ProductKind::kForward, std::min(shape_.chunk_rows, evaluated - at), shape_.vocabulary,
          shape_.hidden, ProductEpilogue::kNone, bias, false);
    }
    for (const auto& [sequences, accumulates] : segments_) {
      const int64_t rows = sequences * stream.tokens;
      // A long sequence is cut by itself, so no chunk spans two.
      const int64_t run = stream.tokens > shape_.chunk_rows ? stream.tokens : rows;
      for (int64_t at = 0; at < run; at += shape_.chunk_rows) {
        const int64_t m = std::min(shape_.chunk_rows, run - at);
        Add(ProductKind::kForward, m, shape_.vocabulary, shape_.hidden, ProductEpilogue::kNone,
            bias, false);
        Add(ProductKind::kInputGradient, m, shape_.vocabulary, shape_.hidden,
            ProductEpilogue::kNone, false, false);
        if (!TrainsTheModel()) continue;
        // The first chunk of a segment does as the segment does, later ones always add.
        for (const bool accumulate : {accumulates, accumulates || rows > m}) {
          Add(ProductKind::kWeightGradient, m, shape_.vocabulary, shape_.hidden,
              bias ? ProductEpilogue::kBiasGradient : ProductEpilogue::kNone, false, accumulate);
        }
      }
    }
  }

  const plan::StageShape shape_;
  const Format format_;
  const bool tf32_;
  const plan::StageUnits units_;
  std::set<std::pair<int64_t, bool>> segments_;  // sequences, and whether they add to what is there
  std::set<ProductShape> shapes_;
};

}  // namespace

std::vector<ProductShape> ProductShapes(const v1::JobSpec& job, const v1::RankPlan& plan) {
  std::vector<ProductShape> shapes = Shapes(job, plan).Get();
  if (!plan::HasTeacher(job.training())) return shapes;
  std::set<ProductShape> all(shapes.begin(), shapes.end());
  for (const ProductShape& shape :
       Shapes(plan::TeacherJob(job), plan::TeacherPlan(job, plan)).Get()) {
    // Only its forward pass runs.
    if (shape.kind == ProductKind::kForward) all.insert(shape);
  }
  return {all.begin(), all.end()};
}

}  // namespace tercio::engine
