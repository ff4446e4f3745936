#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/program.h"

namespace tercio::plan {
namespace {

using Kind = ProgramStep::Kind;

class Checker {
 public:
  explicit Checker(const ProgramShape& shape)
      : shape_(shape), there_(static_cast<size_t>(shape.places), -1) {
    for (int unit = FirstUnit(); unit < FirstUnit() + UnitCount(); ++unit) {
      if (shape.IsTrained(unit)) trained_.push_back(unit);
      if (shape.HasBackward(unit)) ++with_backward_;
    }
  }

  absl::Status Check(const ProgramStep& step) {
    const absl::Status status = CheckStep(step);
    if (status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("program: ", TextOf(shape_, step), ": ", std::string(status.message())));
  }

  absl::Status CheckEnd(bool trains) const {
    const auto passes = [&](int units) {
      return static_cast<size_t>(shape_.micro_batches * units);
    };
    if (forward_.size() != passes(UnitCount())) return Missing("forward passes");
    if (!trains) return absl::OkStatus();
    if (backward_.size() != passes(with_backward_)) return Missing("backward passes");
    const size_t sums = shape_.reduces ? trained_.size() * static_cast<size_t>(shape_.rounds) : 0;
    if (reduced_ != sums) return Missing("sums");
    if (!judged_) return Missing("verdicts");
    if (updated_ != trained_.size()) return Missing("updates");
    if (published_ != shape_.published) return Missing("published units");
    return absl::OkStatus();
  }

 private:
  using Pass = std::pair<int, int>;  // micro-batch, unit

  static absl::Status Missing(const char* what) {
    return absl::InternalError(absl::StrCat("program: ", what, " are not complete"));
  }
  static absl::Status Wrong(const char* why) { return absl::InternalError(why); }
  int FirstUnit() const { return shape_.first ? kEmbeddingUnit : 0; }
  int UnitCount() const { return shape_.head() + (shape_.first ? 1 : 0) + (shape_.last ? 1 : 0); }
  int ChunkOf(int unit) const {
    if (unit == kEmbeddingUnit) return 0;
    return unit == shape_.head() ? shape_.runs.chunks() - 1 : shape_.runs.ChunkOf(unit);
  }
  // Whether the unit before it in the model is in the same pass.
  bool HasBefore(int unit) const {
    if (unit == kEmbeddingUnit) return false;
    if (unit == shape_.head() || !shape_.runs.IsFirstOfChunk(unit)) return true;
    return unit == 0 && shape_.first;
  }
  bool HasAfter(int unit) const {
    if (unit == shape_.head()) return false;
    if (unit == kEmbeddingUnit || !shape_.runs.IsLastOfChunk(unit)) return true;
    return unit + 1 == shape_.head() && shape_.last;
  }
  bool IsThere(int unit) const {
    if (shape_.places == 0 || unit < 0 || unit >= shape_.head()) return true;
    return there_[static_cast<size_t>(unit % shape_.places)] == unit;
  }
  int RoundOf(int micro_batch) const {
    return micro_batch / (shape_.micro_batches / shape_.rounds);
  }

