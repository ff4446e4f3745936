// The example deploy/examples/dpo as tests train it with ranks as threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/epochs.h"

namespace tercio::testing {

// The pairs of the example as single answers.
inline std::string LabelledAnswers(const std::string& directory) {
  const auto pairs = ReadFile("deploy/examples/dpo/ferry.jsonl");
  EXPECT_TRUE(pairs.ok()) << pairs.status();
  std::string lines;
  size_t begin = 0;
  for (size_t end = pairs->find('\n'); end != std::string::npos; end = pairs->find('\n', begin)) {
    const nlohmann::json pair = nlohmann::json::parse(pairs->substr(begin, end - begin));
    begin = end + 1;
    if (!pair.contains("prompt") || !pair["prompt"].is_string()) continue;
    for (const char* key : {"chosen", "rejected"}) {
      lines += nlohmann::json{{"prompt", pair["prompt"]},
                              {"completion", pair[key]},
                              {"label", std::string(key) == "chosen"}}
                   .dump() +
               "\n";
    }
  }
  const std::string path = directory + "/labelled.jsonl";
  EXPECT_TRUE(WriteFileDurably(path, lines).ok());
  return path;
}

// The job as a coordinator has it, when its data is known. kto learns from the same answers one by
// one.
struct PreferenceExample {
  explicit PreferenceExample(const std::vector<std::string>& changes) {
    std::vector<std::string> all = changes;
    for (const std::string& change : changes) {
      if (change != "training.objective=kto") continue;
      all.push_back("data.train=" + LabelledAnswers(directory.path()));
    }
    auto parsed = config::ParseJobFile("deploy/examples/dpo/dpo.yaml", all);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    spec = *std::move(parsed);
    config::ResolveDevice(&spec, config::AutoDevice::kCpu);
    auto prepared = data::PrepareData(spec.data(), spec.model(), directory.path());
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    samples = prepared->train_sample_count;
    spec.mutable_model()->set_vocab_size(prepared->vocab_size);
    plan::SetStepsOfEpochs(samples, spec.mutable_training());
    source = data::MakeSampleSource(*std::move(prepared), spec);
  }

  TempDir directory;
  v1::JobSpec spec;
  int64_t samples = 0;
  std::unique_ptr<data::SampleSource> source;
};

}  // namespace tercio::testing
