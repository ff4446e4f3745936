// A temporary directory that is removed with the object: for tests and for sockets.
#pragma once

#include <string>

namespace tercio {

class TempDir {
 public:
  // Under `parent`, else under $TEST_TMPDIR, else under /tmp. Ends the process when that is
  // impossible.
  explicit TempDir(const std::string& parent = "");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tercio
