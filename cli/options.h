// The options of all verbs.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "common/security/channel.h"

namespace tercio::cli {

// TERCIO_COORDINATOR, else empty.
inline std::string CoordinatorFromEnvironment() {
  const char* address = std::getenv("TERCIO_COORDINATOR");
  return address == nullptr ? "" : address;
}

enum class Output { kTable, kJson, kJsonLines };

struct Options {
  std::string coordinator = CoordinatorFromEnvironment();  // HOST:PORT; empty: the default
  std::string state_dir;                                   // if not empty: use this directory
  std::string output;                                      // "", "json", "jsonl"
  TlsFiles tls = TlsFromEnvironment();

  // Arguments of verbs; each verb uses some of them.
  std::string token;
  std::string token_file;
  std::string enroll;  // HOST:PORT
  bool check = false;
  std::string job;
  std::string node;
  std::string fault;
  double fault_seconds = 0;
  std::string job_file;
  std::vector<std::string> set;
  int ranks = 0;
  std::vector<std::string> jobs;  // plot, diff, report
  std::string file;               // plot, report: file to write; "-": standard output
  std::vector<std::string> metrics;
  std::string x = "step";
  int smooth = 1;
  bool logarithmic = false;
  bool watch = false;
  bool plain = false;  // watch: one line
  bool follow = false;
  bool all_attempts = false;
  bool effective = false;
  std::string cluster;
  double timeout_seconds = -1;  // wait, drill; below 0: none given
  int rank = -1;
  std::vector<int> log_ranks;
  std::string log_level;  // empty: all lines
  std::string since;
  int attempt = 0;
  int tail = 0;
  int keep_last = 0;  // checkpoint prune; 0: the job's
  bool dry_run = false;
  int64_t step = 0;
  bool no_save = false;
  bool accept_data_change = false;
  bool accept_change = false;
  int64_t from_step = -1;         // resume; below 0: none given
  bool with_checkpoints = false;  // delete
  std::string input;
  std::string tokenizer;
  std::string prefix;
  std::string text_key = "text";
  bool skip_bad_lines = false;
  bool append_eod = false;
  bool split_sentences = false;
  int threads = 0;  // data tokenize; 0: cores
  std::string checkpoint;
  std::string directory;  // checkpoint export, import: the result
  std::string model_format;
  std::string max_shard_size;
  std::string dtype;  // of exported weights
  int64_t context = 0;
  std::string prompt;
  std::vector<int32_t> prompt_ids;
  std::string data;
  std::string metric = "perplexity";
  int64_t stride = 0;
  std::string shell;
  int64_t tokens = 100;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 1337;
  std::string trace;  // file; empty: none
  int64_t trace_step = 5;

  Output format() const {
    return output == "json"    ? Output::kJson
           : output == "jsonl" ? Output::kJsonLines
                               : Output::kTable;
  }
};

}  // namespace tercio::cli
