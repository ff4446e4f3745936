// Pickles, archives and the older streams of torch for tests, put together byte by byte, so that
// each byte can be wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tercio::checkpoint {

// A literal with all of its zero bytes.
template <size_t kSize>
std::string Literal(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

// The little-endian bytes of a number.
template <typename Number>
std::string NumberBytes(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

// A pickle under construction: the values are left on its stack in the order of the calls.
class PickleBytes {
 public:
  PickleBytes& Raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  PickleBytes& Global(std::string_view module, std::string_view name) {
    return Raw("c").Raw(module).Raw("\n").Raw(name).Raw("\n");
  }
  PickleBytes& Text(std::string_view text) {
    return Raw("X").Raw(NumberBytes(static_cast<uint32_t>(text.size()))).Raw(text);
  }
  PickleBytes& Integer(int64_t number) { return Raw("\x8a\x08").Raw(NumberBytes(number)); }
  PickleBytes& Integers(const std::vector<int64_t>& numbers) {
    Raw("(");
    for (const int64_t number : numbers) Integer(number);
    return Raw("t");
  }
  // torch's id of a storage: ('storage', torch.FloatStorage, key, 'cpu', elements).
  PickleBytes& Storage(std::string_view type, std::string_view key, int64_t elements) {
    Raw("(").Text("storage").Global("torch", type).Text(key).Text("cpu").Integer(elements);
    return Raw("tQ");
  }
  struct View {
    int64_t offset = 0;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  };
  PickleBytes& Tensor(std::string_view type, std::string_view key, int64_t elements,
                      const View& view) {
    Global("torch._utils", "_rebuild_tensor_v2").Raw("(").Storage(type, key, elements);
    Integer(view.offset).Integers(view.shape).Integers(view.strides);
    return Raw("\x89").Global("collections", "OrderedDict").Raw(")RtR");
  }
  std::string Finish(std::string_view protocol = "\x80\x02") const {
    return std::string(protocol) + bytes_ + ".";
  }

 private:
  std::string bytes_;
};

// An archive of stored files; the fields of its parts can be changed.
class ZipBytes {
 public:
  struct Entry {
    std::string name;
    std::string content;
    uint16_t flags = 0;
    uint16_t method = 0;
    bool long_sizes = false;  // in a ZIP64 field, as for files beyond 4 GiB
    bool descriptor = false;  // sizes behind the content only, as of a stream
  };

  ZipBytes& Add(Entry entry) {
    entries_.push_back(std::move(entry));
    return *this;
  }

  std::string Finish(bool long_end = false) const {
    std::string archive;
    std::string directory;
    for (const Entry& entry : entries_) {
      directory += DirectoryEntry(entry, archive.size());
      archive += LocalHeader(entry) + entry.content;
      if (entry.descriptor) {
        archive += "PK\x07\x08" + NumberBytes(uint32_t{0}) + Size32(entry) + Size32(entry);
      }
    }
    const auto begin = static_cast<uint64_t>(archive.size());
    const auto bytes = static_cast<uint64_t>(directory.size());
    const auto count = static_cast<uint64_t>(entries_.size());
    archive += directory;
    if (long_end) {
      const auto at = static_cast<uint64_t>(archive.size());
      archive += "PK\x06\x06" + NumberBytes(uint64_t{44}) + NumberBytes(uint32_t{0}) +
                 NumberBytes(uint64_t{0}) + NumberBytes(count) + NumberBytes(count) +
                 NumberBytes(bytes) + NumberBytes(begin);
      archive +=
          "PK\x06\x07" + NumberBytes(uint32_t{0}) + NumberBytes(at) + NumberBytes(uint32_t{1});
      return archive + "PK\x05\x06" + std::string(4, '\0') + std::string(12, '\xff') +
             NumberBytes(uint16_t{0});
    }
    return archive + "PK\x05\x06" + std::string(4, '\0') +
           NumberBytes(static_cast<uint16_t>(count)) + NumberBytes(static_cast<uint16_t>(count)) +
           NumberBytes(static_cast<uint32_t>(bytes)) + NumberBytes(static_cast<uint32_t>(begin)) +
           NumberBytes(uint16_t{0});
  }

 private:
  static std::string Size32(const Entry& entry) {
    return NumberBytes(static_cast<uint32_t>(entry.content.size()));
  }
  static std::string Sizes(const Entry& entry, bool hidden) {
    if (hidden) return std::string(8, '\0');
    return entry.long_sizes ? std::string(8, '\xff') : Size32(entry) + Size32(entry);
  }
  static std::string LongField(const Entry& entry) {
    const auto size = static_cast<uint64_t>(entry.content.size());
    return NumberBytes(uint16_t{1}) + NumberBytes(uint16_t{16}) + NumberBytes(size) +
           NumberBytes(size);
  }
  static std::string FlagsAndMethod(const Entry& entry) {
    const auto flags = static_cast<uint16_t>(entry.flags | (entry.descriptor ? 8u : 0u));
    return NumberBytes(flags) + NumberBytes(entry.method);
  }
  static std::string LocalHeader(const Entry& entry) {
    // A field of padding, as torch has it, so that the content begins somewhere else than the name
    // ends.
    return "PK\x03\x04" + NumberBytes(uint16_t{45}) + FlagsAndMethod(entry) + std::string(8, '\0') +
           Sizes(entry, entry.descriptor) + NumberBytes(static_cast<uint16_t>(entry.name.size())) +
           NumberBytes(uint16_t{6}) + entry.name + std::string("FB\x02\0ZZ", 6);
  }
  static std::string DirectoryEntry(const Entry& entry, size_t at) {
    const std::string extra = entry.long_sizes ? LongField(entry) : "";
    return "PK\x01\x02" + NumberBytes(uint32_t{45}) + FlagsAndMethod(entry) + std::string(8, '\0') +
           Sizes(entry, false) + NumberBytes(static_cast<uint16_t>(entry.name.size())) +
           NumberBytes(static_cast<uint16_t>(extra.size())) + std::string(10, '\0') +
           NumberBytes(static_cast<uint32_t>(at)) + entry.name + extra;
  }

  std::vector<Entry> entries_;
};

// The form before archives: magic number, protocol, system, `pickle`, the keys, the storages.
struct StreamStorage {
  std::string key;
  int64_t elements = 0;
  std::string bytes;
};
inline std::string StreamBytes(const std::string& pickle,
                               const std::vector<StreamStorage>& storages,
                               bool little_endian = true) {
  PickleBytes keys;
  std::string contents;
  keys.Raw("](");
  for (const StreamStorage& storage : storages) {
    keys.Text(storage.key);
    contents += NumberBytes(storage.elements) + storage.bytes;
  }
  const std::string magic = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
  return magic + PickleBytes().Integer(1001).Finish() +
         PickleBytes()
             .Raw("}")
             .Text("little_endian")
             .Raw(little_endian ? "\x88s" : "\x89s")
             .Finish() +
         pickle + keys.Raw("e").Finish() + contents;
}

}  // namespace tercio::checkpoint
