#include "worker/trainer/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "plan/names.h"
#include "plan/objective_figures.h"
#include "plan/quality.h"
#include "plan/text_form.h"
#include "worker/trainer/event_record.h"

namespace tercio::trainer {
namespace {

constexpr size_t kMostWaiting = 20'000;                               // records of some 300 bytes
constexpr std::chrono::seconds kPatience = std::chrono::seconds(10);  // at the end
constexpr char kOwnerFile[] = "tercio-job";
// TensorBoard only takes files that have "tfevents" in their names.
constexpr char kPrefix[] = "events.out.tfevents.";
// A classifier's, beside the loss.
constexpr v1::QualityMetric kScores[] = {v1::QUALITY_METRIC_ACCURACY, v1::QUALITY_METRIC_PRECISION,
                                         v1::QUALITY_METRIC_RECALL, v1::QUALITY_METRIC_F1};

// The wall time that is displayed beside a step.
double WallTime() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

// The specification as Markdown: indented lines keep their form.
std::string ConfigurationOf(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const absl::StatusOr<std::string> json = plan::ToJson(spec, options);
  if (!json.ok()) return "";
  return "    " + absl::StrReplaceAll(*json, {{"\n", "\n    "}});
}

// The directory, if it is this job's, else the job's folder in it.
absl::StatusOr<std::string> Claim(const std::string& directory, const std::string& job) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  const std::string path = absl::StrCat(directory, "/", kOwnerFile);
  // O_EXCL decides between two jobs that come at the same time.
  const int made = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (made >= 0) {
    const ssize_t written = write(made, job.data(), job.size());
    const int error = written < 0 ? errno : ENOSPC;
    close(made);
    if (written == static_cast<ssize_t>(job.size())) return directory;
    // An owner whose name was cut short would be nobody, and the directory lost for all.
    unlink(path.c_str());
    return FileError(error, "write", path);
  }
  if (errno != EEXIST) return FileError(errno, "make", path);
  TERCIO_ASSIGN_OR_RETURN(const std::string owner, ReadFile(path));
  if (owner == job) return directory;
  const std::string folder = absl::StrCat(directory, "/", job);
  LogInfo(absl::StrCat("tensorboard: ", directory, " has events of ", owner, "; those of ", job,
                       " go to ", folder));
  TERCIO_RETURN_IF_ERROR(MakeDirectories(folder));
  return folder;
}

// TensorBoard reads the files of a directory in the order of their names, so a later attempt's name
// must be later, whatever clocks say.
std::string NextName(const std::string& directory, const v1::RunId& run) {
  auto seconds = static_cast<int64_t>(WallTime());
  for (const std::string& name : ListDirectory(directory)) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const int64_t other = std::strtoll(name.c_str() + sizeof(kPrefix) - 1, nullptr, 10);
    seconds = std::max(seconds, other + 1);
  }
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return absl::StrFormat("%s%010d.%s.%d.%d", kPrefix, seconds, host, getpid(), run.attempt());
}

}  // namespace

struct TensorBoardWriter::Shared {
  std::string directory;
  v1::RunId run;

  Mutex mutex;
  ConditionVariable changed;
  std::deque<std::string> waiting TERCIO_GUARDED_BY(mutex);
  bool ending TERCIO_GUARDED_BY(mutex) = false;
  bool ended TERCIO_GUARDED_BY(mutex) = false;
  bool warned TERCIO_GUARDED_BY(mutex) = false;

  // Used by the thread only.
  std::string path;
  int descriptor = -1;
  int64_t bytes = 0;  // size of whole records

  void Warn(const std::string& what) TERCIO_REQUIRES(mutex) {
    // A directory that does not answer would fill the log, step by step.
    if (std::exchange(warned, true)) return;
    LogWarning(
        absl::StrCat("tensorboard: ", what, "; training continues, but steps are missing there"));
  }

  absl::Status Open() {
    TERCIO_ASSIGN_OR_RETURN(const std::string place, Claim(directory, run.job_id()));
    path = absl::StrCat(place, "/", NextName(place, run));
    descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return descriptor >= 0 ? absl::OkStatus() : FileError(errno, "make", path);
  }

  // A partial record would end the file for its readers: it is truncated.
  absl::Status Write(const std::string& record) {
    if (descriptor < 0) TERCIO_RETURN_IF_ERROR(Open());
    // The place is named: what a failed write has left behind does not count.
    const ssize_t written = pwrite(descriptor, record.data(), record.size(), bytes);
    if (written == static_cast<ssize_t>(record.size())) {
      bytes += written;
      return absl::OkStatus();
    }
    const int error = written < 0 ? errno : ENOSPC;
    if (ftruncate(descriptor, bytes) != 0) return FileError(errno, "truncate", path);
    return FileError(error, "write", path);
  }

