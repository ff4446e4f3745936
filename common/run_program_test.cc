#include "common/run_program.h"

#include "common/patient_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using testing::HasSubstr;

TEST(RunProgram, TakesWhatIsPrinted) {
  const auto text = RunProgram({"/bin/sh", "-c", "echo one; echo two"}, absl::Minutes(1));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "one\ntwo\n");
}

TEST(RunProgram, SaysHowItFailed) {
  const auto code = RunProgram({"/bin/sh", "-c", "exit 7"}, absl::Minutes(1));
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("code 7"));
  const auto signal = RunProgram({"/bin/sh", "-c", "kill -9 $$"}, absl::Minutes(1));
  EXPECT_THAT(std::string(signal.status().message()), HasSubstr("signal 9"));
  EXPECT_EQ(RunProgram({"/nowhere"}, absl::Minutes(1)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(RunProgram, EndsWhatDoesNotEnd) {
  for (const char* script : {"exec sleep 1000", "exec >&-; exec sleep 1000"}) {
    EXPECT_EQ(RunProgram({"/bin/sh", "-c", script}, absl::Milliseconds(200)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
}

TEST(CallWithin, ReturnsTheResultOrNothing) {
  EXPECT_EQ(CallWithin<int>(absl::Minutes(1), [] { return 3; }), 3);
  const auto gate = std::make_shared<std::promise<void>>();
  const auto waits = [gate] {
    gate->get_future().wait();
    return 4;
  };
  EXPECT_EQ(CallWithin<int>(absl::Milliseconds(50), waits), std::nullopt);
  gate->set_value();
}

}  // namespace
}  // namespace tercio
