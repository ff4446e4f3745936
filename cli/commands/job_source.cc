#include "cli/commands/job_source.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/client.h"
#include "cli/format.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

template <typename Message, typename Reader, typename Take>
absl::Status ReadAll(Client& client, Reader reader, const Take& take) {
  Message message;
  while (reader->Read(&message)) take(message);
  return CallStatus(reader->Finish(), client);
}

absl::StatusOr<std::vector<v1::StepRecord>> StepsOf(Client& client, const std::string& id,
                                                    bool all_attempts) {
  grpc::ClientContext context;
  v1::HistoryRequest request;
  request.set_job(id);
  // All attempts are needed only to know what was repeated.
  request.set_all_attempts(all_attempts);
  std::vector<v1::StepRecord> steps;
  TERCIO_RETURN_IF_ERROR(
      ReadAll<v1::StepRecord>(client, client.stub().History(&context, request),
                              [&](v1::StepRecord& step) { steps.push_back(std::move(step)); }));
  return steps;
}

// Steps that a later attempt has repeated.
absl::Status GatherLostSteps(Client& client, report::JobData* job) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<v1::StepRecord> all, StepsOf(client, job->status.id(), true));
  // Step and attempt together name a record.
  std::set<std::pair<int64_t, int32_t>> counting;
  for (const v1::StepRecord& step : job->steps) counting.emplace(step.step(), step.attempt());
  // A running job has completed more steps meanwhile: those are not lost.
  const int64_t known = job->steps.empty() ? 0 : job->steps.back().step();
  const int32_t attempt = job->steps.empty() ? 0 : job->steps.back().attempt();
  for (v1::StepRecord& step : all) {
    if (counting.contains({step.step(), step.attempt()})) continue;
    if (step.step() > known && step.attempt() >= attempt) continue;
    job->lost_steps.push_back(std::move(step));
  }
  // The order within an attempt stays that of the steps.
  std::stable_sort(job->lost_steps.begin(), job->lost_steps.end(),
                   [](const auto& a, const auto& b) { return a.attempt() < b.attempt(); });
  return absl::OkStatus();
}

absl::Status GatherSurroundings(Client& client, report::JobData* job) {
  const std::string& id = job->status.id();
  grpc::ClientContext events;
  v1::EventsRequest events_request;
  events_request.set_job(id);
  TERCIO_RETURN_IF_ERROR(
      ReadAll<v1::JobEvent>(client, client.stub().Events(&events, events_request),
                            [&](v1::JobEvent& event) { job->events.push_back(std::move(event)); }));
  TERCIO_ASSIGN_OR_RETURN(job->checkpoints, client.Checkpoints(id));
  grpc::ClientContext nodes;
  v1::NodesResponse cluster;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Nodes(&nodes, {}, &cluster), client));
  std::set<std::string> used;
  // Nodes that never ran the job explain nothing in its report.
  for (const v1::RankPlacement& rank : job->status.plan().ranks()) used.insert(rank.node());
  for (const v1::Node& node : cluster.nodes()) {
    if (used.contains(node.name())) job->nodes.push_back(node);
  }
  grpc::ClientContext version;
  v1::VersionResponse told;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Version(&version, {}, &told), client));
  job->version = told.version();
  job->commit = told.commit();
  return absl::OkStatus();
}

absl::StatusOr<report::JobData> FromCoordinator(Client& client, const std::string& name,
                                                GatheredData data) {
  report::JobData job;
  grpc::ClientContext context;
  v1::GetRequest request;
  request.set_job(name);
  request.set_ranks(data == GatheredData::kAll);
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Get(&context, request, &job.status), client));
  TERCIO_ASSIGN_OR_RETURN(job.steps, StepsOf(client, job.status.id(), false));
  if (data == GatheredData::kAll) {
    // A first attempt has repeated nothing, and its history may be long.
    if (job.status.attempt() > 1) TERCIO_RETURN_IF_ERROR(GatherLostSteps(client, &job));
    TERCIO_RETURN_IF_ERROR(GatherSurroundings(client, &job));
  }
  return job;
}

absl::StatusOr<report::JobData> FromFile(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  report::JobData job;
  job.from_file = true;
  const size_t slash = path.rfind('/');
  // The name of the file is the only name that its job has.
  job.label = path.substr(slash == std::string::npos ? 0 : slash + 1);
  job.label.resize(job.label.size() - std::string(".jsonl").size());
  TERCIO_ASSIGN_OR_RETURN(job.steps, ParseHistory(text, path));
  return job;
}

}  // namespace

absl::StatusOr<std::vector<v1::StepRecord>> ParseHistory(const std::string& text,
                                                         const std::string& name) {
  std::vector<v1::StepRecord> steps;
  int number = 0;
  // Lines are parsed one by one, so that a fault has a number.
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    ++number;
    // The last line ends with a line break.
    if (line.empty()) continue;
    std::optional<v1::StepRecord> step =
        StepFromJson(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    if (!step.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ":", number,
          ": not a line of `tercio history JOB -o jsonl` (an object with a step above 0)"));
    }
    steps.push_back(*std::move(step));
  }
  // With --all-attempts a step may have several lines: that of the last attempt counts.
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.step(), a.attempt()) < std::make_pair(b.step(), b.attempt());
  });
  std::vector<v1::StepRecord> counting;
  for (v1::StepRecord& step : steps) {
    // The list is sorted, so that the attempt that counts comes last.
    if (!counting.empty() && counting.back().step() == step.step()) counting.pop_back();
    counting.push_back(std::move(step));
  }
  return counting;
}

absl::StatusOr<report::JobData> GatherJob(Client& client, const std::string& name) {
  TERCIO_ASSIGN_OR_RETURN(report::JobData job, FromCoordinator(client, name, GatheredData::kAll));
  job.label = job.status.name();
  return job;
}

absl::StatusOr<std::vector<report::JobData>> GatherJobs(const GlobalOptions& options,
                                                        const std::vector<std::string>& names,
                                                        GatheredData data) {
  std::unique_ptr<Client> client;
  std::vector<report::JobData> jobs;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".jsonl")) {
      if (data == GatheredData::kAll) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": a file holds steps only; name jobs, or use `tercio plot`"));
      }
      TERCIO_ASSIGN_OR_RETURN(report::JobData job, FromFile(name));
      jobs.push_back(std::move(job));
      continue;
    }
    // The connection is made for the first job: files alone need none.
    if (client == nullptr) {
      TERCIO_ASSIGN_OR_RETURN(client, Client::Connect(options));
    }
    TERCIO_ASSIGN_OR_RETURN(report::JobData job, FromCoordinator(*client, name, data));
    jobs.push_back(std::move(job));
  }
  // Labels depend on all jobs: equal names need their ids.
  report::LabelJobs(&jobs);
  return jobs;
}

}  // namespace tercio::cli
