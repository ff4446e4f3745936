// The parts of a report. Each adds a section to the page.
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

// A summary in one or two sentences.
std::string SummaryOf(const Subject& subject);
// A comparison with the first job, in a sentence.
std::string ComparisonOf(const Subject& base, const Subject& other);
std::string LayoutText(const v1::JobStatus& status);

void AddNumbers(const Subjects& subjects, Page* page);
void AddPlanned(const Subjects& subjects, Page* page);
void AddCurves(const Subjects& subjects, Page* page);
// Nothing where no job is a classifier that has been evaluated.
void AddClasses(const Subjects& subjects, Page* page);
void AddPhases(const Subjects& subjects, Page* page);
void AddMemory(const Subjects& subjects, Page* page);
void AddGoodput(const Subjects& subjects, Page* page);
void AddFaults(const Subjects& subjects, Page* page);
void AddCheckpoints(const Subjects& subjects, Page* page);
void AddEnvironment(const Subjects& subjects, Page* page);
void AddConfiguration(const Subjects& subjects, Page* page);

}  // namespace tercio::report
