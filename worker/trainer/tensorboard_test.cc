#include "worker/trainer/tensorboard.h"

#include <sys/resource.h>

#include <csignal>

#include "absl/strings/match.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gtest/gtest.h"
#include "plan/quality.h"
#include "worker/trainer/event_record.h"

namespace tercio::trainer {
namespace {

TEST(EventRecord, ChecksumsAreThoseOfTheStandard) {
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

TEST(EventRecord, FirstRecordAsTensorFlowWritesIt) {
  // Length 24, its checksum, wall_time 0, step 0, file_version.
  const std::string record = VersionRecord(0);
  ASSERT_EQ(record.size(), 8u + 4 + 26 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), std::string("\x09\0\0\0\0\0\0\0\0", 9));
  EXPECT_EQ(record.substr(21, 2), std::string("\x10\0", 2));
  EXPECT_EQ(record.substr(23, 15),
            "\x1a\x0d"
            "brain.Event:2");
}

// The message of a record, behind its length and before its checksum.
std::string EventOfRecord(const std::string& record) {
  return record.substr(12, record.size() - 16);
}

TEST(EventRecord, RecordsHaveTheFormThatTensorFlowPublishes) {
  // Event: wall_time = 1, step = 2, summary = 5, session_log = 7.
  const std::string begin("\x09\0\0\0\0\0\0\xf8\x3f\x10\x03", 11);
  // SessionLog: status = 1 (START = 1).
  EXPECT_EQ(EventOfRecord(StartRecord(1.5, 3)), begin + "\x3a\x02\x08\x01");
  // Summary: value = 1; Value: tag = 1, simple_value = 2. A zero is written, too.
  EXPECT_EQ(EventOfRecord(ScalarsRecord(1.5, 3, {{"loss", 0.0}, {"b", 2.5}})),
            begin + std::string("\x2a\x17"
                                "\x0a\x0b\x0a\x04loss\x15\0\0\0\0"
                                "\x0a\x08\x0a\x01\x62\x15\0\0\x20\x40",
                                25));
  // Value: tensor = 8 (dtype = 1, tensor_shape = 2, string_val = 8), metadata = 9 (plugin_data = 1,
  // data_class = 4).
  EXPECT_EQ(EventOfRecord(TextRecord(1.5, 3, "note", "hello")),
            begin +
                "\x2a\x25\x0a\x23\x0a\x04note"
                "\x42\x0f\x08\x07\x12\x04\x12\x02\x08\x01\x42\x05hello"
                "\x4a\x0a\x0a\x06\x0a\x04text\x20\x02");
}

v1::TrainerAssignment AssignmentFor(const std::string& directory, int64_t resume_step) {
  v1::TrainerAssignment assignment;
  assignment.mutable_spec()->set_name("small");
  assignment.mutable_spec()->set_tensorboard(directory);
  assignment.set_resume_step(resume_step);
  return assignment;
}

v1::RunId RunOf(const std::string& job, int attempt) {
  v1::RunId run;
  run.set_job_id(job);
  run.set_attempt(attempt);
  return run;
}

void WriteSteps(const std::string& directory, const std::string& job, int attempt, int64_t first,
                int64_t last) {
  const auto writer =
      TensorBoardWriter::Start(AssignmentFor(directory, first - 1), RunOf(job, attempt));
  for (int64_t i = first; i <= last; ++i) {
    v1::TrainerStep step;
    step.mutable_record()->set_step(i);
    step.mutable_record()->set_loss(1.0 / static_cast<double>(i));
    step.set_tokens_per_second(1000);
    writer->Add(step);
  }
}

std::vector<std::string> EventFiles(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string& name : ListDirectory(directory)) {
    if (absl::StartsWith(name, "events.out.tfevents.")) files.push_back(name);
  }
  return files;
}

// The steps that a reader of this file's records sees; -1 before a start record. Checks every
// checksum.
std::vector<int64_t> StepsOf(const std::string& path) {
  const std::string bytes = *ReadFile(path);
  std::vector<int64_t> steps;
  size_t at = 0;
  const auto word = [&](size_t place, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i)
      value |= uint64_t{static_cast<uint8_t>(bytes[place + i])} << (8 * i);
    return value;
  };
  while (at < bytes.size()) {
    const uint64_t length = word(at, 8);
    const uint32_t crc = Crc32c(std::string_view(bytes).substr(at + 12, length));
    EXPECT_EQ(word(at + 12 + length, 4), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
    steps.push_back(static_cast<uint8_t>(bytes[at + 12 + 10]));  // small steps are one byte
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size());
  return steps;
}

TEST(TensorBoard, WithoutADirectoryThereIsNone) {
  EXPECT_EQ(TensorBoardWriter::Start(AssignmentFor("", 0), RunOf("job-1", 1)), nullptr);
}

TEST(TensorBoard, AttemptsHaveFilesInTheirOrder) {
  const TempDir scratch;
  const std::string directory = scratch.path() + "/new/events";
  WriteSteps(directory, "job-1", 1, 1, 7);
  WriteSteps(directory, "job-1", 2, 5, 9);
  const std::vector<std::string> files = EventFiles(directory);
  ASSERT_EQ(files.size(), 2u);
  // Version, start, configuration; then the steps.
  EXPECT_EQ(StepsOf(directory + "/" + files[0]),
            (std::vector<int64_t>{0, 1, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(StepsOf(directory + "/" + files[1]), (std::vector<int64_t>{0, 5, 5, 6, 7, 8, 9}));
}

TEST(TensorBoard, ScoresOfClassifiersAndOfTestData) {
  const TempDir scratch;
  {
    const auto writer = TensorBoardWriter::Start(AssignmentFor(scratch.path(), 0), RunOf("j", 1));
    v1::TrainerStep step;
    step.mutable_record()->set_step(4);
    step.mutable_record()->set_validation_loss(0.5);
    step.mutable_record()->set_validation_recall(0.25);
    writer->Add(step);
    v1::Evaluation test;
    test.set_step(3);
    writer->AddTest(test);
    *test.mutable_confusion() = plan::EmptyConfusion(2);
    writer->AddTest(test);
  }
  const std::vector<std::string> files = EventFiles(scratch.path());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(StepsOf(scratch.path() + "/" + files[0]), (std::vector<int64_t>{0, 1, 0, 4, 3, 3}));
  const std::string bytes = *ReadFile(scratch.path() + "/" + files[0]);
  for (const char* tag : {"validation/recall", "test/loss", "test/perplexity", "test/accuracy",
                          "test/precision", "test/recall", "test/f1"}) {
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  }
  EXPECT_EQ(bytes.find("validation/f1"), std::string::npos) << "it was not asked for";
}

TEST(TensorBoard, AnotherJobGetsAFolderOfItsOwn) {
  const TempDir scratch;
  WriteSteps(scratch.path(), "job-1", 1, 1, 2);
  WriteSteps(scratch.path(), "job-2", 1, 1, 2);
  EXPECT_EQ(EventFiles(scratch.path()).size(), 1u);
  EXPECT_EQ(EventFiles(scratch.path() + "/job-2").size(), 1u);
}

TEST(TensorBoard, ADirectoryThatCannotBeMadeStopsNothing) {
  const TempDir scratch;
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/file", "x").ok());
  WriteSteps(scratch.path() + "/file/events", "job-1", 1, 1, 100);  // ends
  EXPECT_EQ(*ReadFile(scratch.path() + "/file"), "x");
}

// As on a full disk: no file of this process may grow beyond some bytes, for as long as this lives.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(TensorBoard, AFullDiskLeavesWholeRecords) {
  const TempDir scratch;
  {
    const SmallFiles full(1500);
    WriteSteps(scratch.path(), "job-1", 1, 1, 50);
  }
  const std::vector<std::string> files = EventFiles(scratch.path());
  ASSERT_EQ(files.size(), 1u);
  const std::vector<int64_t> steps = StepsOf(scratch.path() + "/" + files[0]);
  EXPECT_GT(steps.size(), 4u);
  EXPECT_LT(steps.size(), 50u);
}

}  // namespace
}  // namespace tercio::trainer
