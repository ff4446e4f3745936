#include "coordinator/access/access_commands.h"

#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/log.h"
#include "common/security/certificate.h"
#include "common/security/join_token.h"
#include "common/security/roles.h"
#include "common/status_macros.h"
#include "coordinator/access/access.h"
#include "coordinator/access/access_store.h"
#include "coordinator/access/authority.h"
#include "coordinator/access/enroll_service.h"
#include "coordinator/access/node_patterns.h"
#include "nlohmann/json.hpp"

namespace tercio::coordinator {
namespace {

// 128 bits cannot be guessed, however often the enrolment port is tried.
constexpr int kSecretBytes = 16;

struct Options {
  std::string state_dir;
  std::vector<std::string> hosts;
  // The first token is for an agent: people come later and have names.
  std::string role = "agent";
  std::string name;
  double ttl_seconds = 3600;
  int64_t uses = 1;
  std::string nodes;
  std::string revoked;
  int64_t revoked_token = 0;
  std::string output;
  bool json() const { return output == "json"; }
};

std::string Utc(absl::Time time) {
  // Operators compare these times with logs of other machines, so the zone is fixed.
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string RandomSecret() {
  std::array<unsigned char, kSecretBytes> bytes;
  // A token is as good as a password while it lives, hence OpenSSL's generator for secrets.
  TERCIO_CHECK_EQ(RAND_bytes(bytes.data(), bytes.size()), 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void Print(const nlohmann::ordered_json& value) { std::printf("%s\n", value.dump(2).c_str()); }

// When root runs this, the files go to the owner of the state directory, the user that the
// coordinator runs as.
absl::Status GiveToOwner(const std::string& state_dir, const std::string& directory) {
  struct stat info = {};
  // Without root the files belong to the caller already.
  if (geteuid() != 0 || stat(state_dir.c_str(), &info) != 0 || info.st_uid == 0) {
    return absl::OkStatus();
  }
  std::vector<std::string> paths = {directory};
  for (const std::string& name : ListDirectory(directory)) paths.push_back(directory + "/" + name);
  for (const std::string& path : paths) {
    // A link is not followed: root must not give away a file that somebody has linked to.
    if (lchown(path.c_str(), info.st_uid, info.st_gid) != 0) {
      return FileError(errno, "cannot set the state directory's owner on", path);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AccessStore>> OpenStore(const Options& options) {
  // An error of SQLite about a missing file would not say what to do.
  const std::string directory = Access::DirectoryOf(options.state_dir);
  if (!PathExists(directory)) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.state_dir,
                     " has no authority; create one with `tercio-coordinator init --state-dir ",
                     options.state_dir, "`"));
  }
  return AccessStore::Open(directory + "/access.sqlite");
}

// Checks which nodes a token may enrol.
absl::Status CheckTokenOptions(const Options& options) {
  const bool is_agents = options.role == NameOf(Role::kAgent);
  if (options.name.empty() && !is_agents) {
    return absl::InvalidArgumentError(
        // A certificate of a person without a name could not be revoked or recognised in the log.
        absl::StrCat("a token with role ", options.role, " needs --name: the person it is for"));
  }
  if (!options.name.empty()) TERCIO_RETURN_IF_ERROR(CheckName(options.name));
  if (!options.nodes.empty()) {
    TERCIO_RETURN_IF_ERROR(CheckNodePatterns(options.nodes));
    // A token with a name has no choice that a pattern could restrict.
    if (!is_agents || !options.name.empty()) {
      return absl::InvalidArgumentError(
          "--nodes is for agents that choose their own names: use it neither with --name nor "
          "for people");
    }
  }
  // A token that is kept for the next node can also be found by others.
  if (options.uses > 1 && options.name.empty() && options.nodes.empty()) {
    return absl::InvalidArgumentError(
        "a token with several uses needs --nodes: a pattern of the node names it may enrol, "
        "such as --nodes 'gpu-*'");
  }
  return absl::OkStatus();
}

absl::StatusOr<JoinToken> MakeToken(const Options& options, const std::string& directory,
                                    AccessStore& store) {
  // The authority is read first: a token without its fingerprint would be of no use.
  TERCIO_ASSIGN_OR_RETURN(const auto authority, Authority::Open(directory));
  TERCIO_RETURN_IF_ERROR(CheckTokenOptions(options));
  TokenRecord token;
  token.role = options.role;
  token.name = options.name;
  token.created = absl::Now();
  token.expires = token.created + absl::Seconds(options.ttl_seconds);
  token.uses_left = options.uses;
  token.nodes = options.nodes;
  const JoinToken text = {RandomSecret(), authority->fingerprint()};
  TERCIO_RETURN_IF_ERROR(store.AddToken(token, text.secret).status());
  return text;
}

// The names and addresses in the coordinator's certificate.
absl::StatusOr<std::vector<std::string>> HostsOf(const Options& options) {
  // Clients on this machine reach it by these names, whatever else is asked for.
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  char own[256] = "";
  // The name of the host is a convenience: one that no certificate can have is left out.
  if (gethostname(own, sizeof(own) - 1) == 0 && AlternativeName(own).ok()) hosts.push_back(own);
  for (const std::string& host : options.hosts) {
    TERCIO_RETURN_IF_ERROR(AlternativeName(host).status());
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

// Creates everything next to its final place, so that an init that is interrupted, or finds the
// disk full, changes nothing.
absl::StatusOr<JoinToken> MakeAccess(const Options& options,
                                     const std::vector<std::string>& hosts) {
  const std::string directory = Access::DirectoryOf(options.state_dir);
  const std::string made = directory + ".new";
  // Two commands at the same time would otherwise build in the same place.
  TERCIO_ASSIGN_OR_RETURN(const auto lock, FileLock::Acquire(directory + ".lock", WhenHeld::kWait));
  if (PathExists(directory)) {
    return absl::AlreadyExistsError(
        absl::StrCat(directory,
                     " exists: this state directory already has an authority. Create tokens with "
                     "`tercio-coordinator token`; to start over, move the directory away"));
  }
  // An init that was interrupted has left this behind.
  TERCIO_RETURN_IF_ERROR(RemoveTree(made));
  absl::Cleanup remove = [&made] { (void)RemoveTree(made); };
  TERCIO_RETURN_IF_ERROR(Authority::Create(made, hosts, absl::Now()));
  JoinToken token;
  {
    // The store is closed before its directory is moved: SQLite knows its files by their paths.
    TERCIO_ASSIGN_OR_RETURN(const auto store, AccessStore::Create(made + "/access.sqlite"));
    TERCIO_ASSIGN_OR_RETURN(token, MakeToken(options, made, *store));
  }
  TERCIO_RETURN_IF_ERROR(GiveToOwner(options.state_dir, made));
  TERCIO_RETURN_IF_ERROR(RenamePath(made, directory));
  // From here on the directory is the authority, whatever happens next.
  std::move(remove).Cancel();
  // The rename is durable before the token is shown, which the operator hands out at once.
  TERCIO_RETURN_IF_ERROR(SyncPath(options.state_dir));
  return token;
}

absl::Status Init(const Options& options) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(options.state_dir));
  const std::string directory = Access::DirectoryOf(options.state_dir);
  TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, HostsOf(options));
  TERCIO_ASSIGN_OR_RETURN(const JoinToken made, MakeAccess(options, hosts));
  const std::string token = FormatJoinToken(made);
  if (options.json()) {
    Print({{"directory", directory},
           {"fingerprint", made.fingerprint},
           {"hosts", hosts},
           {"token", token}});
    return absl::OkStatus();
  }
  std::printf("authority   %s\n", directory.c_str());
  std::printf("fingerprint %s\n", made.fingerprint.c_str());
  std::printf("valid for  ");
  for (const std::string& host : hosts) std::printf(" %s", host.c_str());
  std::printf("\nagent token %s\n", token.c_str());
  // Hints go to stderr, so that a script reads nothing but the result.
  std::fprintf(stderr,
               "The token lets %s join within %s. To create a token for a person:\n"
               "  tercio-coordinator token --state-dir %s --role admin --name NAME\n",
               options.uses == 1 ? "one agent" : absl::StrCat(options.uses, " agents").c_str(),
               absl::FormatDuration(absl::Seconds(options.ttl_seconds)).c_str(),
               options.state_dir.c_str());
  return absl::OkStatus();
}

absl::Status Token(const Options& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto store, OpenStore(options));
  TERCIO_ASSIGN_OR_RETURN(const JoinToken made,
                          MakeToken(options, Access::DirectoryOf(options.state_dir), *store));
  const std::string token = FormatJoinToken(made);
  if (options.json()) {
    Print({{"token", token},
           {"role", options.role},
           {"name", options.name},
           {"nodes", options.nodes}});
  } else {
    std::printf("%s\n", token.c_str());
  }
  return absl::OkStatus();
}

absl::Status Revoke(const Options& options) {
  // An empty name, probably an unset variable, would match the tokens for any node.
  if (options.revoked.empty() == (options.revoked_token == 0)) {
    return absl::InvalidArgumentError(
        "give the name or serial number to revoke, or --token NUMBER; `access` lists them");
  }
  TERCIO_ASSIGN_OR_RETURN(const auto store, OpenStore(options));
  if (options.revoked_token != 0) {
    TERCIO_RETURN_IF_ERROR(store->RevokeToken(options.revoked_token));
    std::fprintf(stderr, "revoked token %lld\n",
                 static_cast<long long>(options.revoked_token));  // NOLINT: printf's type
    return absl::OkStatus();
  }
  TERCIO_ASSIGN_OR_RETURN(const int64_t count, store->Revoke(options.revoked, absl::Now()));
  std::fprintf(stderr, "revoked %lld certificates and tokens of %s\n",
               static_cast<long long>(count), options.revoked.c_str());  // NOLINT: printf's type
  return absl::OkStatus();
}

std::string HolderOf(const TokenRecord& token) {
  // What is listed is who may use the token, as exactly as it is known.
  if (!token.name.empty()) return token.name;
  return token.nodes.empty() ? "any" : token.nodes;
}

absl::Status List(const Options& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto store, OpenStore(options));
  // Both lists are of one moment.
  const absl::Time now = absl::Now();
  TERCIO_ASSIGN_OR_RETURN(const auto tokens, store->Tokens(now));
  TERCIO_ASSIGN_OR_RETURN(const auto certificates, store->Certificates(now));
  if (options.json()) {
    nlohmann::ordered_json all = {{"tokens", nlohmann::json::array()},
                                  {"certificates", nlohmann::json::array()}};
    for (const TokenRecord& token : tokens) {
      all["tokens"].push_back({{"id", token.id},
                               {"role", token.role},
                               {"name", token.name},
                               {"nodes", token.nodes},
                               {"expires", Utc(token.expires)},
                               {"uses_left", token.uses_left}});
    }
    for (const CertificateRecord& one : certificates) {
      all["certificates"].push_back({{"serial", one.serial},
                                     {"role", one.role},
                                     {"name", one.name},
                                     {"issued", Utc(one.issued)},
                                     {"expires", Utc(one.expires)},
                                     {"address", one.address},
                                     {"revoked", one.revoked}});
    }
    Print(all);
    return absl::OkStatus();
  }
  std::printf("%-8s %-8s %-20s %-20s %s\n", "TOKEN", "ROLE", "NAME", "EXPIRES", "USES LEFT");
  for (const TokenRecord& token : tokens) {
    std::printf("%-8lld %-8s %-20s %-20s %lld\n",
                static_cast<long long>(token.id),  // NOLINT: printf's type
                token.role.c_str(), HolderOf(token).c_str(), Utc(token.expires).c_str(),
                static_cast<long long>(token.uses_left));  // NOLINT: printf's type
  }
  std::printf("\n%-8s %-20s %-20s %-32s %s\n", "ROLE", "NAME", "EXPIRES", "SERIAL", "");
  for (const CertificateRecord& one : certificates) {
    std::printf("%-8s %-20s %-20s %-32s %s\n", one.role.c_str(), one.name.c_str(),
                Utc(one.expires).c_str(), one.serial.c_str(), one.revoked ? "revoked" : "");
  }
  return absl::OkStatus();
}

void AddTokenOptions(CLI::App* command, Options* options) {
  // Units are case-sensitive: M could be minutes as well as months.
  command->add_option("--ttl", options->ttl_seconds, "lifetime of the token (default 1h)")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
          CLI::AsNumberWithUnit::CASE_SENSITIVE))
      ->check(CLI::Range(1.0, 30 * 86400.0));
  command
      ->add_option("--uses", options->uses,
                   "number of certificates the token can obtain; several need --nodes or --name")
      ->check(CLI::Range(1, 100000));
  command->add_option("--nodes", options->nodes,
                      "names of the agents it may enrol: comma-separated patterns with * and ?, "
                      "such as 'gpu-*'");
}