  // If the first record cannot be written, those after it are not either: the file would have no
  // beginning.
  void Run(std::vector<std::string> header) {
    size_t begun = 0;
    MutexLock lock(mutex);
    while (true) {
      while (!ending && waiting.empty()) changed.Wait(mutex);
      if (waiting.empty()) break;
      const std::string record = std::move(waiting.front());
      waiting.pop_front();
      lock.Unlock();
      absl::Status status;
      while (begun < header.size() && (status = Write(header[begun])).ok()) ++begun;
      if (status.ok()) status = Write(record);
      lock.Lock();
      if (!status.ok()) Warn(std::string(status.message()));
    }
    if (descriptor >= 0) close(descriptor);
    ended = true;
    changed.NotifyAll();
  }
};

std::unique_ptr<TensorBoardWriter> TensorBoardWriter::Start(const v1::TrainerAssignment& assignment,
                                                            const v1::RunId& run) {
  const v1::JobSpec& spec = assignment.spec();
  if (spec.tensorboard().empty()) return nullptr;
  auto shared = std::make_shared<Shared>();
  shared->directory = spec.tensorboard();
  shared->run = run;
  const double now = WallTime();
  const int64_t first = assignment.resume_step() + 1;
  std::vector<std::string> header = {VersionRecord(now), StartRecord(now, first)};
  // Later attempts add to the same curves, for which one text is enough.
  if (run.attempt() == 1) {
    header.push_back(TextRecord(now, 0, "configuration", ConfigurationOf(spec)));
  }
  // Nobody joins it: in a file system that hangs it may take longer than the process has.
  std::thread([shared, header = std::move(header)]() mutable {
    shared->Run(std::move(header));
  }).detach();
  return std::unique_ptr<TensorBoardWriter>(new TensorBoardWriter(std::move(shared)));
}

TensorBoardWriter::~TensorBoardWriter() {
  MutexLock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.NotifyAll();
  const auto ended = [this]() TERCIO_REQUIRES(shared_->mutex) { return shared_->ended; };
  if (!shared_->changed.WaitFor(shared_->mutex, kPatience, ended)) {
    shared_->Warn(absl::StrCat(shared_->directory, " does not answer"));
  }
}

namespace {

void AddFigures(const char* group, const v1::ObjectiveFigures& figures,
                std::vector<std::pair<std::string, double>>* scalars) {
  for (const plan::ObjectiveFigure& figure : plan::ObjectiveFigureList()) {
    const std::optional<double> value = figure.value(figures);
    if (value.has_value()) scalars->emplace_back(group + std::string(figure.name), *value);
  }
}

}  // namespace

void TensorBoardWriter::Add(const v1::TrainerStep& report) {
  const v1::StepRecord& step = report.record();
  std::vector<std::pair<std::string, double>> scalars = {
      {"train/loss", step.loss()},
      {"train/grad_norm", step.grad_norm()},
      {"train/learning_rate", step.learning_rate()},
      {"train/tokens", static_cast<double>(step.tokens())},
      {"speed/tokens_per_second", report.tokens_per_second()},
      {"speed/step_seconds", step.step_seconds()},
      {"memory/used_bytes", static_cast<double>(step.used_bytes())}};
  if (step.has_validation_loss()) {
    scalars.emplace_back("validation/loss", step.validation_loss());
    // This is the usual figure of papers, and follows from the loss.
    scalars.emplace_back("validation/perplexity", std::exp(step.validation_loss()));
  }
  for (const v1::QualityMetric metric : kScores) {
    const std::optional<double> value = plan::ValueOf(metric, step);
    if (value.has_value()) {
      scalars.emplace_back(absl::StrCat("validation/", plan::TextOf(metric)), *value);
    }
  }
  AddFigures("train/", step.figures(), &scalars);
  AddFigures("validation/", step.validation_figures(), &scalars);
  if (step.has_loss_scale()) scalars.emplace_back("train/loss_scale", step.loss_scale());
  if (step.resident_bytes() > 0) {
    scalars.emplace_back("memory/resident_bytes", static_cast<double>(step.resident_bytes()));
  }
  // 0: the peak of the device is not known.
  if (report.mfu() > 0) scalars.emplace_back("speed/mfu", report.mfu());
  Write(ScalarsRecord(WallTime(), step.step(), scalars));
}

void TensorBoardWriter::AddTest(const v1::Evaluation& evaluation) {
  std::vector<std::pair<std::string, double>> scalars = {
      {"test/loss", evaluation.loss()}, {"test/perplexity", std::exp(evaluation.loss())}};
  for (const v1::QualityMetric metric : kScores) {
    if (!evaluation.has_confusion()) break;
    scalars.emplace_back(absl::StrCat("test/", plan::TextOf(metric)),
                         plan::ValueOf(metric, evaluation));
  }
  AddFigures("test/", evaluation.figures(), &scalars);
  Write(ScalarsRecord(WallTime(), evaluation.step(), scalars));
}

void TensorBoardWriter::Write(std::string record) {
  const MutexLock lock(shared_->mutex);
  // Training must not run out of memory because a file system hangs.
  if (shared_->waiting.size() >= kMostWaiting) {
    shared_->Warn(absl::StrCat(shared_->directory, " does not answer"));
    return;
  }
  shared_->waiting.push_back(std::move(record));
  shared_->changed.NotifyAll();
}

}  // namespace tercio::trainer
