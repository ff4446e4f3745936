// What a block needs on one tensor rank, declared once: its tensors, the values that its forward
// pass keeps for the backward pass, scratch, and products. Plans, the engine's buffers, FP8's slots
// and predictions of speed all follow from these. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/options.h"
#include "model/tensor.h"

namespace tercio::model {

// Rows of a field or of scratch: all of the micro-batch, those of the residual stream that this
// rank works on (a share of them with sequence parallelism), or all of the model's first stream.
enum class Rows { kAll, kLocal, kMemory };

// Until which level of recomputation a field is kept; above it, the backward pass makes it again.
enum class Kept { kAlways, kUnlessCheap, kUnlessFull };

struct Field {
  const char* name;
  Rows rows = Rows::kAll;
  int64_t width = 0;       // elements of a row, on this rank
  bool statistic = false;  // fp32 in every precision
  Kept kept = Kept::kAlways;
};

// A buffer whose contents are needed only while the block is computed. Blocks share those of equal
// name, which are as large as the largest needs.
struct Scratch {
  const char* name;
  Rows rows = Rows::kAll;
  int64_t width = 0;
};

// In which direction the results of a product are summed over tensor ranks: it is cut by the rows
// of its weight (backward) or by the columns (forward).
enum class Summed { kForward, kBackward };

// Outputs of a product that an adapter changes (AdapterOptions), on this rank. Its tensors are
// NAME.lora_a, and WEIGHT.lora_b of each of the weights that make up the outputs, which lie behind
// each other as one matrix; or WEIGHT.ia3, which lie behind each other as one vector.
struct AdaptedPart {
  std::string name;                  // "query", or of joined products "query_key_value"
  std::vector<std::string> weights;  // "query"
  int64_t first_output = 0;
  int64_t outputs = 0;
  uint32_t site = 0;  // of dropout, among those of adapters (kernels/random.h)
};

// y (rows x outputs) = x (rows x inputs) times a weight (outputs x inputs), sizes of this rank.
struct Product {
  int64_t outputs = 0;
  int64_t inputs = 0;
  bool bias = false;  // added by the product, not after the sum
  Summed summed = Summed::kForward;
  bool of_memory = false;  // its rows are those of the model's first stream
  // An activation without a gate follows the forward product, or precedes the gradient's.
  bool activates = false;
  bool activates_gradient = false;
  Activation activation = Activation::kGeluTanh;
  std::vector<AdaptedPart> adapted = {};
  // The block's field that holds A x of each of them, or y before it is scaled, one behind the
  // other: (rows x rank) or (rows x outputs) each. -1: there is none.
  int adapted_field = -1;
};

// A size of the model that tensor ranks divide among them, under its name in job files.
struct DividedSize {
  const char* key;
  int64_t size;
};

struct BlockDescription {
  std::vector<Tensor> tensors;  // names within the block: "query.weight"
  std::vector<Field> fields;
  std::vector<Scratch> scratch;
  std::vector<Product> products;  // the first reads x, the last makes the branch
  std::vector<DividedSize> divided;
  // Elements of a token's row that are multiplied with each key that it sees; and how many keys
  // these are at most, 0: all of the context.
  int64_t elements_per_key = 0;
  int64_t most_keys = 0;
  bool causal = false;        // a token sees only the keys up to itself
  bool reads_memory = false;  // the keys are the first stream's
};

// Names of the tensors of an adapter behind those of a part.
inline constexpr char kLoraA[] = ".lora_a";
inline constexpr char kLoraB[] = ".lora_b";
inline constexpr char kIa3[] = ".ia3";
inline bool IsOfAdapter(std::string_view tensor) {
  return tensor.ends_with(kLoraA) || tensor.ends_with(kLoraB) || tensor.ends_with(kIa3);
}

}  // namespace tercio::model
