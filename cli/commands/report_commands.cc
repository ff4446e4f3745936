// plot, diff and report: comparisons of jobs for people.
#include <filesystem>
#include <iostream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_source.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/report/curves.h"
#include "cli/report/diff.h"
#include "cli/report/report.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/version.h"

namespace tercio::cli {
namespace {

// Writes to standard output, or to a file that appears complete in one rename.
absl::Status Write(const std::string& file, Output format, const std::vector<report::JobData>& jobs,
                   const std::string& text) {
  // Nothing but the result goes to the output, so that it can be piped.
  if (file == "-") {
    std::cout << text;
    return absl::OkStatus();
  }
  // The file is replaced by a rename, which must not happen to /dev/null or to the target of a
  // link.
  std::error_code unknown;
  const auto there = std::filesystem::symlink_status(file, unknown);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--output ", file, ": not a regular file; use - for standard output"));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(WriteFileDurably(file, text)));
  if (format == Output::kTable) return absl::OkStatus();
  // A file has no id, only the name of its job.
  Json ids = Json::array();
  for (const report::JobData& job : jobs)
    ids.push_back(job.from_file ? job.label : job.status.id());
  PrintJson({{"path", file}, {"jobs", ids}, {"bytes", text.size()}}, format);
  return absl::OkStatus();
}

absl::Status MakePlot(const PlotOptions& options) {
  report::CurveOptions curves;
  if (!options.metrics.empty()) curves.metrics = options.metrics;
  curves.x = options.x;
  curves.smooth = options.smooth;
  curves.logarithmic = options.logarithmic;
  TERCIO_RETURN_IF_ERROR(
      report::CurvesOf({}, curves).status());  // checks the options before any data is fetched
  // A plot needs the steps only, which is much less.
  TERCIO_ASSIGN_OR_RETURN(const auto jobs, GatherJobs(options, options.jobs, GatheredData::kSteps));
  TERCIO_ASSIGN_OR_RETURN(const plot::Figure figure, report::CurvesOf(jobs, curves));
  return Write(options.file, options.format(), jobs, plot::Draw(figure, plot::SvgPlace::kOwnFile));
}

absl::Status MakeReport(const ReportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto jobs, GatherJobs(options, options.jobs, GatheredData::kAll));
  // The page says when it was made, since a running job goes on.
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  return Write(options.file, options.format(), jobs, report::ReportPage(jobs, kVersion, now));
}

absl::Status ShowDiff(const DiffOptions& options) {
  // CLI11 cannot ask for exactly two.
  if (options.jobs.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("diff compares two jobs, not ", options.jobs.size()));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto jobs, GatherJobs(options, options.jobs, GatheredData::kAll));
  if (options.format() != Output::kTable) {
    PrintJson(report::DiffToJson(jobs[0], jobs[1]), options.format());
  } else {
    std::cout << Table(report::DiffRows(jobs[0], jobs[1]));
  }
  return absl::OkStatus();
}

int Finish(const absl::Status& status) { return status.ok() ? kExitOk : Fail(status); }

}  // namespace

int Plot(const PlotOptions& options) { return Finish(MakePlot(options)); }

int Diff(const DiffOptions& options) { return Finish(ShowDiff(options)); }

int Report(const ReportOptions& options) { return Finish(MakeReport(options)); }

}  // namespace tercio::cli
