#include "checkpoint/torch/torch_file.h"

#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch/pickle_machine.h"
#include "checkpoint/torch/zip_directory.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

constexpr char kPickleName[] = "/data.pkl";
// The number 0x1950a86a20f9469cfc6c, with which every file of the older form begins.
constexpr std::string_view kStreamMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr size_t kMagicReach = 32;  // protocol, frame and length stand before the number
constexpr int64_t kStreamProtocol = 1001;
constexpr int kNewestArchive = 10;

std::string ShownKey(std::string_view key) {
  return absl::Utf8SafeCEscape(std::string(key.substr(0, 100)));
}

int64_t BytesOfStorage(const TorchStorage& storage) {
  return storage.elements * DtypeBytes(storage.dtype);
}

// What tensors see of a storage's bytes.
std::string_view ViewOfStorage(const TorchStorage& storage, std::string_view bytes) {
  const int64_t size = DtypeBytes(storage.dtype);
  return bytes.substr(static_cast<size_t>(storage.view_begin * size),
                      static_cast<size_t>(storage.view_elements * size));
}

// The folder of an archive in which its pickle lies.
absl::StatusOr<std::string> FolderOfArchive(const ZipContents& contents) {
  for (const auto& [name, content] : contents) {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos || name.substr(slash) != kPickleName) continue;
    const std::string folder(name.substr(0, slash));
    // Programs have the same form, with code beside the numbers.
    if (contents.contains(folder + "/constants.pkl")) {
      return absl::InvalidArgumentError(
          "it is a program of TorchScript, not weights; save model.state_dict() with torch.save");
    }
    return folder;
  }
  return absl::InvalidArgumentError("an archive without data.pkl, which torch.save did not write");
}

absl::Status CheckArchiveForm(const ZipContents& contents, const std::string& folder) {
  const auto order = contents.find(folder + "/byteorder");
  if (order != contents.end() && order->second != "little") {
    return absl::InvalidArgumentError(absl::StrCat("its numbers are ", ShownKey(order->second),
                                                   "-endian, which is not supported"));
  }
  const auto version = contents.find(folder + "/version");
  int number = 0;
  if (version == contents.end()) return absl::OkStatus();
  if (!absl::SimpleAtoi(std::string(version->second.substr(0, 20)), &number)) {
    return absl::DataLossError("its version is not a number");
  }
  if (number <= kNewestArchive) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("version ", number, " of the archive is not supported by this version"));
}

}  // namespace

struct TorchFile::Impl {
  std::string path;
  std::shared_ptr<const MappedFile> mapping;
  PickleArena arena;
  std::optional<PickleValue> root;

  absl::Status Read();
  absl::Status ReadArchive();
  absl::Status ReadStream();
  absl::StatusOr<PickleValue> NextPickle(std::string_view* rest);
  absl::Status ReadStreamStorages(const PickleValue& keys, std::string_view rest);
};

absl::Status TorchFile::Impl::Read() {
  const std::string_view content = mapping->content();
  if (LooksLikeZip(content)) {
    TERCIO_RETURN_IF_ERROR(ReadArchive());
  } else if (content.substr(0, kMagicReach).find(kStreamMagic) != std::string_view::npos) {
    TERCIO_RETURN_IF_ERROR(ReadStream());
  } else {
    // A clone of a repository without its large files has such texts in their place.
    const bool pointer = content.substr(0, 30).find("https://git-lfs") != std::string_view::npos;
    return absl::InvalidArgumentError(
        pointer ? "a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
                : "not a file that torch.save wrote");
  }
  for (const auto& [tensor, storage] : arena.tensors) tensor->storage = storage->bytes;
  return absl::OkStatus();
}

absl::Status TorchFile::Impl::ReadArchive() {
  TERCIO_ASSIGN_OR_RETURN(const ZipContents contents, ReadZipDirectory(mapping->content()));
  TERCIO_ASSIGN_OR_RETURN(const std::string folder, FolderOfArchive(contents));
  TERCIO_RETURN_IF_ERROR(CheckArchiveForm(contents, folder));
  TERCIO_ASSIGN_OR_RETURN(const PickleResult pickle,
                          ReadPickle(contents.at(folder + kPickleName), &arena));
  root = pickle.root;
  for (TorchStorage& storage : arena.storages) {
    const auto found = contents.find(absl::StrCat(folder, "/data/", *storage.key));
    if (found == contents.end()) {
      return absl::DataLossError(
          absl::StrCat("the archive lacks storage ", ShownKey(*storage.key)));
    }
    if (static_cast<int64_t>(found->second.size()) != BytesOfStorage(storage)) {
      return absl::DataLossError(absl::StrCat("storage ", ShownKey(*storage.key), " has ",
                                              found->second.size(), " bytes, but should have ",
                                              BytesOfStorage(storage)));
    }
    storage.bytes = ViewOfStorage(storage, found->second);
  }
  return absl::OkStatus();
}

