#include "common/security/roles.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/access_service.pb.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job_service.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/snapshot_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"

namespace tercio {
namespace {

// Every call of all our services.
std::set<std::string> AllCalls() {
  std::set<std::string> calls;
  for (const google::protobuf::FileDescriptor* file :
       {v1::EnrollRequest::descriptor()->file(), v1::UploadMessage::descriptor()->file(),
        v1::SubmitRequest::descriptor()->file(), v1::AgentMessage::descriptor()->file(),
        v1::PutSnapshotMessage::descriptor()->file(), v1::TrainerMessage::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor* service = file->service(i);
      for (int j = 0; j < service->method_count(); ++j) {
        calls.insert(service->name() + "/" + service->method(j)->name());
      }
    }
  }
  return calls;
}

TEST(RolesTest, TheTableHoldsEveryCallAndNoOther) {
  std::set<std::string> listed;
  for (const Rule& rule : Rules()) {
    EXPECT_TRUE(listed.emplace(rule.call).second) << rule.call << " is there twice";
  }
  EXPECT_EQ(listed, AllCalls());
}

TEST(RolesTest, WhatChangesStateIsNoViewersCall) {
  for (const Rule& rule : Rules()) {
    if (rule.changes && rule.call != "AccessService/Renew") {
      EXPECT_FALSE(Allows(rule.least, Role::kViewer)) << rule.call;
    }
  }
}

TEST(RolesTest, PeopleAndAgentsKeepToTheirServices) {
  for (const Rule& rule : Rules()) {
    const std::string call(rule.call);
    const bool of_nodes = call.starts_with("NodeService/") || call.starts_with("Checkpoint") ||
                          call.starts_with("SnapshotService/");
    for (const Role role : {Role::kViewer, Role::kUser}) {
      if (of_nodes) {
        EXPECT_FALSE(Allows(rule.least, role)) << call;
      }
    }
    if (call.starts_with("JobService/") && call != "JobService/Version") {
      EXPECT_FALSE(Allows(rule.least, Role::kAgent)) << call;
      EXPECT_TRUE(Allows(rule.least, Role::kAdmin)) << call;
    }
    EXPECT_FALSE(Allows(rule.least, Role::kNone)) << call;
  }
}

TEST(RolesTest, Names) {
  for (const Role role : {Role::kViewer, Role::kUser, Role::kAdmin, Role::kAgent}) {
    EXPECT_EQ(RoleNamed(NameOf(role)), role);
  }
  for (const char* name : {"", "none", "Admin", "coordinator"}) {
    EXPECT_EQ(RoleNamed(name), Role::kNone) << name;
  }
  EXPECT_EQ(RuleOf("JobService/Missing"), nullptr);
}

}  // namespace
}  // namespace tercio