using Command = absl::Status (*)(const Options&);

CLI::App* AddCommand(CLI::App& app, const char* name, const char* help, Options* options,
                     Command command, Command* chosen) {
  CLI::App* added = app.add_subcommand(name, help);
  // Not by CLI11's envname: the variable would also be filled in for the commands that were not
  // chosen, overwriting the value given to the chosen one.
  added
      ->add_option("--state-dir", options->state_dir,
                   "the coordinator's state directory (or TERCIO_STATE_DIR)")
      ->required(options->state_dir.empty());
  added->add_option("-o,--output", options->output, "output format: json, for programs")
      ->check(CLI::IsMember({"json"}));
  added->callback([command, chosen] { *chosen = command; });
  return added;
}

}  // namespace

bool IsAccessCommand(int argc, char** argv) {
  static const std::string kCommands[] = {"init", "token", "revoke", "access"};
  return argc > 1 &&
         std::find(std::begin(kCommands), std::end(kCommands), argv[1]) != std::end(kCommands);
}

int RunAccessCommand(int argc, char** argv) {
  Options options;
  // The variable counts before the options, which override it.
  if (const char* variable = std::getenv("TERCIO_STATE_DIR")) options.state_dir = variable;
  Command chosen = nullptr;
  CLI::App app("Manage the tokens and certificates of a coordinator.", "tercio-coordinator");
  app.require_subcommand(1);
  CLI::App* command = AddCommand(app, "init", "create an authority and a token for the first agent",
                                 &options, Init, &chosen);
  command
      ->add_option(
          "--host", options.hosts,
          "names and addresses by which clients reach the coordinator, besides this host's")
      ->delimiter(',');
  AddTokenOptions(command, &options);
  command = AddCommand(app, "token", "create a token and print it; it cannot be shown again",
                       &options, Token, &chosen);
  command
      ->add_option("--role", options.role,
                   "role of the token: admin, user, viewer or agent (the default)")
      ->check(CLI::IsMember({"admin", "user", "viewer", "agent"}));
  command->add_option("--name", options.name, "name of the person or node; optional for agents");
  AddTokenOptions(command, &options);
  command = AddCommand(app, "revoke", "revoke certificates and tokens, effective immediately",
                       &options, Revoke, &chosen);
  command->add_option("name", options.revoked, "a name, or the serial number of one certificate");
  command
      ->add_option("--token", options.revoked_token,
                   "the number of one token, as `access` lists it")
      ->check(CLI::PositiveNumber);
  AddCommand(app, "access", "list tokens and certificates, without their secrets", &options, List,
             &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 returns codes of its own; scripts rely on ours.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  // Only now, since a mistake in the options is no event for a log.
  InitLogging("coordinator");
  const absl::Status status = chosen(options);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace tercio::coordinator