absl::StatusOr<PickleValue> TorchFile::Impl::NextPickle(std::string_view* rest) {
  TERCIO_ASSIGN_OR_RETURN(const PickleResult pickle, ReadPickle(*rest, &arena));
  rest->remove_prefix(pickle.bytes);
  return pickle.root;
}

// Five pickles, then the storages in the order of the last one's keys.
absl::Status TorchFile::Impl::ReadStream() {
  std::string_view rest = mapping->content();
  TERCIO_RETURN_IF_ERROR(NextPickle(&rest).status());  // the magic number
  TERCIO_ASSIGN_OR_RETURN(const PickleValue protocol, NextPickle(&rest));
  if (protocol.kind() != PickleValue::Kind::kInteger || protocol.integer() != kStreamProtocol) {
    return absl::InvalidArgumentError("its protocol is not supported by this version");
  }
  TERCIO_ASSIGN_OR_RETURN(const PickleValue system, NextPickle(&rest));
  const PickleValue* const little = system.Find("little_endian");
  if (little == nullptr || little->kind() != PickleValue::Kind::kBool) {
    return absl::DataLossError("it does not tell the order of bytes");
  }
  if (!little->boolean()) {
    return absl::InvalidArgumentError("its numbers are big-endian, which is not supported");
  }
  TERCIO_ASSIGN_OR_RETURN(root, NextPickle(&rest));
  TERCIO_ASSIGN_OR_RETURN(const PickleValue keys, NextPickle(&rest));
  if (keys.kind() != PickleValue::Kind::kSequence) {
    return absl::DataLossError("the list of its storages is damaged");
  }
  return ReadStreamStorages(keys, rest);
}

absl::Status TorchFile::Impl::ReadStreamStorages(const PickleValue& keys, std::string_view rest) {
  // A storage has an entry for each tensor that uses it.
  std::map<std::string_view, std::vector<TorchStorage*>> uses;
  for (TorchStorage& storage : arena.storages) uses[*storage.key].push_back(&storage);
  for (const PickleValue& key : keys.items()) {
    const auto found = key.kind() == PickleValue::Kind::kText ? uses.find(key.text()) : uses.end();
    // Without a use the size of the elements is not known.
    if (found == uses.end()) {
      return absl::DataLossError("the list of its storages does not match its tensors");
    }
    const std::string shown = ShownKey(key.text());
    int64_t elements = 0;
    if (rest.size() < sizeof(elements)) return absl::DataLossError("it is truncated");
    std::memcpy(&elements, rest.data(), sizeof(elements));
    rest.remove_prefix(sizeof(elements));
    const int64_t bytes = BytesOfStorage(*found->second.front());
    for (TorchStorage* const storage : found->second) {
      if (storage->elements != elements || BytesOfStorage(*storage) != bytes) {
        return absl::DataLossError(absl::StrCat("storage ", shown, " has ", elements,
                                                " elements, but should have ", storage->elements));
      }
    }
    if (bytes > static_cast<int64_t>(rest.size())) {
      return absl::DataLossError(absl::StrCat("it is truncated: of storage ", shown, " only ",
                                              rest.size(), " of ", bytes, " bytes are there"));
    }
    for (TorchStorage* const storage : found->second) {
      storage->bytes = ViewOfStorage(*storage, rest.substr(0, static_cast<size_t>(bytes)));
    }
    rest.remove_prefix(static_cast<size_t>(bytes));
    // A key that is listed twice must not be read twice.
    uses.erase(found);
  }
  if (uses.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the list of its storages lacks ", ShownKey(uses.begin()->first)));
}

TorchFile::TorchFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TorchFile::~TorchFile() = default;

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  TERCIO_ASSIGN_OR_RETURN(impl->mapping, MappedFile::Open(path));
  if (const absl::Status status = impl->Read(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", std::string(status.message())));
  }
  return std::unique_ptr<TorchFile>(new TorchFile(std::move(impl)));
}

const PickleValue& TorchFile::root() const { return *impl_->root; }
const std::string& TorchFile::path() const { return impl_->path; }
std::string_view TorchFile::content() const { return impl_->mapping->content(); }

}  // namespace tercio::checkpoint
