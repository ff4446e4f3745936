// The parts of a report. Each adds a section to the page, or nothing where no job has anything of
// the kind.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/report/html.h"
#include "cli/report/job_data.h"
#include "cli/report/numbers.h"

namespace tercio::report {

struct Subject {
  const JobData* job;
  Numbers numbers;
};
using Subjects = std::vector<Subject>;

// In a sentence or two.
std::string SummaryOf(const Subject& subject);
// How one compares with the first.
std::string ComparisonOf(const Subject& base, const Subject& other);
std::string LayoutText(const v1::JobStatus& status);

void AddNumbers(const Subjects& subjects, Page* page);
void AddPlanned(const Subjects& subjects, Page* page);
void AddCurves(const Subjects& subjects, Page* page);
void AddPhases(const Subjects& subjects, Page* page);
void AddMemory(const Subjects& subjects, Page* page);
void AddGoodput(const Subjects& subjects, Page* page);
void AddFaults(const Subjects& subjects, Page* page);
void AddCheckpoints(const Subjects& subjects, Page* page);
void AddEnvironment(const Subjects& subjects, Page* page);
void AddConfiguration(const Subjects& subjects, Page* page);

}  // namespace tercio::report
