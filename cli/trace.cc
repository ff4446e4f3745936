#include "cli/trace.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"
#include "plan/planner/cost/pipeline_time.h"
#include "plan/schedule.h"
#include "plan/stage_layers.h"

namespace tercio::cli {
namespace {

using Json = nlohmann::ordered_json;

// The bubble is about computing only; messages overlap with it.
bool IsWork(const v1::TraceEvent& event) {
  return event.name() == "forward" || event.name() == "backward";
}

// The trace begins at zero, whatever clock the ranks have.
double Earliest(const std::vector<v1::RankTrace>& traces) {
  double first = std::numeric_limits<double>::max();
  for (const v1::RankTrace& trace : traces) {
    for (const v1::TraceEvent& event : trace.events())
      first = std::min(first, event.start_seconds());
  }
  return first;
}

Json Label(const char* kind, int rank, int thread, const std::string& name) {
  // The keys are those of Chrome's trace event format; M stands for metadata.
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

std::string TraceJson(const std::vector<v1::RankTrace>& traces, const v1::Plan& plan) {
  Json events = Json::array();
  const double first = Earliest(traces);
  for (const v1::RankTrace& trace : traces) {
    const int rank = trace.rank();
    std::string name = absl::StrCat("rank ", rank);
    // The plan that is shown may be of another attempt than the trace.
    if (rank < plan.ranks_size()) {
      absl::StrAppend(&name, " (stage ", plan.ranks(rank).pipeline_index(), ", data ",
                      plan.ranks(rank).data_index(), ", tensor ", plan.ranks(rank).tensor_index(),
                      ")");
    }
    events.push_back(Label("process_name", rank, 0, name));
    events.push_back(Label("thread_name", rank, 0, "compute"));
    // Communication has a row of its own, since it runs beside computing.
    events.push_back(Label("thread_name", rank, 1, "communication"));
    for (const v1::TraceEvent& event : trace.events()) {
      events.push_back({{"name", event.name()},
                        // X is an event with a duration; times are microseconds.
                        {"ph", "X"},
                        {"pid", rank},
                        {"tid", event.communication() ? 1 : 0},
                        {"ts", (event.start_seconds() - first) * 1e6},
                        {"dur", event.seconds() * 1e6},
                        {"args",
                         {{"step", trace.step()},
                          {"micro_batch", event.micro_batch()},
                          {"chunk", event.chunk()}}}});
    }
  }
  return Json({{"traceEvents", events}, {"displayTimeUnit", "ms"}}).dump();
}

double MeasuredBubble(const std::vector<v1::RankTrace>& traces) {
  // The first and the last work of any rank are the ends of the step.
  double begin = std::numeric_limits<double>::max();
  double end = 0;
  double busiest = 0;
  for (const v1::RankTrace& trace : traces) {
    double busy = 0;
    for (const v1::TraceEvent& event : trace.events()) {
      if (!IsWork(event)) continue;
      begin = std::min(begin, event.start_seconds());
      end = std::max(end, event.start_seconds() + event.seconds());
      busy += event.seconds();
    }
    // The busiest rank would need this long without any wait.
    busiest = std::max(busiest, busy);
  }
  // Without work there is no bubble, and -1 says so.
  return busiest > 0 ? (end - begin) / busiest - 1 : -1;
}

double BubbleOfLayers(int layers, const v1::Layout& layout) {
  const plan::ScheduleShape shape = plan::ShapeOfSchedule(layout);
  plan::cost::PipelineCost cost;
  std::vector<double> work(static_cast<size_t>(shape.stages));  // one micro-batch, by stage
  for (const int count : plan::LayersOfPlaces(layers, layout)) {
    const size_t stage = cost.places.size() % work.size();
    cost.places.push_back({1.0 * count, 2.0 * count});
    work[stage] += 3.0 * count;
  }
  const double busiest = *std::max_element(work.begin(), work.end());
  return plan::cost::PipelineWalk(shape).Play(cost).seconds / (shape.micro_batches * busiest) - 1;
}

absl::Status WriteTrace(Client& client, const v1::JobStatus& job, const std::string& path) {
  grpc::ClientContext context;
  v1::TraceRequest request;
  request.set_job(job.id());
  const auto reader = client.stub().Trace(&context, request);
  std::vector<v1::RankTrace> traces;
  v1::RankTrace trace;
  while (reader->Read(&trace)) traces.push_back(trace);
  TERCIO_RETURN_IF_ERROR(CallStatus(reader->Finish(), client));
  // A job that resumed behind the step has not traced it.
  if (traces.empty()) {
    return absl::NotFoundError(absl::StrCat("no trace: the job did not complete step ",
                                            job.spec().training().trace_step(),
                                            " in this run; choose another with --trace-step"));
  }
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(path, TraceJson(traces, job.plan())));
  const v1::Layout& layout = job.plan().layout();
  // The formula is one of equal stages.
  const std::string unequal = plan::StageLayersText(layout);
  const std::string source =
      unequal.empty() ? "by the formula" : absl::StrCat("for stages of ", unequal, " layers");
  std::fprintf(stderr, "trace of step %lld in %s; bubble %.3f measured, %.3f %s\n",
               static_cast<long long>(traces.front().step()), path.c_str(), MeasuredBubble(traces),
               BubbleOfLayers(model::LayersOf(job.spec().model()), layout), source.c_str());
  return absl::OkStatus();
}

}  // namespace tercio::cli
