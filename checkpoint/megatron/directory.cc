#include "checkpoint/megatron/directory.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace tercio::checkpoint {
namespace {

constexpr char kRankPrefix[] = "mp_rank_";
constexpr char kReleaseFolder[] = "release";
// The name until 2023 where a distributed optimizer has files of its own.
constexpr char kModelOnlyFile[] = "model_rng.pt";
constexpr int kLargestDegree = 1 << 16;
constexpr size_t kNamedRanks = 3;  // the others are counted

// The numbers of "mp_rank_01_002"; empty for other names.
std::vector<int> NumbersOfRank(const std::string& name) {
  std::vector<int> numbers;
  if (!absl::StartsWith(name, kRankPrefix)) return numbers;
  for (const std::string& digits :
       std::vector<std::string>(absl::StrSplit(name.substr(sizeof(kRankPrefix) - 1), '_'))) {
    int number = 0;
    const bool plain =
        !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
    if (!plain || !absl::SimpleAtoi(digits, &number) || number >= kLargestDegree) return {};
    numbers.push_back(number);
  }
  return numbers;
}

bool HoldsRanks(const std::string& folder) {
  for (const std::string& name : ListDirectory(folder)) {
    if (!NumbersOfRank(name).empty()) return true;
  }
  return false;
}

// torch's distributed checkpoints, which Megatron-LM calls torch_dist.
bool IsSharded(const std::string& folder) {
  for (const std::string& name : ListDirectory(folder)) {
    if (name == ".metadata" || name == "common.pt" || absl::EndsWith(name, ".distcp")) return true;
  }
  return false;
}

bool IsIterationFolder(const std::string& name) {
  constexpr char kPrefix[] = "iter_";
  const std::string digits = name.substr(std::min(name.size(), sizeof(kPrefix) - 1));
  return absl::StartsWith(name, kPrefix) && !digits.empty() &&
         std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
}

// Folders of ranks in the directory, ascending.
std::vector<std::string> CheckpointFolders(const std::string& directory) {
  std::vector<std::string> folders;
  for (const std::string& name : ListDirectory(directory)) {
    const std::string folder = absl::StrCat(directory, "/", name);
    if (name != kReleaseFolder && !IsIterationFolder(name)) continue;
    // A Hugging Face or another directory may have a folder of this name for its own purposes.
    if (HoldsRanks(folder) || IsSharded(folder)) folders.push_back(folder);
  }
  return folders;
}

// The folder that latest_checkpointed_iteration.txt names.
absl::StatusOr<std::string> FolderOfIterationFile(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kMegatronIterationFile);
  TERCIO_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  const std::string text(absl::StripAsciiWhitespace(content));
  int64_t iteration = 0;
  std::string folder = absl::StrCat(directory, "/", kReleaseFolder);
  if (text != kReleaseFolder) {
    // Only a number becomes part of a path.
    if (!absl::SimpleAtoi(text, &iteration) || iteration < 0) {
      return absl::DataLossError(absl::StrCat(path, " holds '", ForDisplay(text.substr(0, 40)),
                                              "', neither an iteration nor 'release'"));
    }
    folder = absl::StrFormat("%s/iter_%07d", directory, iteration);
  }
  if (PathExists(folder)) return folder;
  return absl::DataLossError(
      absl::StrCat(path, " names '", text, "', but ", folder, " does not exist"));
}

absl::StatusOr<std::string> FolderOfRanks(const std::string& directory) {
  if (HoldsRanks(directory) || IsSharded(directory)) return directory;
  if (PathExists(absl::StrCat(directory, "/", kMegatronIterationFile))) {
    return FolderOfIterationFile(directory);
  }
  const std::vector<std::string> folders = CheckpointFolders(directory);
  if (folders.size() == 1) return folders.front();
  if (folders.empty()) {
    return absl::NotFoundError(absl::StrCat(directory,
                                            " is no Megatron-LM checkpoint: it has neither ",
                                            kMegatronIterationFile, " nor mp_rank_00"));
  }
  return absl::NotFoundError(absl::StrCat(
      directory, " has no ", kMegatronIterationFile,
      ", but several checkpoints: ", absl::StrJoin(folders, ", "), "; name one of them"));
}

