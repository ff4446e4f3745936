// Runs and methods for tests.
#pragma once

#include <string>

#include "cli/compare/method.h"
#include "config/job_file.h"
#include "gtest/gtest.h"

namespace tercio::compare {

// A job of `count` steps of 0.1 s with losses 5 / step, on data-parallel ranks.
inline report::JobData TestJob(const std::string& name, int count, int ranks) {
  const auto spec = config::ParseJobText(
      "model: {layers: 2, hidden: 16, heads: 2, context: 8, vocab_size: 100}\n"
      "data: {train: corpus.txt}\n"
      "training: {steps: 100, global_batch: 4, optimizer: {learning_rate: 1e-3}}\n",
      "job.yaml", "/where", {"name=" + name});
  EXPECT_TRUE(spec.ok()) << spec.status();
  report::JobData job;
  job.label = name;
  job.version = "1.2.3";
  v1::JobStatus& status = job.status;
  status.set_id("job-" + name);
  status.set_name(name);
  status.set_state(v1::JOB_STATE_SUCCEEDED);
  status.set_attempt(1);
  status.set_steps(count);
  *status.mutable_spec() = *spec;
  v1::Layout* layout = status.mutable_plan()->mutable_layout();
  layout->set_tensor(1);
  layout->set_pipeline(1);
  layout->set_data(ranks);
  layout->set_virtual_pipeline(1);
  layout->set_context_parallel(1);
  layout->set_micro_batch(1);
  layout->set_micro_batches(4 / ranks);
  layout->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout->set_recompute(v1::RECOMPUTE_NONE);
  status.mutable_plan()->set_threads_per_rank(1);
  status.mutable_plan()->mutable_predicted()->set_memory_bytes_available(int64_t{1} << 30);
  for (int i = 0; i < ranks; ++i) {
    status.mutable_plan()->add_ranks()->set_rank(i);
    status.add_ranks()->set_rank(i);
    v1::RankFigures* figures = status.mutable_ranks(i)->mutable_figures();
    figures->set_steps(100);
    figures->set_planned_bytes(1 << 19);
    figures->set_used_bytes(1 << 18);
    figures->set_resident_bytes(1 << 20);
    figures->set_cpu_seconds(6);
    figures->set_elapsed_seconds(12);
    figures->mutable_phases()->set_forward(1);
    figures->mutable_phases()->set_backward(2);
    figures->mutable_phases()->set_wait(1);
    figures->mutable_communication()->set_data(ranks > 1 ? 1000 : 0);
  }
  for (int i = 1; i <= count; ++i) {
    v1::StepRecord& step = job.steps.emplace_back();
    step.set_step(i);
    step.set_attempt(1);
    step.set_loss(5.0 / i);
    step.set_tokens(32 * i);
    step.set_step_seconds(0.1);
  }
  return job;
}

// A variant with a rate and nothing else.
inline Method TestMethod(const std::string& name, int ranks, double samples_per_second) {
  Method method;
  method.name = name;
  method.state = MethodState::kSucceeded;
  method.layout = Degrees{1, 1, ranks, ranks};
  method.samples_per_second = samples_per_second;
  return method;
}

}  // namespace tercio::compare
