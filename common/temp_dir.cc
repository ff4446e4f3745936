#include "common/temp_dir.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/check.h"

namespace tercio {

TempDir::TempDir(const std::string& parent) {
  std::string base = parent;
  const char* test_directory = std::getenv("TEST_TMPDIR");
  // Bazel gives each test a directory of its own.
  if (base.empty()) base = test_directory != nullptr ? test_directory : "/tmp";
  path_ = base + "/tercio.XXXXXX";
  TERCIO_CHECK(mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  // What remains is cleaned up with the directory above: a destructor cannot report it.
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace tercio
