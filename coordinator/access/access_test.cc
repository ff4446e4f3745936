// Authority, tokens, rates and the audit log.
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "common/security/channel.h"
#include "common/sha256.h"
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
  // The fingerprint alone is enough to find the authority behind it.
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

// What somebody with a token may put into a request.
std::string RequestWith(const KeyPointer& key, const std::string& address = "") {
  const RequestPointer request(X509_REQ_new());
  if (!address.empty()) {
    const NamesPointer names(sk_GENERAL_NAME_new_null());
    GENERAL_NAME* name = GENERAL_NAME_new();
    ASN1_OCTET_STRING* bytes = ASN1_OCTET_STRING_new();
    ASN1_OCTET_STRING_set(bytes, reinterpret_cast<const unsigned char*>(address.data()),
                          static_cast<int>(address.size()));
    GENERAL_NAME_set0_value(name, GEN_IPADD, bytes);
    sk_GENERAL_NAME_push(names.get(), name);
    STACK_OF(X509_EXTENSION)* extensions = nullptr;
    X509V3_add1_i2d(&extensions, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT);
    X509_REQ_add_extensions(request.get(), extensions);
    sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
  }
  X509_REQ_set_pubkey(request.get(), key.get());
  X509_REQ_sign(request.get(), key.get(), EVP_sha256());
  const BioPointer text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509_REQ(text.get(), request.get());
  return TextOf(text.get());
}

TEST_F(AuthorityTest, AnAddressOfAnotherLengthIsNone) {
  const KeyPointer key(EVP_EC_gen("P-256"));
  EXPECT_THAT(*NamesOfRequest(RequestWith(key, std::string("\x0a\x01\x02\x03", 4))),
              ElementsAre("10.1.2.3"));
  for (const size_t size : {1, 3, 5, 15, 17}) {
    EXPECT_THAT(*NamesOfRequest(RequestWith(key, std::string(size, '\x0a'))), SizeIs(0)) << size;
  }
}

