// What fuzz targets that read files have in common: a folder of their own, in memory where the
// machine has such a place, and the property that must hold.
//
// Threads: one. The folder goes with the process.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace tercio::fuzz {

// Ends the process with a message, which libFuzzer keeps the input of.
inline void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  abort();
}

class Scratch {
 public:
  Scratch() {
    std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    name += "/tercio-fuzz-XXXXXX";
    Expect(mkdtemp(name.data()) != nullptr, "a folder can be made");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }

  std::string Write(const std::string& name, std::string_view content) const {
    FILE* file = std::fopen(Path(name).c_str(), "wb");
    Expect(file != nullptr, "a file can be made");
    Expect(std::fwrite(content.data(), 1, content.size(), file) == content.size(), "it is written");
    std::fclose(file);
    return Path(name);
  }

 private:
  std::string path_;
};

}  // namespace tercio::fuzz
