// How fast a tokenizer encodes a text, with one thread and with all:
//
//   tokenizer_bench TOKENIZER TEXT [IDS]
//
// TOKENIZER is what data.tokenizer takes: bytes, or a path. Each figure is the best of five runs.
// IDS is a file for the ids as little-endian int32, for comparisons with other programs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tokenizer/tokenizer.h"

namespace tercio {
namespace {

using tokenizer::Tokenizer;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

int Run(const std::string& name, const std::string& text, const char* ids_path) {
  const auto tokenizer =
      name == "bytes" ? tokenizer::Tokenizer::Bytes() : tokenizer::Tokenizer::Load(name);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  for (const int threads : {1, all}) {
    double best = 1e30;
    size_t count = 0;
    for (int run = 0; run < 5; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = tokenizer::EncodeParallel(*tokenizer, text, threads);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      if (!ids.ok()) return Fail(ids.status());
      best = std::min(best, seconds.count());
      count = ids->size();
      if (ids_path != nullptr && run == 0) {
        std::ofstream file(ids_path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(ids->data()),
                   static_cast<std::streamsize>(count * sizeof(int32_t)));
      }
    }
    std::printf("%s, %d threads: %.1f MB/s, %zu bytes, %zu tokens\n", tokenizer->kind().c_str(),
                threads, static_cast<double>(text.size()) / best * 1e-6, text.size(), count);
  }
  return 0;
}

}  // namespace
}  // namespace tercio

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT [IDS]\n");
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  if (!file.good()) {
    std::fprintf(stderr, "%s cannot be read\n", argv[2]);
    return 1;
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return tercio::Run(argv[1], text, argc > 3 ? argv[3] : nullptr);
}
