#include "worker/agent/runs/data_preparer.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/utf8.h"
#include "data/data_cache.h"
#include "plan/distillation.h"

namespace tercio::agent {
namespace {

// Other nodes may take long to read their data: until the trainers
// open the entries, nothing else would keep these in the cache.
constexpr double kKeptSeconds = 600;
constexpr size_t kMostPathsNamed = 8;

// The files that the job has a node read, for messages.
std::string FilesOf(const v1::JobSpec& spec, bool from_start) {
  std::vector<std::string> files;
  const auto add = [&files](const char* key, const std::string& path) {
    if (!path.empty()) files.push_back(absl::StrCat(key, " ", path));
  };
  const v1::DataSpec& data = spec.data();
  add("data.train", data.train());
  add("data.validation", data.validation_path());
  for (const auto& [key, blend] : {std::pair{"data.train", &data.train_blend()},
                                   std::pair{"data.validation", &data.validation_blend()}}) {
    for (const v1::WeightedData& part : *blend) {
      for (const std::string& path : part.paths()) add(key, path);
    }
  }
  add("data.test", data.test_path());
  for (const std::string& path : data.test_more_paths()) add("data.test", path);
  add("data.tokenizer", data.tokenizer());
  if (from_start) add("model.from", spec.model().from());
  add("training.distillation.teacher", spec.training().distillation().teacher());
  // A blend may have thousands of files.
  if (files.size() > kMostPathsNamed) {
    const size_t more = files.size() - kMostPathsNamed;
    files.resize(kMostPathsNamed);
    files.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(files, ", ");
}

}  // namespace

bool DataPreparer::Begin(const v1::RunId& run) {
  MutexLock lock(mutex_);
  if (stopped_) return false;
  // The process object exists from now on, so that Cancel finds it before Prepare has begun.
  return under_way_
      .try_emplace({run.job_id(), run.attempt()},
                   std::make_shared<PreparationProcess>(options_.process))
      .second;
}

v1::PrepareRequest DataPreparer::RequestFor(const v1::PrepareData& request) const {
  v1::PrepareRequest made;
  *made.mutable_spec() = request.spec();
  made.set_from_start(request.from_start());
  made.set_cache_dir(options_.cache_dir);
  // The process opens the files, so it is the one that checks where they lie.
  made.set_any_path(options_.allowed.any());
  for (const std::string& root : options_.allowed.roots()) made.add_data_roots(root);
  return made;
}

std::optional<v1::AgentMessage> DataPreparer::Prepare(const v1::PrepareData& request) {
  const Key key = {request.run().job_id(), request.run().attempt()};
  std::shared_ptr<PreparationProcess> process;
  {
    MutexLock lock(mutex_);
    // Cancel may ask the process to end while this thread waits for it, so both share it.
    process = under_way_.at(key);
  }
  const absl::StatusOr<v1::PrepareAnswer> answer = process->Ask(RequestFor(request));
  std::optional<v1::AgentMessage> message;
  if (!absl::IsCancelled(answer.status())) {
    message.emplace();
    *message->mutable_data_prepared() = Take(request, answer);
  }
  MutexLock lock(mutex_);
  under_way_.erase(key);
  return message;
}

// The process still holds the entries of the cache that it has read.
v1::DataPrepared DataPreparer::Take(const v1::PrepareData& request,
                                    const absl::StatusOr<v1::PrepareAnswer>& answer) {
  v1::DataPrepared message;
  *message.mutable_run() = request.run();
  const std::string node = absl::StrCat("node ", options_.node, ": ");
  if (!answer.ok()) {
    message.set_error(absl::StrCat(node, "cannot read ",
                                   ForDisplay(FilesOf(request.spec(), request.from_start())), ": ",
                                   std::string(answer.status().message())));
    LogError(message.error(), {{"job", request.run().job_id()}});
    return message;
  }
  if (!answer->error().empty()) {
    message.set_error(node + answer->error());
    return message;
  }
  message.set_vocab_size(plan::VocabularyOf(request.spec(), answer->vocab_size()));
  message.set_train_tokens(answer->train_tokens());
  message.set_validation_tokens(answer->validation_tokens());
  message.set_train_samples(answer->train_samples());
  message.set_validation_samples(answer->validation_samples());
  message.set_test_samples(answer->test_samples());
  message.set_digest(answer->digest());
  // What the process prints is only kept for the case that it fails.
  for (const std::string& notice : answer->notices()) LogWarning(notice);
  Uses uses;
  for (const std::string& entry : answer->cache_entries()) {
    if (auto use = data::HoldCacheEntry(options_.cache_dir, entry)) uses.push_back(std::move(use));
  }
  MutexLock lock(mutex_);
  fresh_.insert(fresh_.end(), uses.begin(), uses.end());
  return message;
}

void DataPreparer::Cancel(const v1::RunId& run) {
  MutexLock lock(mutex_);
  const auto found = under_way_.find({run.job_id(), run.attempt()});
  if (found != under_way_.end()) found->second->Cancel();
}

void DataPreparer::CancelAll() {
  MutexLock lock(mutex_);
  // A preparation that began after this would not be cancelled.
  stopped_ = true;
  for (const auto& [key, process] : under_way_) process->Cancel();
}

void DataPreparer::Trim(double now) {
  {
    MutexLock lock(mutex_);
    std::erase_if(kept_, [now](const auto& kept) { return kept.first < now; });
    // All holds since the last call share one time.
    if (!fresh_.empty()) kept_.emplace_back(now + kKeptSeconds, std::exchange(fresh_, {}));
  }
  const int removed = data::TrimDataCache(options_.cache_dir, options_.most_cache_bytes);
  if (removed == 0) return;
  LogInfo(absl::StrCat("removed the ", removed, " least recently used entries of the data cache: ",
                       "it exceeded --data-cache-total"));
}

}  // namespace tercio::agent
