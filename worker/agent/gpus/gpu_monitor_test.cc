// The monitor over GPUs of the test's own, which change, fall silent and come back.
#include "worker/agent/gpus/gpu_monitor.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/strings/str_split.h"
#include "common/metrics/metrics_page.h"
#include "common/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/gpus/gpu_metrics.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Minutes(1);

// Three GPUs, of which the node has the last two.
struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<GpuSample> samples{3};
  std::vector<GpuXid> xids;
  bool hangs = false;
  int hanging = 0;  // calls that wait for the driver
};

class TestSession : public GpuSession {
 public:
  explicit TestSession(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {}
  const Gpus& gpus() const override { return gpus_; }
  std::vector<GpuSample> Sample() override {
    std::unique_lock<std::mutex> lock(machine_->mutex);
    ++machine_->hanging;
    machine_->changed.notify_all();
    machine_->changed.wait(lock, [this] { return !machine_->hangs; });
    --machine_->hanging;
    return machine_->samples;
  }
  std::vector<GpuXid> TakeXids() override {
    std::lock_guard<std::mutex> lock(machine_->mutex);
    return std::exchange(machine_->xids, {});
  }

 private:
  const std::shared_ptr<Machine> machine_;
  const Gpus gpus_;
};

class GpuMonitorTest : public ::testing::Test {
 protected:
  GpuMonitorTest() {
    options_.gpus.list = {{1, "Fake GPU", "GPU-1", 1, ""}, {2, "Fake GPU", "GPU-2", 1, ""}};
    options_.interval = absl::Hours(1);  // it looks when it is asked to
    options_.open = [machine = machine_]() -> absl::StatusOr<std::unique_ptr<GpuSession>> {
      return std::unique_ptr<GpuSession>(std::make_unique<TestSession>(machine));
    };
  }
  ~GpuMonitorTest() override { SetHangs(false); }

