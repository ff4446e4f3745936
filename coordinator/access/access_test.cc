// Authority, tokens, rates and the audit log.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "coordinator/access/access_store.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authority.h"
#include "coordinator/access/rate_limiter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
constexpr absl::Duration kDay = absl::Hours(24);

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class AuthorityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Authority::Create(Directory(), {"train.example", "10.1.2.3"}, absl::Now()).ok());
    auto opened = Authority::Open(Directory());
    ASSERT_TRUE(opened.ok()) << opened.status();
    authority_ = *std::move(opened);
  }
  std::string Directory() const { return directory_.path() + "/access"; }

  TempDir directory_;
  std::unique_ptr<Authority> authority_;
};

TEST_F(AuthorityTest, TheCoordinatorsOwnCertificate) {
  const auto text = ReadFile(Authority::CoordinatorFiles(Directory()).certificate);
  ASSERT_TRUE(text.ok());
  const auto facts = ReadCertificate(*text);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->role, kCoordinatorRole);
  EXPECT_THAT(facts->names, ElementsAre("train.example", "10.1.2.3"));
  // Who has the fingerprint alone finds the authority behind it.
  EXPECT_THAT(*text, HasSubstr(authority_->certificate()));
  EXPECT_TRUE(absl::IsAlreadyExists(Authority::Create(Directory(), {}, absl::Now())));
}

TEST_F(AuthorityTest, NameAndRoleAreTheAuthoritysWords) {
  const std::string key = MakeKey();
  const auto request = MakeCertificateRequest(key, "admin", {"coordinator.example"});
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(*NamesOfRequest(*request), ElementsAre("coordinator.example"));
  const auto issued = authority_->Issue(*request, {"bob", "user", {}}, kNow, kDay);
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_EQ(issued->facts.name, "bob");
  EXPECT_EQ(issued->facts.role, "user");
  EXPECT_THAT(issued->facts.names, SizeIs(0));
  EXPECT_EQ(issued->facts.not_after, kNow + kDay);
  EXPECT_LT(issued->facts.not_before, kNow);  // clocks differ
  EXPECT_TRUE(CheckKeyBelongs(issued->pem, key).ok());
  EXPECT_FALSE(CheckKeyBelongs(issued->pem, MakeKey()).ok());
}

TEST_F(AuthorityTest, RefusesRequestsThatAreNone) {
  std::string request = *MakeCertificateRequest(MakeKey(), "x", {});
  // Another key's signature: nobody gets a certificate for a key that they do not have.
  const size_t middle = request.size() / 3;
  request[middle] = request[middle] == 'A' ? 'B' : 'A';
  for (const std::string& bad : {std::string("text"), std::string(), request}) {
    const auto issued = authority_->Issue(bad, {"bob", "user", {}}, kNow, kDay);
    EXPECT_EQ(issued.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(AuthorityTest, OthersMayNotReadItsKey) {
  const std::string key = Directory() + "/authority.key";
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  const auto opened = Authority::Open(Directory());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("chmod 600 " + key));
}

class AccessStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = AccessStore::Open(directory_.path() + "/access.sqlite");
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  void Add(const std::string& secret, const std::string& name, int uses = 1) {
    const TokenRecord token = {0, "user", name, kNow, kNow + absl::Hours(1), uses};
    ASSERT_TRUE(store_->AddToken(token, secret).ok());
  }
  static CertificateRecord Certificate(const std::string& serial, const std::string& name) {
    return {serial, name, "user", kNow, kNow + kDay, "10.0.0.1", false};
  }

  TempDir directory_;
  std::unique_ptr<AccessStore> store_;
};

TEST_F(AccessStoreTest, ATokenIsSpentOnce) {
  Add("secret", "bob");
  const auto token = store_->FindToken("secret", kNow);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->name, "bob");
  // Two found it at the same time: one gets a certificate.
  EXPECT_TRUE(store_->Spend(*token, Certificate("1", "bob")).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(store_->Spend(*token, Certificate("2", "bob"))));
  EXPECT_TRUE(absl::IsUnauthenticated(store_->FindToken("secret", kNow).status()));
  EXPECT_THAT(*store_->Certificates(kNow), SizeIs(1));
}

TEST_F(AccessStoreTest, UnknownUsedAndOldSoundAlike) {
  Add("used", "bob");
  ASSERT_TRUE(store_->Spend(*store_->FindToken("used", kNow), Certificate("1", "bob")).ok());
  Add("old", "bob");
  const std::string unknown(store_->FindToken("no", kNow).status().message());
  EXPECT_EQ(store_->FindToken("used", kNow).status().message(), unknown);
  EXPECT_EQ(store_->FindToken("old", kNow + absl::Hours(2)).status().message(), unknown);
}

