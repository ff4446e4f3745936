#include "model/tensor.h"

#include <utility>

namespace tercio::model {

Tensor Matrix(std::string name, int64_t rows, int64_t columns, Cut cut,
              Initialization initialization) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.rows = rows;
  tensor.columns = columns;
  tensor.cut = cut;
  tensor.initialization = initialization;
  return tensor;
}

Tensor Vector(std::string name, int64_t size, Cut cut, Initialization initialization) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.rows = size;
  tensor.is_vector = true;
  tensor.cut = cut;
  tensor.initialization = initialization;
  return tensor;
}

}  // namespace tercio::model
