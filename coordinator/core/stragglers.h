// Finds the rank that makes all others wait, by what each computes in a step (waiting for others
// not counted). Pure.
//
// A window is one report of every rank. In it a rank is compared
//   - in a stage of three ranks or more with the stage's median: they do equal work, while stages
//     need not;
//   - in a stage of two with the other one;
//   - in a stage of one or two also with its own best past, against how the whole job has slowed
//     down meanwhile.
// Its score is the reference divided by its own time. It is a straggler when the score is below
// 0.75 and it is far outside the stage's spread, in three windows in a row, or in two that hold 12
// steps or more: the median of that many is no accident. It has recovered when it was neither for
// as long. Windows close as fast as nodes report, each with the steps since the one before; so a
// straggler is named within three reports where these hold six steps or more (in the first it may
// be slow for less than half of them), within 20 steps where they hold up to eight, and after three
// steps where a step outlasts a report.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::coordinator {

struct StragglerSettings {
  double score = 0.75;
  double deviations = 3;         // from the stage's median, in median absolute deviations
  double least_spread = 0.03;    // share of the median: no deviation counts as smaller
  double least_seconds = 0.005;  // per step: what any machine may spend beside its work
  int windows = 3;
  int64_t steps = 12;  // in two windows, instead of more windows
};

struct StragglerChange {
  int rank = 0;
  bool slow = false;  // false: it has recovered
  double score = 0;
  // "rank 5 (node b) computes for 1.82 s per step, its peers 1.01 s: score 0.55 in 3 windows"
  std::string text;
};

class StragglerDetector {
 public:
  explicit StragglerDetector(const v1::Plan& plan, StragglerSettings settings = {});

  // Adds timings of any ranks, as their nodes report them. Returns which ranks became stragglers or
  // recovered.
  std::vector<StragglerChange> Add(const std::vector<v1::RankTiming>& timings);

  // Scores of the last window; empty before the first.
  const std::map<int, double>& scores() const { return scores_; }

 private:
  struct Rank {
    int stage = 0;
    std::string node;
    double compute = 0;  // seconds in the open window; 0: not reported yet
    std::deque<double> recent;
    double best = 0;        // least median of recent windows; 0: none
    int64_t last_step = 0;  // step of the last report; 0: none
    int64_t steps = 0;      // steps in the open window; 0: not known
    int windows = 0;        // in a row that contradict `slow`
    int64_t steps_of_windows = 0;
    bool slow = false;
  };

  std::vector<StragglerChange> CloseWindow();
  bool IsCertain(const Rank& entry) const;
  // The time that this rank should have needed, and the spread of such times.
  struct Reference {
    double seconds = 0;
    double spread = 0;
    const char* what = "";
  };
  // The median of a stage of three ranks or more, computed once for all of them.
  Reference MedianOf(const std::vector<int>& stage) const;
  Reference ReferenceOf(int rank, const Rank& entry) const;
  Reference PastOf(int rank, const Rank& entry) const;

  StragglerSettings settings_;
  std::map<int, Rank> ranks_;
  std::map<int, std::vector<int>> stages_;
  std::map<int, double> scores_;
  size_t reported_ = 0;  // ranks, in the open window
};

}  // namespace tercio::coordinator
