// kernel_rates: one line of JSON for each operation, with what it moves or multiplies, its seconds,
// and the rate that this is; what computes attention goes to stderr.
#include <cstdio>

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"
#include "tests/bench/kernels/rates.h"

namespace {

void Print(const tercio::bench::Rate& rate) {
  nlohmann::ordered_json line = {{"operation", rate.operation}, {"seconds", rate.seconds}};
  if (rate.bytes > 0) {
    line["bytes"] = rate.bytes;
    line["bytes_per_second"] = static_cast<double>(rate.bytes) / rate.seconds;
  } else {
    line["flops"] = rate.flops;
    line["flops_per_second"] = rate.flops / rate.seconds;
  }
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the operations of Tercio's kernels on GPU 0, in bf16.", "kernel_rates");
  tercio::bench::Sizes sizes;
  app.add_option("--tokens", sizes.tokens, "of a micro-batch")->capture_default_str();
  app.add_option("--context", sizes.context, "tokens of a sequence")->capture_default_str();
  app.add_option("--hidden", sizes.hidden, "columns")->capture_default_str();
  app.add_option("--heads", sizes.heads, "of attention")->capture_default_str();
  app.add_option("--vocabulary", sizes.vocabulary, "rows of the embedding")->capture_default_str();
  app.add_option("--repeats", sizes.repeats, "calls in each of five rounds")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto measured = tercio::bench::MeasureRates(sizes);
  if (!measured.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(measured.status().message()).c_str());
    return 1;
  }
  for (const std::string& note : measured->notes) std::fprintf(stderr, "%s\n", note.c_str());
  for (const tercio::bench::Rate& rate : measured->rates) Print(rate);
  return 0;
}
