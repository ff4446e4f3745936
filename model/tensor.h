// One matrix or vector of a model, as the block that owns it declares it. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace tercio::model {

enum class Cut { kWhole, kRows, kColumns };  // how tensor ranks cut the matrix view
// kUniform: within 1 / sqrt(columns) of zero on either side.
enum class Initialization { kZeros, kOnes, kNormal, kResidualNormal, kUniform };

// The matrix view of a vector of n elements is n rows x 1 column, so that kRows cuts it.
struct Tensor {
  std::string name;  // within what owns it, e.g. "attention.query.weight"
  int64_t rows = 0;  // logical, never padded
  int64_t columns = 1;
  bool is_vector = false;
  bool vocabulary = false;  // rows are token ids: padded where they are cut
  bool continues = false;   // lies right behind the tensor before it, as one matrix
  bool of_task = false;     // a model of another task may bring its own
  bool of_adapter = false;  // is trained beside the model, which is frozen
  // A whole tensor of which a tensor rank has the gradient of its own heads only.
  bool partial = false;
  // The full name of the tensor of the model whose value it has, which may be its own; empty: no
  // other tensor has its value. Each use of a tied tensor has a gradient of its own, and these are
  // added in the order of uses.
  std::string ties;
  Cut cut = Cut::kWhole;
  Initialization initialization = Initialization::kZeros;
};

Tensor Matrix(std::string name, int64_t rows, int64_t columns, Cut cut,
              Initialization initialization = Initialization::kNormal);
Tensor Vector(std::string name, int64_t size, Cut cut,
              Initialization initialization = Initialization::kZeros);

}  // namespace tercio::model
