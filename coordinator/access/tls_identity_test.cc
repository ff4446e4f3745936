// Certificates that are read, checked and read again (common/security/tls_identity.h), made by an
// authority.
#include "common/security/tls_identity.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "coordinator/access/authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

class TlsIdentityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Authority::Create(directory_.path() + "/access", {"localhost"}, absl::Now()).ok());
    authority_ = *Authority::Open(directory_.path() + "/access");
    files_ = {directory_.path() + "/certificate.pem", directory_.path() + "/key.pem",
              directory_.path() + "/access/authority.pem"};
    key_ = MakeKey();
    Write(files_.key, key_);
    Write(files_.certificate, Certificate("first", absl::Now(), kDay));
  }

  static void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(WriteFileDurably(path, text, 0600).ok());
  }
  std::string Certificate(const std::string& name, absl::Time from, absl::Duration life) const {
    const std::string request = *MakeCertificateRequest(key_, name, {});
    return authority_->Issue(request, {name, "user", {}}, from, life)->pem;
  }
  std::string Refusal(TlsIdentity::KeyFile kind = TlsIdentity::KeyFile::kOwn) const {
    const auto loaded = TlsIdentity::Load(files_, kind);
    return std::string(loaded.status().message());
  }

  TempDir directory_;
  std::unique_ptr<Authority> authority_;
  std::string key_;
  TlsFiles files_;
};

TEST_F(TlsIdentityTest, ReadsAgainWhatHasChanged) {
  const auto identity = TlsIdentity::Load(files_, TlsIdentity::KeyFile::kOwn);
  ASSERT_TRUE(identity.ok()) << identity.status();
  const auto first = (*identity)->Current();
  EXPECT_EQ(first->facts.name, "first");
  EXPECT_EQ((*identity)->Current(), first);
  Write(files_.certificate, Certificate("second", absl::Now(), kDay));
  EXPECT_EQ((*identity)->Current()->facts.name, "second");
  EXPECT_NE((*identity)->Current()->version, first->version);
}

TEST_F(TlsIdentityTest, WhatCannotBeUsedLeavesTheOneBefore) {
  const auto identity = TlsIdentity::Load(files_, TlsIdentity::KeyFile::kOwn);
  ASSERT_TRUE(identity.ok());
  const auto first = (*identity)->Current();
  const std::string good = Certificate("second", absl::Now(), kDay);
  for (const std::string& bad :
       {std::string("text"), std::string(), good.substr(0, good.size() / 2),
        Certificate("late", absl::Now() - 2 * kDay, kDay)}) {
    Write(files_.certificate, bad);
    EXPECT_EQ((*identity)->Current(), first);
  }
  // Half of a pair, then the whole.
  Write(files_.certificate, good);
  Write(files_.key, MakeKey());
  EXPECT_EQ((*identity)->Current(), first);
  Write(files_.key, key_);
  EXPECT_EQ((*identity)->Current()->facts.name, "second");
}

TEST_F(TlsIdentityTest, TheModeOfANewKeyIsLookedAt) {
  const auto identity = TlsIdentity::Load(files_, TlsIdentity::KeyFile::kOwn);
  ASSERT_TRUE(identity.ok());
  Write(files_.certificate, Certificate("second", absl::Now(), kDay));
  ASSERT_TRUE(WriteFileDurably(files_.key, key_, 0644).ok());
  EXPECT_EQ((*identity)->Current()->facts.name, "first");
  Write(files_.key, key_);
  EXPECT_EQ((*identity)->Current()->facts.name, "second");
}

// Its files do not change when its time comes.
TEST_F(TlsIdentityTest, WhatIsNotValidYetIsTriedAgain) {
  const auto identity = TlsIdentity::Load(files_, TlsIdentity::KeyFile::kOwn, absl::ZeroDuration());
  ASSERT_TRUE(identity.ok());
  // Issued some minutes back for clocks that are behind: from 2 s on it is valid.
  Write(files_.certificate, Certificate("early", absl::Now() + absl::Seconds(302), kDay));
  EXPECT_EQ((*identity)->Current()->facts.name, "first");
  while ((*identity)->Current()->facts.name == "first") absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ((*identity)->Current()->facts.name, "early");
}

TEST_F(TlsIdentityTest, SaysWhichFileAndWhy) {
  Write(files_.key, MakeKey());
  EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat("the key ", files_.key,
                                                ": does not belong to the certificate")));
  Write(files_.key, "text");
  EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat("the key ", files_.key, ": contains no key")));
  Write(files_.key, key_);
  ASSERT_EQ(chmod(files_.key.c_str(), 0640), 0);
  EXPECT_THAT(Refusal(), HasSubstr("chmod 600 " + files_.key));
  EXPECT_EQ(Refusal(TlsIdentity::KeyFile::kForeign), "");
  ASSERT_EQ(chmod(files_.key.c_str(), 0600), 0);
  Write(files_.authority, "text");
  EXPECT_THAT(Refusal(), HasSubstr(files_.authority));
  files_.certificate += ".missing";
  EXPECT_THAT(Refusal(), HasSubstr(files_.certificate));
  files_.certificate.clear();
  EXPECT_THAT(Refusal(), HasSubstr("TLS needs all of"));
}

TEST_F(TlsIdentityTest, SaysBothTimes) {
  const absl::Time now = absl::Now();
  const auto day = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone());
  };
  Write(files_.certificate, Certificate("late", now - 20 * kDay, 10 * kDay));
  EXPECT_THAT(Refusal(), HasSubstr("it expired at " + day(now - 10 * kDay)));
  EXPECT_THAT(Refusal(), HasSubstr("this machine's clock says " + day(now)));
  Write(files_.certificate, Certificate("early", now + 10 * kDay, 10 * kDay));
  EXPECT_THAT(Refusal(), HasSubstr("it is valid from " + day(now + 10 * kDay - absl::Minutes(5))));
  EXPECT_THAT(Refusal(), HasSubstr("is the clock right?"));
}

}  // namespace
}  // namespace tercio::coordinator