TEST_F(AuthorityTest, SignsGoodKeysOnly) {
  const auto issue = [this](EVP_PKEY* made) {
    const KeyPointer key(made);
    return authority_->Issue(RequestWith(key), {"bob", "user", {}}, kNow, kDay).status();
  };
  EXPECT_TRUE(issue(EVP_EC_gen("P-384")).ok());
  EXPECT_TRUE(issue(EVP_RSA_gen(2048)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(issue(EVP_RSA_gen(1024))));
  EXPECT_TRUE(absl::IsInvalidArgument(issue(EVP_EC_gen("P-192"))));
}

TEST_F(AuthorityTest, ANameThatNoCertificateCanBearIsRefused) {
  const std::string request = *MakeCertificateRequest(MakeKey(), "x", {});
  for (const std::string& name : {std::string(65, 'a'), std::string("ann\0x", 5)}) {
    const auto issued = authority_->Issue(request, {name, "user", {}}, kNow, kDay);
    EXPECT_TRUE(absl::IsInvalidArgument(issued.status())) << issued.status();
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
    auto made = AccessStore::Create(directory_.path() + "/access.sqlite");
    ASSERT_TRUE(made.ok()) << made.status();
    store_ = *std::move(made);
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
  EXPECT_THAT(*store_->Revoked(), ElementsAre("2"));
  EXPECT_EQ(*store_->Revoke("bob", kNow), 2);  // a certificate and a token
  EXPECT_THAT(*store_->Revoked(), ElementsAre("1", "2"));
  EXPECT_THAT(*store_->Tokens(kNow), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(store_->Revoke("eve", kNow).status()));
  // What was revoked has no successors.
  EXPECT_TRUE(absl::IsUnauthenticated(store_->AddSuccessor("1", Certificate("3", "bob"))));
  EXPECT_TRUE(absl::IsUnauthenticated(store_->AddSuccessor("unknown", Certificate("3", "bob"))));
}

TEST_F(AccessStoreTest, WhatHasExpiredCanStillBeRevokedAndIsForgottenOneDay) {
  Add("secret", "bob");
  ASSERT_TRUE(store_->Spend(*store_->FindToken("secret", kNow), Certificate("1", "bob")).ok());
  // With it a connection may be open that was made before.
  EXPECT_EQ(*store_->Revoke("bob", kNow + 10 * kDay), 1);
  EXPECT_THAT(*store_->Revoked(), ElementsAre("1"));
  EXPECT_THAT(*store_->RevokedAgents(kNow - 1000 * kDay), SizeIs(0)) << "people are none";
  const auto add_at = [this](absl::Time time, const std::string& secret) {
    const TokenRecord token = {0, "user", "carl", time, time + absl::Hours(1), 1};
    ASSERT_TRUE(store_->AddToken(token, secret).ok());
    CertificateRecord certificate = Certificate(secret, "carl");
    certificate.issued = time;
    certificate.expires = time + kDay;
    ASSERT_TRUE(store_->Spend(*store_->FindToken(secret, time), certificate).ok());
  };
  add_at(kNow + 100 * kDay, "2");
  EXPECT_THAT(*store_->Revoked(), ElementsAre("1"));
  add_at(kNow + 400 * kDay, "3");
  EXPECT_THAT(*store_->Revoked(), SizeIs(0));
}

TEST_F(AccessStoreTest, NobodyGetsCertificatesWithoutEnd) {
  Add("secret", "bob");
  ASSERT_TRUE(store_->Spend(*store_->FindToken("secret", kNow), Certificate("0", "bob")).ok());
  for (int64_t i = 1; i < AccessStore::kMostOfOneName; ++i) {
    ASSERT_TRUE(store_->AddSuccessor("0", Certificate(absl::StrCat(i), "bob")).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store_->AddSuccessor("0", Certificate("x", "bob"))));
  // Those that have expired do not count.
  CertificateRecord later = Certificate("y", "bob");
  later.issued = kNow + 2 * kDay;
  later.expires = kNow + 3 * kDay;
  EXPECT_TRUE(store_->AddSuccessor("0", later).ok());
}

TEST_F(AccessStoreTest, ATokenIsRevokedByItsNumber) {
  Add("secret", "");
  const int64_t id = store_->Tokens(kNow)->front().id;
  EXPECT_TRUE(store_->RevokeToken(id).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(store_->FindToken("secret", kNow).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->RevokeToken(id + 1)));
}

TEST_F(AccessStoreTest, ATokenKeepsThePatternsOfItsNodes) {
  TokenRecord token = {0, "agent", "", kNow, kNow + absl::Hours(1), 2};
  token.nodes = "gpu-*,login-?";
  ASSERT_TRUE(store_->AddToken(token, "secret").ok());
  EXPECT_EQ(store_->FindToken("secret", kNow)->nodes, "gpu-*,login-?");
  EXPECT_EQ(store_->Tokens(kNow)->front().nodes, "gpu-*,login-?");
}

// Before tokens had patterns.
TEST(AccessStoreFileTest, AFileOfTheFirstFormatIsBroughtUpToDate) {
  const TempDir directory;
  const std::string path = directory.path() + "/access.sqlite";
  sqlite3* file = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &file), SQLITE_OK);
  const std::string sql = absl::StrCat(
      "CREATE TABLE tokens(id INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT, role TEXT, name "
      "TEXT, "
      "created INTEGER, expires INTEGER, uses_left INTEGER);"
      "CREATE TABLE certificates(serial TEXT PRIMARY KEY, name TEXT, role TEXT, issued INTEGER, "
      "expires INTEGER, address TEXT, revoked INTEGER DEFAULT 0) WITHOUT ROWID;"
      "INSERT INTO tokens VALUES(3, '",
      Sha256Hex("secret"), "', 'agent', '', 0, ", absl::ToUnixSeconds(kNow + kDay),
      ", 2);"
      "INSERT INTO certificates VALUES('7', 'one', 'agent', 0, ",
      absl::ToUnixSeconds(kNow + kDay), ", '', 5); PRAGMA user_version=1;");
  ASSERT_EQ(sqlite3_exec(file, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(file);
  for (int i = 0; i < 2; ++i) {
    const auto store = AccessStore::Open(path);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto token = (*store)->FindToken("secret", kNow);
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(token->id, 3);
    EXPECT_EQ(token->nodes, "");
    EXPECT_THAT(*(*store)->Revoked(), ElementsAre("7"));
  }
}

TEST(AccessStoreFileTest, WithoutItsFileNothingIsKnownToBeRevoked) {
  const TempDir directory;
  const std::string path = directory.path() + "/access.sqlite";
  const auto opened = AccessStore::Open(path);
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status()));
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr(path + " is missing"));
  EXPECT_FALSE(PathExists(path));
}

TEST_F(AccessStoreTest, ATokenForAnyNodeIsNoneForOneThatIsThere) {
  Add("named", "one");
  Add("any", "", 9);
  const TokenRecord any = *store_->FindToken("any", kNow);
  // Two at the same instant, of the same name: each has found the token good.
  EXPECT_TRUE(store_->Spend(any, Certificate("1", "one")).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Spend(any, Certificate("2", "one"))));
  EXPECT_EQ(store_->FindToken("any", kNow)->uses_left, 8);  // not spent
  EXPECT_TRUE(store_->Spend(any, Certificate("3", "two")).ok());
  EXPECT_TRUE(store_->Spend(*store_->FindToken("named", kNow), Certificate("4", "one")).ok());
  ASSERT_TRUE(store_->Revoke("one", kNow).ok());
  EXPECT_TRUE(store_->Spend(any, Certificate("5", "one")).ok());
  CertificateRecord later = Certificate("6", "one");
  later.issued = kNow + 2 * kDay;
  EXPECT_TRUE(store_->Spend(any, later).ok());  // the one before has expired
}