  void Start() {
    monitor_ = std::make_unique<GpuMonitor>(options_);
    GpuMonitor::Callbacks callbacks;
    callbacks.in_use = [this] {
      std::lock_guard<std::mutex> lock(mutex_);
      return in_use_;
    };
    callbacks.on_change = [this] { ++changes_; };
    monitor_->Start(std::move(callbacks));
    monitor_->Look(kPatience);
  }
  void SetHangs(bool hangs) {
    std::lock_guard<std::mutex> lock(machine_->mutex);
    machine_->hangs = hangs;
    machine_->changed.notify_all();
  }
  void Report(int xid, size_t gpu) {
    std::lock_guard<std::mutex> lock(machine_->mutex);
    machine_->xids.push_back({gpu, xid});
  }
  void SetInUse(std::set<int> gpus) {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_ = std::move(gpus);
  }
  static void WaitFor(const std::function<bool()>& condition) {
    const absl::Time end = SteadyNow() + kPatience;
    while (!condition()) {
      ASSERT_LT(SteadyNow(), end);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // "" for a GPU that is well.
  std::vector<std::string> Faults() {
    std::vector<std::string> faults;
    for (const GpuReading& reading : monitor_->Readings()) {
      faults.push_back(reading.fault.has_value() ? reading.fault->text : "");
    }
    return faults;
  }

  const std::shared_ptr<Machine> machine_ = std::make_shared<Machine>();
  GpuMonitor::Options options_;
  std::mutex mutex_;
  std::set<int> in_use_;
  std::atomic<int> changes_{0};
  std::unique_ptr<GpuMonitor> monitor_;  // last: its thread uses the rest
};

TEST_F(GpuMonitorTest, FaultsAreOfTheNodesOwnGpus) {
  machine_->samples[0].lost = true;  // not the node's
  Start();
  EXPECT_THAT(Faults(), ElementsAre("", ""));
  EXPECT_EQ(changes_, 0);
  Report(79, 2);
  monitor_->Look(kPatience);
  EXPECT_THAT(Faults(), ElementsAre("", HasSubstr("XID 79")));
  EXPECT_EQ(changes_, 1);
  EXPECT_TRUE(monitor_->Readings()[1].fault->ends_runs);
  EXPECT_THAT(monitor_->Readings()[1].xids, ElementsAre(std::pair(79, 1)));
  monitor_->Look(kPatience);
  EXPECT_EQ(changes_, 1);
}

TEST_F(GpuMonitorTest, TroubleIsWhatCameLately) {
  Start();
  Report(31, 1);
  Report(31, 1);
  GpuMonitor::Trouble trouble = monitor_->TroubleOf(0, kPatience, kPatience);
  EXPECT_EQ(trouble.text, "XID 31 (GPU memory page fault)");
  EXPECT_FALSE(trouble.of_device);
  Report(94, 1);
  trouble = monitor_->TroubleOf(0, kPatience, kPatience);
  EXPECT_EQ(trouble.text, "XID 31 (GPU memory page fault), XID 94 (contained memory error)");
  EXPECT_TRUE(trouble.of_device);
  EXPECT_THAT(Faults(), ElementsAre("", ""));  // the next process may use it
  EXPECT_EQ(monitor_->TroubleOf(0, absl::ZeroDuration(), kPatience).text, "");
  EXPECT_EQ(monitor_->TroubleOf(1, kPatience, kPatience).text, "");
}

TEST_F(GpuMonitorTest, ADriverThatHangsIsAFaultAndHangsNobody) {
  options_.interval = absl::Milliseconds(1);
  options_.silence = absl::Milliseconds(300);
  Start();
  WaitFor([this] { return Faults()[0].empty() && monitor_->Readings()[0].sample.has_value(); });
  SetHangs(true);
  WaitFor([this] { return Faults()[0].find("does not answer") != std::string::npos; });
  EXPECT_FALSE(monitor_->Readings()[0].sample.has_value());
  EXPECT_FALSE(monitor_->Readings()[0].fault->ends_runs);
  const int changes = changes_;
  SetHangs(false);
  WaitFor([this] { return Faults()[0].empty(); });
  WaitFor([this, changes] { return changes_ > changes; });
  SetHangs(true);
  WaitFor([this] {
    std::lock_guard<std::mutex> lock(machine_->mutex);
    return machine_->hanging == 1;
  });
  monitor_->Stop();
  // The thread that was left behind ends when the driver answers after all.
  SetHangs(false);
  WaitFor([this] {
    std::lock_guard<std::mutex> lock(machine_->mutex);
    return machine_->hanging == 0;
  });
}

TEST_F(GpuMonitorTest, MemoryOfRanksThatHaveJustEndedIsNobodysFault) {
  machine_->samples[1].processes = {{{4242, int64_t{8} << 30, "other"}}};
  SetInUse({0});
  options_.release = absl::Hours(1);
  Start();
  EXPECT_THAT(Faults(), ElementsAre("", ""));
  SetInUse({});
  monitor_->Look(kPatience);
  EXPECT_THAT(Faults(), ElementsAre("", ""));
}

TEST_F(GpuMonitorTest, MemoryOfOthersIsAFault) {
  machine_->samples[1].processes = {{{4242, int64_t{8} << 30, "other"}}};
  Start();
  EXPECT_THAT(Faults(), ElementsAre(HasSubstr("process 4242"), ""));
}

TEST_F(GpuMonitorTest, ADriverThatCannotBeOpenedIsAFault) {
  options_.open = []() -> absl::StatusOr<std::unique_ptr<GpuSession>> {
    return absl::UnavailableError("the NVIDIA driver does not answer: Driver/library mismatch");
  };
  Start();
  EXPECT_THAT(Faults(), ElementsAre(HasSubstr("mismatch"), HasSubstr("mismatch")));
  EXPECT_EQ(changes_, 1);
}

TEST_F(GpuMonitorTest, TooOldADriverIsAFaultOfAll) {
  options_.unusable = "install a newer driver";
  Start();
  EXPECT_THAT(Faults(), ElementsAre("install a newer driver", "install a newer driver"));
}

// As a scraper sees it, without the lines of help and type.
std::vector<std::string> Series(const std::vector<GpuReading>& readings) {
  MetricsPage page(MetricExporter::kAgent);
  AddGpuMetrics(readings, "580.1", 1000, &page);
  std::vector<std::string> series;
  for (const absl::string_view line : absl::StrSplit(page.Text(), '\n', absl::SkipEmpty())) {
    if (line[0] != '#') series.emplace_back(line);
  }
  return series;
}

TEST(GpuMetrics, ShowWhatTheGpuSaysAndNothingElse) {
  GpuReading reading;
  reading.gpu = {3, "Fake GPU", "GPU-3", 1, ""};
  reading.age_seconds = 2;
  reading.xids = {{79, 2}};
  reading.fault = GpuFault{"lost", true};
  EXPECT_THAT(
      Series({reading}),
      ElementsAre("tercio_gpu_info{driver=\"580.1\",gpu=\"3\",model=\"Fake GPU\",uuid=\"GPU-3\"} 1",
                  "tercio_gpu_faulty{gpu=\"3\",uuid=\"GPU-3\"} 1",
                  "tercio_gpu_last_sample_timestamp_seconds{gpu=\"3\",uuid=\"GPU-3\"} 998",
                  "tercio_gpu_xid_errors_total{gpu=\"3\",uuid=\"GPU-3\",xid=\"79\"} 2"));
  reading.fault = std::nullopt;
  reading.sample.emplace();
  reading.sample->power_watts = 250.5;
  reading.sample->memory_used_bytes = 1024;
  reading.sample->ecc_uncorrected = 1;
  reading.sample->clock_reasons = 0x40;
  const std::vector<std::string> series = Series({reading});
  using ::testing::Contains;
  for (const char* line :
       {"faulty{gpu=\"3\",uuid=\"GPU-3\"} 0", "power_watts{gpu=\"3\",uuid=\"GPU-3\"} 250.5",
        "memory_bytes{gpu=\"3\",kind=\"used\",uuid=\"GPU-3\"} 1024",
        "ecc_errors_total{gpu=\"3\",kind=\"uncorrected\",uuid=\"GPU-3\"} 1",
        "clocks_limited{gpu=\"3\",reason=\"hardware_thermal_slowdown\",uuid=\"GPU-3\"} 1",
        "clocks_limited{gpu=\"3\",reason=\"power_cap\",uuid=\"GPU-3\"} 0"}) {
    EXPECT_THAT(series, Contains(std::string("tercio_gpu_") + line));
  }
  EXPECT_THAT(series, Not(Contains(HasSubstr("temperature"))));
  EXPECT_THAT(Series({}), IsEmpty());
}

}  // namespace
}  // namespace tercio::agent
