// Which algorithms multiply a job's matrices: chosen once, by its first attempt, and kept.
#include "coordinator/core/stepper.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

bool HasProducts(const v1::Plan& plan) {
  for (const v1::StagePlan& stage : plan.stages()) {
    if (stage.products().algorithms_size() > 0) return true;
  }
  return false;
}

// Whether the ranks of both multiply matrices of the same shapes.
bool MultiplyAlike(const v1::JobSpec& a, const v1::Plan& plan_a, const v1::JobSpec& b,
                   const v1::Plan& plan_b) {
  return a.training().precision() == b.training().precision() &&
         a.training().tf32() == b.training().tf32() && a.training().fp8() == b.training().fp8() &&
         plan_a.lanes() == plan_b.lanes() &&
         plan_a.padded_vocabulary() == plan_b.padded_vocabulary() &&
         plan::DivideAlike(plan_a.layout(), plan_b.layout()) &&
         plan_a.model().SerializeAsString() == plan_b.model().SerializeAsString();
}

}  // namespace

// Takes those of the previous attempt, or of the last job like it, so that runs are bit-identical.
void Stepper::TakeProducts(const JobState& job, v1::Plan& plan) const {
  if (job.record.spec().resources().device() != v1::DEVICE_KIND_CUDA) return;
  const JobState* from = nullptr;
  for (const auto& [id, other] : state_.jobs) {
    if (other.plan == nullptr || !HasProducts(*other.plan) ||
        !MultiplyAlike(other.record.spec(), *other.plan, job.record.spec(), plan)) {
      continue;
    }
    if (id == job.record.id()) {
      from = &other;
      break;
    }
    if (from == nullptr || from->record.number() < other.record.number()) from = &other;
  }
  if (from == nullptr) return;
  for (int stage = 0; stage < plan.stages_size(); ++stage) {
    *plan.mutable_stages(stage)->mutable_products() = from->plan->stages(stage).products();
  }
}

// Ranks choose only what their plan does not have, and nothing that is chosen changes.
void Stepper::OnProductsChosen(JobState& job, const v1::ProductsChosen& chosen) {
  if (job.plan == nullptr || chosen.stage() < 0 || chosen.stage() >= job.plan->stages_size()) {
    return;
  }
  auto plan = std::make_shared<v1::Plan>(*job.plan);
  v1::ProductTable& products = *plan->mutable_stages(chosen.stage())->mutable_products();
  // A table of another GPU or library is replaced as a whole: algorithms of
  // both in one table would not name one way to multiply.
  const v1::ProductTable& news = chosen.products();
  if (products.gpu() == news.gpu() && products.library() == news.library()) {
    products.mutable_algorithms()->MergeFrom(news.algorithms());
  } else {
    products = news;
  }
  job.plan = std::move(plan);
  effects_.changed_plans.insert(job.record.id());
}

}  // namespace tercio::coordinator
