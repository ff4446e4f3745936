// Prints docs/metrics.md; `bazel run` writes it into the source tree.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/file.h"
#include "common/metrics/metrics_document.h"

int main() {
  // bazel runs programs outside of the source tree, and names it here.
  const char* root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const std::string text = tercio::MetricsDocument();
  if (root == nullptr)
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
  const absl::Status status =
      tercio::WriteFileDurably(std::string(root) + "/docs/metrics.md", text);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
