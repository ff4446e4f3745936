#include "plan/teacher_memory.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "plan/device_memory.h"
#include "plan/distillation.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/stage_layers.h"
#include "plan/stage_units.h"

namespace tercio::plan {
namespace {

// A forward pass uses these, beside the weights. Tokens are the student's.
constexpr std::array<std::string_view, 10> kForwardBuffers = {
    "activations.0",       "activations.shared", "workspace.branch",  "workspace.gathered",
    "workspace.local_sum", "workspace.rotary",   "workspace.buckets", "head.rows",
    "head.logits",         "tensor_scratch"};

// Scratch of single operations, which is one for both models.
constexpr std::array<std::string_view, 2> kSharedBuffers = {"workspace.device",
                                                            "workspace.attention"};

bool IsShared(const v1::Buffer& buffer) {
  return std::find(kSharedBuffers.begin(), kSharedBuffers.end(), buffer.name()) !=
         kSharedBuffers.end();
}

bool IsUsed(const v1::Buffer& buffer) {
  return buffer.kind() == v1::BUFFER_KIND_PARAMETER ||
         std::find(kForwardBuffers.begin(), kForwardBuffers.end(), buffer.name()) !=
             kForwardBuffers.end();
}

}  // namespace

v1::RankPlan TeacherPlan(const v1::JobSpec& job, const v1::RankPlan& plan) {
  v1::RankPlan teacher = plan;
  *teacher.mutable_layout() = TeacherLayout(job, plan.layout());
  *teacher.mutable_model() = TeacherJob(job).model();
  v1::StagePlan& stage = *teacher.mutable_stage();
  const v1::MemoryTable whole = stage.memory();
  stage.Clear();
  const std::vector<int> layers = LayersOfStage(model::LayersOf(teacher.model()), teacher.layout(),
                                                plan.placement().pipeline_index());
  stage.mutable_layers()->Add(layers.begin(), layers.end());
  stage.set_activation_slots(1);
  v1::MemoryTable& table = *stage.mutable_memory();
  table = whole;
  table.clear_buffers();
  for (const v1::Buffer& buffer : whole.buffers()) {
    const bool own = absl::StartsWith(buffer.name(), kTeacherPrefix);
    if (!own && !IsShared(buffer)) continue;
    v1::Buffer* added = table.add_buffers();
    *added = buffer;
    if (own) added->set_name(buffer.name().substr(std::string_view(kTeacherPrefix).size()));
  }
  return teacher;
}

void AddTeacher(const v1::JobSpec& job, const v1::Layout& layout, int stage, int threads,
                TableBuilder* table) {
  if (!HasTeacher(job.training())) return;
  const v1::JobSpec teacher = TeacherJob(job);
  const v1::Layout of_teacher = TeacherLayout(job, layout);
  const auto add = [&](const std::string& name, v1::BufferKind kind, int64_t bytes) {
    table->Add(absl::StrCat(kTeacherPrefix, name), kind, bytes);
  };
  const v1::MemoryTable own = MemoryOfStage(teacher, of_teacher, stage, threads);
  for (const v1::Buffer& buffer : own.buffers()) {
    if (IsShared(buffer)) continue;
    add(buffer.name(), buffer.kind(), IsUsed(buffer) ? buffer.size_bytes() : 0);
  }
  const StageShape shape = ShapeOfStage(teacher, of_teacher, stage);
  add(kTeacherOutputs, v1::BUFFER_KIND_ACTIVATION,
      shape.last ? of_teacher.micro_batches() * shape.head_stream().rows * shape.hidden *
                       shape.precision.bytes()
                 : 0);
}

TeacherScratch TeacherScratchOf(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                                int threads) {
  if (!HasTeacher(job.training())) return {};
  const v1::JobSpec teacher = TeacherJob(job);
  const v1::Layout of_teacher = TeacherLayout(job, layout);
  const StageShape shape = ShapeOfStage(teacher, of_teacher, stage);
  const StageUnits units = UnitsOfStage(teacher.model(), of_teacher, stage);
  const std::unique_ptr<DeviceMemory> device = DeviceMemoryOf(teacher);
  return {
      .device_bytes = device->Workspace(shape, units, TensorsOfStage(teacher, of_teacher, stage)),
      .attention_floats = device->AttentionScratch(shape, units, threads)};
}

}  // namespace tercio::plan
