#include "plan/gpu_figures.h"

#include "plan/precision.h"

namespace tercio::plan {
namespace {

struct Entry {
  std::string_view name;  // that the driver's name contains
  GpuFigures figures;
};

// The first that fits counts. Without sparsity.
constexpr Entry kGpus[] = {
    {"GB200", {2500e12, 1250e12, 80e12, 8e12, 900e9, 10}},
    {"B200", {2250e12, 1125e12, 80e12, 8e12, 900e9, 10}},
    // Longer names come before those that they contain.
    {"GH200 144G", {990e12, 494e12, 67e12, 4.9e12, 450e9, 9}},
    {"GH200", {990e12, 494e12, 67e12, 4e12, 450e9, 9}},
    {"H200 NVL", {835e12, 417e12, 60e12, 4.8e12, 450e9, 9}},
    {"H200", {989e12, 494e12, 67e12, 4.8e12, 450e9, 9}},
    {"H100 NVL", {835e12, 417e12, 60e12, 3.9e12, 300e9, 9}},
    {"H100 PCIe", {756e12, 378e12, 51e12, 2e12, 64e9, 9}},
    {"H100", {989e12, 494e12, 67e12, 3.35e12, 450e9, 9}},
    {"A100-SXM4-40GB", {312e12, 156e12, 19.5e12, 1.555e12, 300e9, 8}},
    {"A100-PCIE", {312e12, 156e12, 19.5e12, 1.94e12, 32e9, 8}},
    {"A100", {312e12, 156e12, 19.5e12, 2.04e12, 300e9, 8}},
    {"L40S", {362e12, 183e12, 91.6e12, 0.864e12, 32e9, 8}},
    {"V100", {125e12, 15.7e12, 15.7e12, 0.9e12, 150e9, 7}},
};

}  // namespace

std::optional<GpuFigures> FiguresOf(std::string_view model) {
  // The driver adds to the name ("NVIDIA H100 80GB HBM3"), so that parts of it are compared.
  for (const Entry& entry : kGpus) {
    if (model.find(entry.name) != std::string_view::npos) return entry.figures;
  }
  return std::nullopt;
}

double PeakFlops(const GpuFigures& figures, const v1::TrainingSpec& training) {
  // Sums are fp32 in every precision; the inputs decide the rate.
  if (FormatOf(training) != kernels::Format::kFloat32) return figures.flops_per_second;
  return training.tf32() ? figures.tf32_flops_per_second : figures.fp32_flops_per_second;
}

}  // namespace tercio::plan