// The file with the weights of a rank; empty where there is none.
std::string FileOfRank(const std::string& folder) {
  for (const char* name : {kMegatronRankFile, kModelOnlyFile}) {
    std::string path = absl::StrCat(folder, "/", name);
    if (PathExists(path)) return path;
  }
  return "";
}

// What the names of a folder say. (tensor rank, stage) -> file.
struct FoundRanks {
  std::map<std::pair<int, int>, std::string> files;
  bool staged = false;    // names with a stage
  bool unstaged = false;  // names without one
  bool optimizer_files = false;
};

absl::StatusOr<FoundRanks> FindRanks(const std::string& folder) {
  FoundRanks found;
  for (const std::string& name : ListDirectory(folder)) {
    const std::vector<int> numbers = NumbersOfRank(name);
    if (numbers.empty()) continue;
    const std::string rank = absl::StrCat(folder, "/", name);
    const std::string file = FileOfRank(rank);
    // Distributed optimizers have folders and files of their own, some for each data rank.
    found.optimizer_files |=
        PathExists(rank + "/optim.pt") || PathExists(rank + "/distrib_optim.pt");
    if (file.empty() && PathExists(rank + "/optim.pt")) continue;
    if (numbers.size() > 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(rank, ": expert parallelism is not supported by this version"));
    }
    (numbers.size() == 2 ? found.staged : found.unstaged) = true;
    // A folder without its file counts as missing below, which names it.
    if (!file.empty()) found.files[{numbers[0], numbers.size() == 2 ? numbers[1] : 0}] = file;
  }
  return found;
}

}  // namespace

bool IsMegatronDirectory(const std::string& directory) {
  return PathExists(absl::StrCat(directory, "/", kMegatronIterationFile)) ||
         HoldsRanks(directory) || IsSharded(directory) || !CheckpointFolders(directory).empty();
}

absl::StatusOr<MegatronFiles> FindMegatronFiles(const std::string& directory) {
  MegatronFiles files;
  TERCIO_ASSIGN_OR_RETURN(files.folder, FolderOfRanks(directory));
  if (!HoldsRanks(files.folder) && IsSharded(files.folder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.folder,
                     ": sharded checkpoints (torch_dist) are not supported; convert it by starting "
                     "Megatron-LM with --ckpt-convert-format torch --ckpt-convert-save DIR"));
  }
  TERCIO_ASSIGN_OR_RETURN(const FoundRanks found, FindRanks(files.folder));
  files.optimizer_files = found.optimizer_files;
  if (found.files.empty()) {
    return absl::DataLossError(
        absl::StrCat(files.folder, ": no rank has a file ", kMegatronRankFile));
  }
  if (found.staged && found.unstaged) {
    return absl::DataLossError(
        absl::StrCat(files.folder,
                     ": ranks with and without a pipeline stage in their names, which are two "
                     "checkpoints; remove those of the older one"));
  }
  for (const auto& [rank, path] : found.files) {
    files.tensor = std::max(files.tensor, rank.first + 1);
    files.pipeline = std::max(files.pipeline, rank.second + 1);
  }
  std::vector<std::string> missing;
  const size_t expected = static_cast<size_t>(files.tensor) * static_cast<size_t>(files.pipeline);
  // The numbers come from names that are not trusted: the walk ends soon where most are missing.
  for (int stage = 0; stage < files.pipeline && missing.size() < kNamedRanks; ++stage) {
    for (int rank = 0; rank < files.tensor && missing.size() < kNamedRanks; ++rank) {
      const auto at = found.files.find({rank, stage});
      if (at != found.files.end()) {
        files.paths.push_back(at->second);
        continue;
      }
      missing.push_back(found.staged ? absl::StrFormat("mp_rank_%02d_%03d", rank, stage)
                                     : absl::StrFormat("mp_rank_%02d", rank));
    }
  }
  if (missing.empty()) return files;
  const size_t more = expected - found.files.size() - missing.size();
  return absl::DataLossError(absl::StrCat(files.folder, ": ", absl::StrJoin(missing, ", "),
                                          more > 0 ? absl::StrCat(" and ", more, " more") : "",
                                          missing.size() + more > 1 ? " have" : " has", " no ",
                                          kMegatronRankFile, "; copy the files of all ranks"));
}

}  // namespace tercio::checkpoint
