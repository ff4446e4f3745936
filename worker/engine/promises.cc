#include "worker/engine/promises.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/precision.h"

namespace tercio::engine {

kernels::Promises PromisesTo(const v1::JobSpec& job) {
  if (plan::OnGpu(job)) return {};
  return {.defined_products = true, .independent_rows = true, .leaf_sums = true};
}

absl::Status CheckPromises(const v1::JobSpec& job, const kernels::Promises& backend) {
  const kernels::Promises needed = PromisesTo(job);
  std::vector<std::string> missing;
  const auto check = [&missing](bool is_needed, bool is_made, const char* what) {
    if (is_needed && !is_made) missing.emplace_back(what);
  };
  check(needed.defined_products, backend.defined_products, "products of one definition");
  check(needed.independent_rows, backend.independent_rows, "rows that do not depend on others");
  check(needed.leaf_sums, backend.leaf_sums, "sums over rows in one order");
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "a job on CPUs has the same bits in every layout, but the backend that computes it does "
      "not promise ",
      absl::StrJoin(missing, ", "),
      ": train it with the CPU's backend, or set resources.device: cuda"));
}

}  // namespace tercio::engine