TEST_F(AccessStoreTest, SecretsAreNotKept) {
  Add("a-very-secret-word", "bob");
  store_ = nullptr;
  const auto file = ReadFile(directory_.path() + "/access.sqlite");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(*file, Not(HasSubstr("a-very-secret-word")));
  struct stat info = {};
  ASSERT_EQ(stat((directory_.path() + "/access.sqlite").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(AccessStoreTest, RevokesAllOfANameOrOneNumber) {
  Add("first", "bob", 2);
  const auto token = store_->FindToken("first", kNow);
  ASSERT_TRUE(store_->Spend(*token, Certificate("1", "bob")).ok());
  ASSERT_TRUE(store_->Spend(*token, Certificate("2", "bob")).ok());
  Add("second", "bob");
  Add("others", "carl");
  EXPECT_EQ(*store_->Revoke("2", kNow), 1);
  EXPECT_THAT(*store_->Revoked(kNow), ElementsAre("2"));
  EXPECT_EQ(*store_->Revoke("bob", kNow), 2);  // a certificate and a token
  EXPECT_THAT(*store_->Revoked(kNow), ElementsAre("1", "2"));
  EXPECT_THAT(*store_->Tokens(kNow), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(store_->Revoke("eve", kNow).status()));
  // What was revoked has no successors.
  EXPECT_TRUE(absl::IsUnauthenticated(store_->AddSuccessor("1", Certificate("3", "bob"))));
  EXPECT_TRUE(absl::IsUnauthenticated(store_->AddSuccessor("unknown", Certificate("3", "bob"))));
  // Nor need it be remembered for ever.
  EXPECT_THAT(*store_->Revoked(kNow + 2 * kDay), SizeIs(0));
}

TEST_F(AccessStoreTest, SeesWhatAnotherProcessChanges) {
  auto other = AccessStore::Open(directory_.path() + "/access.sqlite");
  ASSERT_TRUE(other.ok());
  const int64_t before = *store_->DataVersion();
  EXPECT_EQ(*store_->DataVersion(), before);
  ASSERT_TRUE((*other)->AddToken({0, "user", "bob", kNow, kNow + kDay, 1}, "secret").ok());
  EXPECT_NE(*store_->DataVersion(), before);
}

TEST(RateLimiterTest, BurstThenRate) {
  RateLimiter limiter({3, 2});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Take("a", kNow));
  EXPECT_FALSE(limiter.Take("a", kNow));
  EXPECT_TRUE(limiter.Take("b", kNow));  // of somebody else
  EXPECT_TRUE(limiter.Take("a", kNow + absl::Seconds(0.6)));
  EXPECT_FALSE(limiter.Take("a", kNow + absl::Seconds(0.7)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Take("a", kNow + absl::Hours(1)));
  EXPECT_FALSE(limiter.Take("a", kNow + absl::Hours(1)));
}

TEST(RateLimiterTest, StrangersDoNotFillTheMemory) {
  RateLimiter limiter({1, 0});
  for (size_t i = 0; i < RateLimiter::kMostKeys; ++i) {
    EXPECT_TRUE(limiter.Take(absl::StrCat(i), kNow + absl::Seconds(static_cast<double>(i))));
  }
  const absl::Time later = kNow + absl::Hours(2);
  EXPECT_TRUE(limiter.Take("one more", later));
  EXPECT_FALSE(limiter.Take("one more", later));
  EXPECT_FALSE(limiter.Take("1", later));  // still known
  EXPECT_TRUE(limiter.Take("0", later));   // the oldest was forgotten
}

TEST(AuditLogTest, WholeLinesInFilesOfBoundedSize) {
  TempDir directory;
  const std::string path = directory.path() + "/audit.log";
  AuditLog log(path, {1000, 2});
  AuditEntry entry;
  entry.who = "bob\n\xff\"";  // whatever a certificate says
  entry.call = "JobService/Submit";
  entry.outcome = "ok";
  for (int i = 0; i < 40; ++i) {
    entry.subject = absl::StrCat("job-", i);
    log.Write(entry);
  }
  EXPECT_EQ(log.lost(), 0);
  EXPECT_THAT(ListDirectory(directory.path()),
              ElementsAre("audit.log", "audit.log.1", "audit.log.2"));
  for (const char* end : {"", ".1", ".2"}) {
    const std::vector<std::string> lines = LinesOf(path + end);
    EXPECT_GT(lines.size(), 0);
    for (const std::string& line : lines) {
      EXPECT_EQ(nlohmann::json::parse(line)["call"], "JobService/Submit");
    }
    struct stat info = {};
    ASSERT_EQ(stat((path + end).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600);
    EXPECT_LE(info.st_size, 1000);
  }
  EXPECT_EQ(nlohmann::json::parse(LinesOf(path).back())["subject"], "job-39");
}

TEST(AuditLogTest, AFullDiskLosesLinesAndNothingElse) {
  AuditLog log("/dev/full", {1000, 2});
  log.Write({});
  log.Write({});
  EXPECT_EQ(log.lost(), 2);
}

}  // namespace
}  // namespace tercio::coordinator
