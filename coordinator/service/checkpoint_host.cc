#include "coordinator/service/checkpoint_host.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "plan/model_tensors.h"
#include "plan/text_form.h"

namespace tercio::coordinator {
namespace {

// The same as a caller's patience in JobServiceImpl::SaveCheckpoint.
constexpr absl::Duration kDefaultTimeout = absl::Minutes(10);

class CoordinatorHost : public CheckpointHost {
 public:
  explicit CoordinatorHost(Coordinator& coordinator) : coordinator_(coordinator) {}

  checkpoint::Store& StoreOf(const std::string& job) override {
    return coordinator_.CheckpointsOf(job);
  }

  bool IsPresent(const v1::RunId& run, const std::string& token) const override {
    return coordinator_.IsPresent(run, token);
  }

  bool IsGivenUp(const v1::RunId& run, int64_t step) const override {
    return coordinator_.IsGivenUp(run, step);
  }

  absl::StatusOr<SaveTerms> TermsOf(const v1::RunId& run) const override {
    TERCIO_ASSIGN_OR_RETURN(const Coordinator::JobView view, coordinator_.View(run.job_id()));
    const v1::JobSpec& spec = view.record.spec();
    SaveTerms terms;
    // What a save must have comes from the record and the placement, never from its sender.
    terms.ranks = view.placement->ranks();
    const double timeout = spec.checkpoint().timeout_seconds();
    terms.timeout = timeout > 0 ? absl::Seconds(timeout) : kDefaultTimeout;
    terms.own_files = !spec.checkpoint().path().empty();
    google::protobuf::util::JsonPrintOptions options;
    // The file is read by people and by other versions:
    // names as in the job file, no defaults left out.
    options.preserve_proto_field_names = true;
    options.always_print_primitive_fields = true;
    TERCIO_ASSIGN_OR_RETURN(terms.model_json, plan::ToJson(spec.model(), options));
    return terms;
  }

  // What a checkpoint has in the place of the values of a quantised tensor.
  static absl::Status CheckCodes(const plan::LogicalTensor& tensor,
                                 const std::map<std::string, const std::vector<int64_t>*>& shapes) {
    for (const char* prefix : {plan::kBaseCodes, plan::kBaseScales, plan::kBaseGroups}) {
      const std::string name = absl::StrCat(prefix, tensor.name);
      if (shapes.contains(name)) continue;
      return absl::DataLossError(absl::StrCat("the ranks' parts together lack tensor ", name));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWhole(const std::string& job,
                          const std::vector<checkpoint::Manifest>& parts) const override {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord record, coordinator_.Find(job));
    // Ranks cut tensors, but every part names the whole tensor's shape.
    std::map<std::string, const std::vector<int64_t>*> shapes;
    for (const checkpoint::Manifest& part : parts) {
      for (const auto& [name, tensor] : part.tensors) shapes[name] = &tensor.shape;
    }
    const std::vector<bool> with_moments = plan::TensorsWithGradients(record.spec());
    const std::vector<bool> quantized = plan::TensorsQuantized(record.spec());
    for (const plan::LogicalTensor& tensor : plan::ModelTensors(record.spec().model())) {
      // Vectors have one dimension in the files, as other libraries write them.
      std::vector<int64_t> shape = {tensor.rows};
      if (!tensor.is_vector) shape.push_back(tensor.columns);
      if (quantized[static_cast<size_t>(tensor.index)]) {
        TERCIO_RETURN_IF_ERROR(CheckCodes(tensor, shapes));
        continue;
      }
      // Both moments of AdamW belong to the state: without them a run would not be bit-identical.
      for (const char* prefix : {"", "adamw.m.", "adamw.v."}) {
        if (*prefix != 0 && !with_moments[static_cast<size_t>(tensor.index)]) continue;
        const std::string name = absl::StrCat(prefix, tensor.name);
        const auto found = shapes.find(name);
        if (found != shapes.end() && *found->second == shape) continue;
        return absl::DataLossError(absl::StrCat(
            "the ranks' parts together ",
            found == shapes.end() ? "lack tensor " : "have a different shape for tensor ", name));
      }
    }
    return absl::OkStatus();
  }

  bool HasCommitted(const v1::RunId& run, int64_t step) const override {
    const absl::StatusOr<v1::JobRecord> record = coordinator_.Find(run.job_id());
    // Attempt and step must both match: another attempt may have saved the same step.
    return record.ok() && record->checkpoint_step() == step &&
           record->checkpoint_attempt() == run.attempt();
  }

  absl::Status Record(StepsDone steps) override { return coordinator_.Ask(std::move(steps)); }

  absl::Status Record(CheckpointCommitted committed) override {
    absl::Status recorded = coordinator_.Ask(committed);
    // UNAVAILABLE means that the coordinator is stopping: nothing that is queued now is kept.
    if (recorded.ok() || absl::IsUnavailable(recorded)) return recorded;
    // The checkpoint is on its disk: the job does not wait for the store as well.
    coordinator_.Post(std::move(committed));
    return absl::OkStatus();
  }

  void Notify(CheckpointCommitted committed) override { coordinator_.Post(std::move(committed)); }
  void Notify(CheckpointFailed failed) override { coordinator_.Post(std::move(failed)); }

 private:
  Coordinator& coordinator_;
};

}  // namespace

std::unique_ptr<CheckpointHost> HostOf(Coordinator& coordinator) {
  return std::make_unique<CoordinatorHost>(coordinator);
}

}  // namespace tercio::coordinator
