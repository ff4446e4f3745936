// Where the tensors of a stage lie in its flat buffers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/values.h"
#include "plan/model_tensors.h"

namespace tercio::blocks {

// A buffer of gradients that begins with those of element `first` of the stage.
struct Gradients {
  float* data = nullptr;
  int64_t first = 0;
};

// A run of elements in the parameter and gradient buffers. Absent (a bias of a model without
// biases): no elements.
struct WeightRef {
  int64_t parameter = 0;
  int64_t gradient = 0;
  int64_t elements = 0;
  bool frozen = false;  // without a gradient
  // Tensors of plan::StageTensors.quantized that it consists of, in the place of elements of the
  // buffer; -1: it is none of them. Products (products.h) find their values.
  int quantized = -1;
  int quantized_count = 0;

  bool is_quantized() const { return quantized >= 0; }
  kernels::ConstValues In(kernels::ConstValues parameters) const {
    return elements == 0 || is_quantized() ? nullptr : parameters + parameter;
  }
  bool has_gradient() const { return elements > 0 && !frozen; }
  float* GradientIn(const Gradients& gradients) const {
    return has_gradient() ? gradients.data + (gradient - gradients.first) : nullptr;
  }
};

// Finds tensors by their names behind a prefix. `tensors` must outlive it. Blocks ask once, when
// they are made.
class WeightFinder {
 public:
  explicit WeightFinder(const plan::StageTensors& tensors, std::string prefix = "")
      : tensors_(tensors), prefix_(std::move(prefix)) {}

  // For what lies below `name`: "attention" finds "attention.query.weight" as "query.weight".
  WeightFinder Under(const std::string& name) const {
    return WeightFinder(tensors_, prefix_ + name + ".");
  }

  // Empty where the model lacks the tensor.
  WeightRef Find(const std::string& name) const;
  // Whether any tensor has a gradient whose name is `name` or lies below it.
  bool FindsGradient(const std::string& name) const;
  // Tensors that follow each other without a gap, as one; those that the model lacks have no
  // elements.
  WeightRef Joined(std::initializer_list<const char*> names) const;
  // The table that tokens are looked up in, and the head's matrix to the vocabulary: where they are
  // tied, one tensor with two gradients.
  WeightRef TokenTable() const;
  WeightRef HeadMatrix() const;

 private:
  WeightRef FindUse(const std::string& name) const;

  const plan::StageTensors& tensors_;
  const std::string prefix_;
};

}  // namespace tercio::blocks