TEST_F(AccessStoreTest, ANodeThatIsGoneLeavesItsNameToTheNext) {
  Add("any", "", 9);
  const TokenRecord any = *store_->FindToken("any", kNow);
  const auto agent = [](const std::string& serial, const std::string& name) {
    CertificateRecord certificate = Certificate(serial, name);
    certificate.role = "agent";
    return certificate;
  };
  const absl::Time before = kNow - absl::Minutes(1);
  const absl::Time after = kNow + absl::Seconds(1);
  ASSERT_TRUE(store_->Spend(any, agent("1", "one"), before).ok());
  // It has had no time to come.
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Spend(any, agent("2", "one"), before)));
  EXPECT_TRUE(store_->Revoked()->empty());
  EXPECT_TRUE(store_->Spend(any, agent("3", "one"), after).ok());
  EXPECT_EQ(*store_->Revoked(), std::set<std::string>{"1"});
  EXPECT_EQ(*store_->RevokedAgents(kNow), std::set<std::string>{"1"});
  EXPECT_THAT(*store_->RevokedAgents(kNow + 1000 * kDay), SizeIs(0)) << "nobody can use it";
  // Never a person's.
  Add("ann", "ann");
  ASSERT_TRUE(store_->Spend(*store_->FindToken("ann", kNow), Certificate("4", "ann")).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Spend(any, agent("5", "ann"), after)));
  EXPECT_EQ(*store_->Revoked(), std::set<std::string>{"1"});
}

TEST_F(AccessStoreTest, SeesWhatAnotherProcessChanges) {
  auto other = AccessStore::Open(directory_.path() + "/access.sqlite");
  ASSERT_TRUE(other.ok());
  const std::string before = *store_->Version();
  EXPECT_EQ(*store_->Version(), before);
  ASSERT_TRUE((*other)->AddToken({0, "user", "bob", kNow, kNow + kDay, 1}, "secret").ok());
  EXPECT_NE(*store_->Version(), before);
}

TEST_F(AccessStoreTest, SeesWhatItChangesItself) {
  const std::string before = *store_->Version();
  Add("secret", "bob");
  EXPECT_NE(*store_->Version(), before);
}

// Somebody restores a back-up under a running coordinator, and revokes there.
TEST_F(AccessStoreTest, SeesAnotherFileInItsPlace) {
  const std::string path = directory_.path() + "/access.sqlite";
  Add("secret", "bob");
  ASSERT_TRUE(store_->Spend(*store_->FindToken("secret", kNow), Certificate("1", "bob")).ok());
  const std::string before = *store_->Version();
  ASSERT_EQ(rename(path.c_str(), (path + ".gone").c_str()), 0);
  EXPECT_THAT(std::string(store_->Version().status().message()), HasSubstr("is missing"));
  EXPECT_TRUE(store_->Revoked().ok()) << "what is known stays so";
  {
    auto other = AccessStore::Create(path);
    ASSERT_TRUE(other.ok()) << other.status();
    ASSERT_TRUE((*other)->AddToken({0, "user", "bob", kNow, kNow + kDay, 1}, "secret").ok());
    ASSERT_TRUE(
        (*other)->Spend(*(*other)->FindToken("secret", kNow), Certificate("2", "bob")).ok());
    ASSERT_EQ(*(*other)->Revoke("bob", kNow), 1);
  }
  EXPECT_NE(*store_->Version(), before);
  EXPECT_THAT(*store_->Revoked(), ElementsAre("2"));
}

TEST(RateLimiterTest, BurstThenRate) {
  RateLimiter limiter({3, 2});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Take("a", kNow));
  EXPECT_FALSE(limiter.Take("a", kNow));
  EXPECT_TRUE(limiter.Take("b", kNow));  // another caller
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

TEST(AuditLogTest, CallersNeitherFillItNorSpeakToATerminal) {
  TempDir directory;
  const std::string path = directory.path() + "/audit.log";
  AuditLog log(path, AuditLog::Options());
  AuditEntry entry;
  entry.who = std::string(1 << 20, 'w');
  entry.subject =
      "\x1b[2J\xc2\x9b"
      "31m\x7f\u202e" +
      std::string(1 << 20, 's');
  entry.reason = std::string(1 << 20, 'r');
  log.Write(entry);
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_LT(lines[0].size(), 1200);
  for (const char c : lines[0]) EXPECT_TRUE(c >= ' ' && c < 0x7f) << static_cast<int>(c);
  const std::string subject = nlohmann::json::parse(lines[0])["subject"];
  EXPECT_TRUE(
      subject.starts_with("\x1b[2J\xc2\x9b"
                          "31m\x7f\u202e"));
}

TEST(AuditLogTest, AFileThatWasRemovedIsMadeAnew) {
  TempDir directory;
  const std::string path = directory.path() + "/audit.log";
  ASSERT_TRUE(WriteFileDurably(path, "", 0644).ok());
  AuditLog log(path, AuditLog::Options());
  log.Write({});
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);  // whatever it was before
  ASSERT_EQ(unlink(path.c_str()), 0);
  log.Write({});
  EXPECT_THAT(LinesOf(path), SizeIs(1));
  EXPECT_EQ(log.lost(), 0);
}

TEST(AuditLogTest, AFullDiskLosesLinesAndNothingElse) {
  AuditLog log("/dev/full", {1000, 2});
  log.Write({});
  log.Write({});
  EXPECT_EQ(log.lost(), 2);
}

}  // namespace
}  // namespace tercio::coordinator
