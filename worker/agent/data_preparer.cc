#include "worker/agent/data_preparer.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/weight_source.h"
#include "common/log.h"
#include "worker/data/data_cache.h"
#include "worker/data/prepared_data.h"

namespace tercio {
namespace {

constexpr double kKeptSeconds = 600;

}  // namespace

bool DataPreparer::Begin(const v1::RunId& run) {
  std::lock_guard<std::mutex> lock(mutex_);
  return under_way_.emplace(run.job_id(), run.attempt()).second;
}

v1::AgentMessage DataPreparer::Prepare(const v1::PrepareData& request) {
  v1::AgentMessage message;
  v1::DataPrepared* answer = message.mutable_data_prepared();
  *answer->mutable_run() = request.run();
  const v1::ModelSpec& model = request.spec().model();
  absl::Status status = options_.allowed.Check(request.spec());
  absl::StatusOr<data::PreparedData> prepared = data::PreparedData();
  if (status.ok()) {
    prepared = data::PrepareData(request.spec().data(), model, options_.cache_dir);
    status = prepared.status();
  }
  if (status.ok() && !model.from().empty() && request.from_start()) {
    status = checkpoint::CheckInitialWeights(model, prepared->vocab_size);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  under_way_.erase({request.run().job_id(), request.run().attempt()});
  if (!status.ok()) {
    answer->set_error(absl::StrCat("node ", options_.node, ": ", std::string(status.message())));
    return message;
  }
  // A model that begins with weights has the vocabulary of those, however few ids the data uses.
  answer->set_vocab_size(model.from().empty() ? prepared->vocab_size : model.vocab_size());
  answer->set_train_tokens(prepared->train_tokens);
  answer->set_validation_tokens(prepared->validation_tokens);
  answer->set_digest(prepared->digest);
  for (const std::string& notice : prepared->notices) LogWarning(notice);
  fresh_.insert(fresh_.end(), prepared->uses.begin(), prepared->uses.end());
  return message;
}

void DataPreparer::Trim(double now) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(kept_, [now](const auto& kept) { return kept.first < now; });
    if (!fresh_.empty()) kept_.emplace_back(now + kKeptSeconds, std::exchange(fresh_, {}));
  }
  const int removed = data::TrimDataCache(options_.cache_dir, options_.most_cache_bytes);
  if (removed == 0) return;
  LogInfo(absl::StrCat("removed the ", removed,
                       " entries of the data cache that were not used for ",
                       "the longest time: more than --data-cache-total"));
}

}  // namespace tercio
