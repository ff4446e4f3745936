#include "coordinator/verify_child.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/run_program.h"
#include "nlohmann/json.hpp"

namespace tercio::coordinator {
namespace {

using Json = nlohmann::json;

// Each child reads a disk as fast as it can and computes digests on a core or more.
constexpr int kMostChildren = 2;
constexpr int kNice = 10;
// A terabyte at 100 MB/s.
constexpr absl::Duration kPatience = absl::Hours(3);

struct Places {
  Mutex mutex;
  ConditionVariable left;
  int children TERCIO_GUARDED_BY(mutex) = 0;
};

// Outlives threads that wait while the process ends.
Places& ThePlaces() {
  static auto* const places = new Places;
  return *places;
}

// Holds one of the places for children.
class Turn {
 public:
  Turn() : places_(ThePlaces()) {
    MutexLock lock(places_.mutex);
    // The place is waited for, not refused: verifications of the schedule have time.
    while (places_.children >= kMostChildren) places_.left.Wait(places_.mutex);
    ++places_.children;
  }
  ~Turn() {
    MutexLock lock(places_.mutex);
    --places_.children;
    places_.left.NotifyOne();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Places& places_;
};

absl::StatusOr<std::vector<checkpoint::Finding>> FindingsOf(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<checkpoint::Finding> findings;
  if (!json.is_array() || json.empty()) return absl::InternalError("the verifier returned nothing");
  for (const Json& item : json) {
    if (!item.is_object()) return absl::InternalError("the verifier returned an unexpected result");
    findings.push_back(
        // Values have defaults, since a child of an unexpected version must not end this process.
        {item.value("path", ""), item.value("problem", ""), item.value("damaged", false)});
  }
  return findings;
}

}  // namespace

std::vector<checkpoint::Finding> VerifyInChild(const std::string& directory) {
  const Turn turn;
  const absl::StatusOr<std::string> text =
      // The program is the running one, even where its file was replaced by an update.
      RunProgram({"/proc/self/exe", kVerifyFlag, directory}, kPatience);
  absl::StatusOr<std::vector<checkpoint::Finding>> findings =
      text.ok() ? FindingsOf(*text) : text.status();
  if (findings.ok()) return *std::move(findings);
  return {{directory,
           absl::StrCat(directory,
                        " could not be verified: ", std::string(findings.status().message())),
           /*damaged=*/false}};
}

int RunVerifyChild(const std::string& directory) {
  // A child must not go on reading when the coordinator has died.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Training on this machine has priority.
  (void)setpriority(PRIO_PROCESS, 0, kNice);
  Json json = Json::array();
  for (const checkpoint::Finding& finding : checkpoint::VerifyCheckpoint(directory)) {
    json.push_back(
        {{"path", finding.path}, {"problem", finding.problem}, {"damaged", finding.damaged}});
  }
  // A path may have bytes that are no UTF-8, which would be an exception.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}

}  // namespace tercio::coordinator