  absl::Status CheckStep(const ProgramStep& step) {
    switch (step.kind) {
      case Kind::kForward:
        return Forward(step);
      case Kind::kBackward:
        return Backward(step);
      case Kind::kGather:
        return Gather(step);
      case Kind::kReduce:
        return Reduce(step);
      case Kind::kFinish:
        finished_ = true;
        return absl::OkStatus();
      case Kind::kJudge:
        if (!finished_) return Wrong("sums are not finished");
        if (judged_) return Wrong("a second time");
        judged_ = true;
        return absl::OkStatus();
      case Kind::kFetch:
        return Fetch(step);
      case Kind::kUpdate:
        return Update(step);
      case Kind::kPublish:
        return Publish(step);
      case Kind::kReceiveActivation:
      case Kind::kBeginForward:
      case Kind::kEndForward:
      case Kind::kSendActivation:
      case Kind::kReceiveGradient:
      case Kind::kBeginBackward:
      case Kind::kEndBackward:
      case Kind::kSendGradient:
        break;  // those of actions, which CheckSchedule proves
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const ProgramStep& step) {
    const Pass pass = {step.micro_batch, step.unit};
    if (step.chunk != ChunkOf(step.unit)) return Wrong("the unit is in another chunk");
    if (!IsThere(step.unit)) return Wrong("its weights are not in their place");
    if (HasBefore(step.unit) && forward_.count({step.micro_batch, step.unit - 1}) == 0) {
      return Wrong("the unit before it was not computed");
    }
    return forward_.insert(pass).second ? absl::OkStatus() : Wrong("a second time");
  }

  absl::Status Backward(const ProgramStep& step) {
    const Pass pass = {step.micro_batch, step.unit};
    if (forward_.count(pass) == 0) return Wrong("before its forward pass");
    if (!shape_.HasBackward(step.unit)) return Wrong("nothing is trained up to it");
    if (!IsThere(step.unit)) return Wrong("its weights are not in their place");
    if (HasAfter(step.unit) && backward_.count({step.micro_batch, step.unit + 1}) == 0) {
      return Wrong("the unit behind it was not computed");
    }
    const int round = RoundOf(step.micro_batch);
    if (shape_.reduces && shape_.IsTrained(step.unit) && round != rounds_[step.unit]) {
      return Wrong("gradients of another round are not summed yet");
    }
    ++of_round_[step.unit];
    return backward_.insert(pass).second ? absl::OkStatus() : Wrong("a second time");
  }

  absl::Status Gather(const ProgramStep& step) {
    if (shape_.places == 0) return Wrong("no weights are gathered");
    if (IsThere(step.unit)) return Wrong("it is there already");
    if (step.kept && (!shape_.keeps || gathered_.count(step.unit) == 0)) {
      return Wrong("no neighbour keeps it yet");
    }
    gathered_.insert(step.unit);
    there_[static_cast<size_t>(step.unit % shape_.places)] = step.unit;
    return absl::OkStatus();
  }

  absl::Status Reduce(const ProgramStep& step) {
    if (!shape_.reduces) return Wrong("there are no other ranks");
    if (finished_) return Wrong("sums are finished");
    if (!shape_.IsTrained(step.unit)) return Wrong("it has no gradients");
    if (rounds_[step.unit] != step.round) return Wrong("rounds are not summed in their order");
    if (of_round_[step.unit] != shape_.micro_batches / shape_.rounds) {
      return Wrong("the round's backward passes are not complete");
    }
    of_round_[step.unit] = 0;
    ++rounds_[step.unit];
    ++reduced_;
    return absl::OkStatus();
  }

  absl::Status Fetch(const ProgramStep& step) {
    if (!shape_.fetches) return Wrong("its state is in memory");
    if (!judged_) return Wrong("the step is not judged");
    // More would push other pages out of memory.
    const bool is_near = std::find(trained_.cbegin(), Ahead(2), step.unit) != Ahead(2);
    if (!is_near) return Wrong("too far ahead");
    return fetched_.insert(step.unit).second ? absl::OkStatus() : Wrong("a second time");
  }

  absl::Status Update(const ProgramStep& step) {
    if (!judged_) return Wrong("the step is not judged");
    if (Ahead(0) == trained_.end() || step.unit != *Ahead(0)) {
      return Wrong("out of the order of the units");
    }
    if (shape_.fetches && fetched_.count(step.unit) == 0) return Wrong("it was not fetched");
    ++updated_;
    return absl::OkStatus();
  }

  absl::Status Publish(const ProgramStep& step) {
    if (std::find(trained_.cbegin(), Ahead(0), step.unit) == Ahead(0)) {
      return Wrong("it is not updated yet");
    }
    const bool is_next = published_.size() < shape_.published.size() &&
                         shape_.published[published_.size()] == step.unit;
    if (!is_next) return Wrong("another unit is the next that is published, or none");
    published_.push_back(step.unit);
    return absl::OkStatus();
  }

  // The unit that comes `count` behind those that are updated, or the end.
  std::vector<int>::const_iterator Ahead(size_t count) const {
    return trained_.begin() +
           static_cast<std::ptrdiff_t>(std::min(trained_.size(), updated_ + count));
  }

  const ProgramShape& shape_;
  std::vector<int> trained_;  // units with gradients
  int with_backward_ = 0;     // units
  std::set<Pass> forward_;
  std::set<Pass> backward_;
  std::set<int> gathered_;       // units that neighbours may keep
  std::map<int, int> rounds_;    // by unit: the round that is being written
  std::map<int, int> of_round_;  // by unit: its backward passes in that round
  std::vector<int> there_;       // the layer in each place
  size_t reduced_ = 0;
  std::set<int> fetched_;       // units
  std::vector<int> published_;  // units
  size_t updated_ = 0;          // units, the first of those that are trained
  bool finished_ = false;
  bool judged_ = false;
};

}  // namespace

absl::Status CheckProgram(const ProgramShape& shape, const Program& program) {
  Checker checker(shape);
  bool trains = false;
  for (const ProgramStep& step : program) {
    // A stage of which nothing is trained has no more than the end.
    trains = trains || step.kind == Kind::kBackward || step.kind == Kind::kFinish ||
             step.kind == Kind::kJudge;
    if (const absl::Status status = checker.Check(step); !status.ok()) return status;
  }
  return checker.CheckEnd(trains);
}

}  // namespace tercio::plan
