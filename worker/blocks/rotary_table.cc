#include "worker/blocks/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tercio::blocks {
namespace {

// The base of Su et al. 2021.
constexpr double kDefaultTheta = 10000;

// The blend between the two bounds is that of Llama 3.1's published code.
float Stretch(float frequency, const v1::RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double longest = scaling.original_context() / scaling.low_freq_factor();
  const double shortest = scaling.original_context() / scaling.high_freq_factor();
  if (wavelength < shortest) return frequency;
  if (wavelength > longest) return static_cast<float>(frequency / scaling.factor());
  const double smooth = (scaling.original_context() / wavelength - scaling.low_freq_factor()) /
                        (scaling.high_freq_factor() - scaling.low_freq_factor());
  return static_cast<float>((1 - smooth) * frequency / scaling.factor() + smooth * frequency);
}

}  // namespace

std::vector<float> RotaryTable(const v1::ModelSpec& model) {
  const int head_dim = model.head_dim() > 0 ? model.head_dim() : model.hidden() / model.heads();
  const int dimension = model.rotary_dim() > 0 ? model.rotary_dim() : head_dim;
  const double theta = model.rope_theta() > 0 ? model.rope_theta() : kDefaultTheta;
  const int positions = std::max(model.context(), model.decoder_context());
  std::vector<float> table(static_cast<size_t>(positions) * static_cast<size_t>(dimension));
  for (int i = 0; i < dimension / 2; ++i) {
    auto frequency = static_cast<float>(1.0 / std::pow(theta, 2.0 * i / dimension));
    if (model.has_rope_scaling()) frequency = Stretch(frequency, model.rope_scaling());
    for (int position = 0; position < positions; ++position) {
      // This is a product of floats on purpose: in double, late
      // positions would turn by other angles than in PyTorch.
      const float angle = static_cast<float>(position) * frequency;
      float* row = table.data() + static_cast<size_t>(position) * static_cast<size_t>(dimension);
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[dimension / 2 + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace tercio::blocks
