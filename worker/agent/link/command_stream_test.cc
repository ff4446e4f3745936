#include "worker/agent/link/command_stream.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;

v1::TrainerCommand Save() {
  v1::TrainerCommand command;
  command.mutable_save_now()->set_then_stop(true);
  return command;
}

v1::TrainerCommand Assignment() {
  v1::TrainerCommand command;
  command.mutable_assignment()->set_resume_step(7);
  return command;
}

v1::TrainerCommand Received() {
  v1::TrainerCommand command;
  command.set_received(3);
  return command;
}

TEST(CommandStream, TheAssignmentComesBeforeWhatWasSentWhileItWasMade) {
  std::vector<std::string> written;
  CommandStream stream([&](const v1::TrainerCommand& command) {
    written.push_back(command.has_assignment() ? "assignment"
                      : command.has_save_now() ? "save"
                                               : "received");
  });
  stream.Send(Save());
  EXPECT_THAT(written, ElementsAre());
  stream.Open({Assignment(), Received()});
  EXPECT_THAT(written, ElementsAre("assignment", "received", "save"));
  stream.Send(Save());
  EXPECT_THAT(written, ElementsAre("assignment", "received", "save", "save"));
}

}  // namespace
}  // namespace tercio::agent
