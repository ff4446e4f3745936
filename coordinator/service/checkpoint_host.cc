#include "coordinator/service/checkpoint_host.h"

#include <utility>

#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::coordinator {
namespace {

class CoordinatorHost : public CheckpointHost {
 public:
  explicit CoordinatorHost(Coordinator& coordinator) : coordinator_(coordinator) {}

  checkpoint::Store& store() override { return coordinator_.checkpoints(); }

  bool IsPresent(const v1::RunId& run, const std::string& token) const override {
    return coordinator_.IsPresent(run, token);
  }

  absl::StatusOr<std::string> ModelOf(const std::string& job) const override {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord record, coordinator_.Find(job));
    std::string model;
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    options.always_print_primitive_fields = true;
    if (!google::protobuf::util::MessageToJsonString(record.spec().model(), &model, options).ok()) {
      return absl::InternalError("cannot write the model as JSON");
    }
    return model;
  }

  absl::Status Record(StepsDone steps) override { return coordinator_.Ask(std::move(steps)); }

  absl::Status Record(CheckpointCommitted committed) override {
    absl::Status recorded = coordinator_.Ask(committed);
    if (recorded.ok() || absl::IsUnavailable(recorded)) return recorded;
    // The checkpoint is on its disk, which holds the job up no longer than needed.
    coordinator_.Post(std::move(committed));
    return absl::OkStatus();
  }

  void Tell(CheckpointCommitted committed) override { coordinator_.Post(std::move(committed)); }
  void Tell(CheckpointFailed failed) override { coordinator_.Post(std::move(failed)); }

 private:
  Coordinator& coordinator_;
};

}  // namespace

std::unique_ptr<CheckpointHost> HostOf(Coordinator& coordinator) {
  return std::make_unique<CoordinatorHost>(coordinator);
}

}  // namespace tercio::coordinator
