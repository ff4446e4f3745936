// The beginning of a report: a summary, and the numbers of each job beside those of the first.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/plot/scale.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"
#include "plan/epochs.h"
#include "plan/stage_layers.h"

namespace tercio::report {
namespace {

using plot::ShortText;

// A row of the table: its name, and its cell for a job (with a note).
struct Row {
  std::string name;
  std::function<Cell(const Subject&)> cell;
};

std::string LossText(double loss) {
  // Five digits after the point tell apart what people compare.
  return absl::StrCat(plot::NumberText(std::round(loss * 1e5) / 1e5));
}

std::string StateText(const v1::JobStatus& status) {
  std::string name = v1::JobState_Name(status.state()).substr(10);  // after JOB_STATE_
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  return name;
}

// "12 of 30"; without the whole where a job of epochs does not know it yet.
std::string StepsOf(const Subject& subject) {
  const v1::JobStatus& status = subject.job->status;
  const bool known = status.steps() > 0 || plan::KnowsSteps(status.spec().training());
  return absl::StrCat(CountText(subject.numbers.steps),
                      known ? absl::StrCat(" of ", CountText(status.steps())) : "");
}

std::optional<double> MedianSeconds(const Numbers& numbers) {
  // Without steps there is no distribution.
  if (!numbers.step_seconds.has_value()) return std::nullopt;
  return numbers.step_seconds->median;
}

Cell Number(std::string text, std::string note = "") {
  return {std::move(text), true, std::move(note)};
}

// A value with the ratio to that of the first job.
template <typename T>
Cell Compared(const Subject& base, const Subject& subject, std::optional<T> Numbers::*field,
              const std::function<std::string(double)>& text) {
  const std::optional<T>& value = subject.numbers.*field;
  if (!value.has_value()) return Number(kNotKnown);
  // The first job is what others are compared with, and with itself there is no ratio.
  const std::optional<T>& of_base = base.numbers.*field;
  const bool compare = &base != &subject && of_base.has_value();
  return Number(
      text(static_cast<double>(*value)),
      // A ratio needs both sides; a missing one leaves the value without a note.
      compare ? RatioText(static_cast<double>(*value), static_cast<double>(*of_base)) : "");
}

Cell StepCell(const Subject& base, const Subject& subject) {
  const auto& seconds = subject.numbers.step_seconds;
  if (!seconds.has_value()) return Number(kNotKnown);
  const auto of_base = MedianSeconds(base.numbers);
  return Number(SecondsText(seconds->median), &base != &subject && of_base.has_value()
                                                  ? RatioText(seconds->median, *of_base)
                                                  : "");
}

std::optional<double> SpeedUp(const Subject& base, const Subject& subject) {
  // Throughput is compared instead of time, since batches may differ.
  if (!base.numbers.tokens_per_second.has_value() || !subject.numbers.tokens_per_second.has_value())
    return std::nullopt;
  return *subject.numbers.tokens_per_second / *base.numbers.tokens_per_second;
}

std::optional<double> Efficiency(const Subject& base, const Subject& subject) {
  const auto speed_up = SpeedUp(base, subject);
  // Efficiency relates the speed to the ranks that were paid for.
  if (!speed_up.has_value() || base.numbers.ranks == 0 || subject.numbers.ranks == 0)
    return std::nullopt;
  return *speed_up * base.numbers.ranks / subject.numbers.ranks;
}

std::vector<Row> SpeedRows(const Subject& base, bool several) {
  // Rows are functions, so that one table can be filled job by job.
  std::vector<Row> rows = {{"time per iteration (step), median",
                            [&base](const Subject& s) { return StepCell(base, s); }},
                           {"10th to 90th percentile",
                            [](const Subject& s) {
                              const auto& seconds = s.numbers.step_seconds;
                              return Number(!seconds.has_value()
                                                ? kNotKnown
                                                : absl::StrCat(SecondsText(seconds->p10), " to ",
                                                               SecondsText(seconds->p90)));
                            }},
                           {"time per micro-batch",
                            [&base](const Subject& s) {
                              return Compared(base, s, &Numbers::micro_batch_seconds, SecondsText);
                            }},
                           {"tokens per second", [&base](const Subject& s) {
                              return Compared(base, s, &Numbers::tokens_per_second, ShortText);
                            }}};
  // Efficiency has no meaning for a single job.
  if (several) {
    rows.push_back({"efficiency (speed-up per rank)", [&base](const Subject& s) {
                      return Number(OrNotKnown(Efficiency(base, s), PercentText));
                    }});
  }
  rows.push_back(
      {"MFU", [](const Subject& s) { return Number(OrNotKnown(s.numbers.mfu, PercentText)); }});
  rows.push_back({"processor cores in use", [&base](const Subject& s) {
                    return Compared(base, s, &Numbers::cores_used, ShortText);
                  }});
  rows.push_back({"GPU utilisation", [](const Subject& s) {
                    return Number(OrNotKnown(s.numbers.device_utilization, PercentText));
                  }});
  // Waiting shows where the time of slow runs goes, whatever the reason.
  rows.push_back({"share of time spent waiting for other ranks", [](const Subject& s) {
                    return Number(OrNotKnown(s.numbers.wait_share, PercentText));
                  }});
  return rows;
}

std::vector<Row> MemoryRows(const Subject& base) {
  // The largest rank decides whether a job fits, the sum what it costs.
  return {{"planned memory per rank, maximum",
           [&base](const Subject& s) {
             return Compared(base, s, &Numbers::planned_bytes_most, BytesText);
           }},
          {"peak memory per rank, maximum",
           [&base](const Subject& s) {
             return Compared(base, s, &Numbers::peak_bytes_most, BytesText);
           }},
          {"peak memory, all ranks",
           [&base](const Subject& s) {
             return Compared(base, s, &Numbers::peak_bytes_total, BytesText);
           }},
          {"resident memory, all processes", [&base](const Subject& s) {
             return Compared(base, s, &Numbers::resident_bytes_total, BytesText);
           }}};
}

// Only kinds of groups in which something was sent: few layouts use all of them.
std::vector<Row> CommunicationRows(const Subjects& subjects) {
  const Subject& base = subjects.front();
  std::vector<Row> rows = {{"sent to other ranks in a step, all ranks", [&base](const Subject& s) {
                              return Compared(base, s, &Numbers::communication_bytes_per_step,
                                              BytesText);
                            }}};
  for (const GroupKind& kind : kGroupKinds) {
    const auto sent = [kind](const Subject& subject) -> std::optional<int64_t> {
      if (!subject.numbers.communication.has_value()) return std::nullopt;
      return (*subject.numbers.communication.*kind.bytes)();
    };
    const bool any = std::any_of(subjects.begin(), subjects.end(), [&](const Subject& subject) {
      return sent(subject).value_or(0) > 0;
    });
    if (!any) continue;
    rows.push_back(
        {absl::StrCat("sent in ", kind.name, " groups since the start"), [sent](const Subject& s) {
           return Number(OrNotKnown(
               sent(s), [](int64_t bytes) { return BytesText(static_cast<double>(bytes)); }));
         }});
  }
  return rows;
}

// Rows of what at least one of the jobs has: most jobs have neither classes nor test data.
void AddScoreRows(const Subjects& subjects, std::vector<Row>* rows) {
  struct Score {
    const char* name;
    std::optional<double> Numbers::*field;
  };
  constexpr Score kScores[] = {
      {"validation accuracy", &Numbers::validation_accuracy},
      {"validation F1", &Numbers::validation_f1},
      {"reward margin", &Numbers::rewards_margin},
      {"reward accuracy", &Numbers::rewards_accuracy},
      {"validation reward margin", &Numbers::validation_rewards_margin},
      {"validation reward accuracy", &Numbers::validation_rewards_accuracy},
      {"test loss", &Numbers::test_loss},
      {"test accuracy", &Numbers::test_accuracy},
      {"test F1", &Numbers::test_f1}};
  for (const Score& score : kScores) {
    const bool known = std::any_of(subjects.begin(), subjects.end(), [&](const Subject& subject) {
      return (subject.numbers.*score.field).has_value();
    });
    if (!known) continue;
    rows->push_back({score.name, [field = score.field](const Subject& s) {
                       return Number(OrNotKnown(s.numbers.*field, LossText));
                     }});
  }
}

std::vector<Row> QualityRows(const Subjects& subjects) {
  const Subject& base = subjects.front();
  const bool several = subjects.size() > 1;
  std::vector<Row> rows = {
      {"final loss",
       [](const Subject& s) { return Number(OrNotKnown(s.numbers.final_loss, LossText)); }},
      {"validation loss",
       [](const Subject& s) { return Number(OrNotKnown(s.numbers.validation_loss, LossText)); }},
      {"validation perplexity",
       [](const Subject& s) { return Number(OrNotKnown(s.numbers.perplexity, ShortText)); }}};
  AddScoreRows(subjects, &rows);
  // What follows relates one job to another.
  if (!several) return rows;
  rows.push_back({"losses by step", [&base](const Subject& s) {
                    if (&s == &base) return Number("");
                    const LossComparison compared = CompareLosses(*base.job, *s.job);
                    // Jobs of different lengths may have no step in common.
                    if (compared.steps == 0) return Number("no step in common");
                    // Bit-identical is said only for all steps: it is a claim about the whole run.
                    if (compared.equal_steps == compared.steps) {
                      return Number(absl::StrCat("bit-identical in all ", CountText(compared.steps),
                                                 " steps"));
                    }
                    return Number(
                        absl::StrCat("at most ", ShortText(compared.largest_difference), " apart"),
                        compared.largest_at > 0 ? absl::StrCat("at step ", compared.largest_at)
                                                : "");
                  }});
  rows.push_back(
      // The first job reaches its own loss before its end, since the losses are smoothed.
      {"time to reach the first job's final loss", [&base](const Subject& s) {
         const LossComparison compared = CompareLosses(*base.job, *s.job);
         if (!compared.other_reaches.has_value()) return Number("never reached");
         const LossComparison::Reached& reached = *compared.other_reaches;
         return Number(
             SecondsText(reached.seconds),
             absl::StrCat(
                 "step ", CountText(reached.step), &s == &base ? "" : ", ",
                 &s == &base ? "" : RatioText(reached.seconds, compared.base_reaches->seconds)));
       }});
  return rows;
}

}  // namespace

std::string LayoutText(const v1::JobStatus& status) {
  if (!status.has_plan()) return kNotKnown;
  // A plan exists only once devices were found.
  const v1::Layout& layout = status.plan().layout();
  const std::string layers = plan::StageLayersText(layout);
  return absl::StrCat("tensor ", layout.tensor(), " × pipeline ", layout.pipeline(),
                      layers.empty() ? "" : absl::StrCat(" (", layers, ")"), " × data ",
                      layout.data());
}

std::string SummaryOf(const Subject& subject) {
  const v1::JobStatus& status = subject.job->status;
  const Numbers& numbers = subject.numbers;
  std::string text = subject.job->label;
  // A label may contain the id already, where two jobs have the same name.
  if (!absl::StrContains(text, status.id())) absl::StrAppend(&text, " (", status.id(), ")");
  text += ' ';
  // The states from this one on are those of jobs that have ended.
  const bool ended = status.state() >= v1::JOB_STATE_SUCCEEDED;
  absl::StrAppend(&text, status.state() == v1::JOB_STATE_CANCELLED ? "was cancelled"
                         : ended                                   ? StateText(status)
                                 : absl::StrCat("is ", StateText(status)));
  if (numbers.steps == 0) {
    // The error of a cancelled job may only repeat its state.
    const bool says_more = !status.error().empty() && status.error() != StateText(status);
    absl::StrAppend(&text, says_more ? absl::StrCat(": ", status.error()) : "",
                    "; it has not completed a step");
    return text + ".";
  }
  absl::StrAppend(&text, " at step ", StepsOf(subject));
  if (numbers.ranks > 0) {
    absl::StrAppend(&text, " on ", numbers.ranks, numbers.ranks == 1 ? " rank" : " ranks", " (",
                    LayoutText(status), ")");
  }
  if (!status.error().empty() && status.error() != StateText(status))
    absl::StrAppend(&text, ": ", status.error());
  absl::StrAppend(&text, ". ", "Loss ", OrNotKnown(numbers.final_loss, LossText));
  if (numbers.validation_loss.has_value())
    absl::StrAppend(&text, ", validation loss ", LossText(*numbers.validation_loss));
  if (numbers.test_accuracy.has_value()) {
    absl::StrAppend(&text, ", test accuracy ", LossText(*numbers.test_accuracy));
  } else if (numbers.test_loss.has_value()) {
    absl::StrAppend(&text, ", test loss ", LossText(*numbers.test_loss));
  }
  if (numbers.tokens_per_second.has_value()) {
    absl::StrAppend(&text, ", ", ShortText(*numbers.tokens_per_second), " tokens/s (",
                    SecondsText(numbers.step_seconds->median), " a step)");
  }
  // Nothing is said about the use of a time that has not passed.
  if (numbers.goodput.has_value()) {
    absl::StrAppend(&text, ", ", PercentText(*numbers.goodput), " of ",
                    SecondsText(*numbers.total_seconds), " was productive training");
  }
  absl::StrAppend(&text, numbers.restarts == 0 ? ", no restarts"
                         : numbers.restarts == 1
                             ? ", 1 restart"
                             : absl::StrCat(", ", numbers.restarts, " restarts"));
  return text + ".";
}

std::string ComparisonOf(const Subject& base, const Subject& other) {
  // Jobs without steps have no throughput.
  const auto speed_up = SpeedUp(base, other);
  if (!speed_up.has_value())
    return absl::StrCat(other.job->label, " cannot be compared with ", base.job->label, " yet.");
  std::string text = absl::StrCat(other.job->label, " trains ", RatioText(*speed_up, 1),
                                  " as fast as ", base.job->label);
  // With as many ranks, efficiency would repeat the speed.
  if (const auto efficiency = Efficiency(base, other);
      efficiency.has_value() && base.numbers.ranks != other.numbers.ranks) {
    absl::StrAppend(&text, " on ", other.numbers.ranks,
                    other.numbers.ranks == 1 ? " rank" : " ranks", " instead of ",
                    base.numbers.ranks, ": ", PercentText(*efficiency), " efficiency");
  }
  const LossComparison compared = CompareLosses(*base.job, *other.job);
  if (compared.steps > 0) {
    absl::StrAppend(&text, compared.equal_steps == compared.steps
                               ? absl::StrCat("; their losses are bit-identical in all ",
                                              CountText(compared.steps), " steps")
                               : absl::StrCat("; their losses differ by at most ",
                                              ShortText(compared.largest_difference), " in ",
                                              CountText(compared.steps), " steps"));
  }
  // These steps are part of the common ones, but have no difference.
  if (compared.not_finite_steps > 0) {
    absl::StrAppend(&text, "; at ", CountText(compared.not_finite_steps),
                    " of these, one loss is not finite");
  }
  return text + ".";
}

void AddNumbers(const Subjects& subjects, Page* page) {
  const Subject& base = subjects.front();
  const bool several = subjects.size() > 1;
  page->Section(several ? "In numbers, side by side" : "In numbers");
  if (several) {
    page->Paragraph(absl::StrCat("Grey: as a multiple of ", base.job->label, "."), "soft");
  }
  std::vector<std::vector<Cell>> table = {{{several ? "" : "quantity"}}};
  // Columns of numbers are aligned to the right, their headings as well.
  for (const Subject& subject : subjects) table[0].push_back(Number(subject.job->label));
  const auto add = [&](const Row& row) {
    std::vector<Cell> cells = {{row.name}};
    for (const Subject& subject : subjects) cells.push_back(row.cell(subject));
    table.push_back(std::move(cells));
  };
  add({"state", [](const Subject& s) { return Number(StateText(s.job->status)); }});
  add({"steps", [](const Subject& s) { return Number(StepsOf(s)); }});
  add({"tokens", [](const Subject& s) { return Number(CountText(s.numbers.tokens)); }});
  add({"ranks", [](const Subject& s) {
         return Number(s.numbers.ranks > 0 ? absl::StrCat(s.numbers.ranks) : kNotKnown);
       }});
  add({"layout", [](const Subject& s) { return Number(LayoutText(s.job->status)); }});
  for (const Row& row : SpeedRows(base, several)) add(row);
  for (const Row& row : MemoryRows(base)) add(row);
  for (const Row& row : CommunicationRows(subjects)) add(row);
  for (const Row& row : QualityRows(subjects)) add(row);
  add({"restarts", [](const Subject& s) { return Number(absl::StrCat(s.numbers.restarts)); }});
  add({"steps repeated", [](const Subject& s) { return Number(CountText(s.numbers.lost_steps)); }});
  add({"time since submission",
       [](const Subject& s) { return Number(OrNotKnown(s.numbers.total_seconds, SecondsText)); }});
  add({"of that, productive training",
       [](const Subject& s) { return Number(OrNotKnown(s.numbers.goodput, PercentText)); }});
  page->Table(table, "keys");
}

}  // namespace tercio::report
