// Every metric of both daemons and of `tercio serve`: name, type, unit, labels, help. The pages for
// Prometheus and docs/metrics.md (metrics_document.h) are generated from this table. A metric
// outside the table cannot be exported: a MetricId exists only for its names, and the compiler
// looks them up.
//
// Names follow Prometheus' rules: base units, `_total` for counters, times as timestamps, `_info`
// for facts. Labels are alphabetical and bounded: `job_id` and `job_name` by the jobs that are
// shown, `rank` by the devices of a node, `node` by the nodes, `model` by a server's flags, all
// others by closed lists.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/string_view.h"

namespace tercio {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };
// kBoth: the page of every program.
enum class MetricExporter : uint8_t { kBoth, kCoordinator, kAgent, kServer };

inline constexpr size_t kMostBuckets = 10;

// Upper bounds of a histogram's buckets, ascending, unused entries 0; values above the last bound
// are counted, too.
using MetricBuckets = std::array<double, kMostBuckets>;

struct MetricSpec {
  absl::string_view name;
  MetricExporter exporter;
  MetricKind kind;
  absl::string_view unit;    // "seconds", "bytes", ...; "1" for a mere number
  absl::string_view labels;  // names, alphabetical, separated by single spaces
  absl::string_view help;    // one line of plain text
  MetricBuckets buckets = {};
};

namespace metric_table {

inline constexpr auto kBoth = MetricExporter::kBoth;
inline constexpr auto kCoordinator = MetricExporter::kCoordinator;
inline constexpr auto kAgent = MetricExporter::kAgent;
inline constexpr auto kServer = MetricExporter::kServer;
inline constexpr auto kCounter = MetricKind::kCounter;
inline constexpr auto kGauge = MetricKind::kGauge;
inline constexpr auto kHistogram = MetricKind::kHistogram;

inline constexpr absl::string_view kJob = "job_id job_name";
inline constexpr absl::string_view kRank = "job_id job_name rank";
inline constexpr absl::string_view kGpu = "gpu uuid";
inline constexpr absl::string_view kMethod = "method service type";

// Buckets for the seconds of a step, a checkpoint, a call, a commit, a token, and for the size of a
// batch.
inline constexpr MetricBuckets kStepBuckets = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
inline constexpr MetricBuckets kSaveBuckets = {0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000};
inline constexpr MetricBuckets kCallBuckets = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30};
inline constexpr MetricBuckets kCommitBuckets = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1, 3, 10};
inline constexpr MetricBuckets kTokenBuckets = {0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};
inline constexpr MetricBuckets kBatchBuckets = {1, 3, 10, 30, 100, 300, 1000, 3000, 10000};

// clang-format off
inline constexpr MetricSpec kAll[] = {
    // ---- jobs ----
    {"tercio_jobs", kCoordinator, kGauge, "jobs", "state", "Jobs in this state, of all that the coordinator knows."},
    {"tercio_jobs_waiting", kCoordinator, kGauge, "jobs", "", "Jobs waiting for devices: the length of the queue."},
    {"tercio_jobs_not_shown", kCoordinator, kGauge, "jobs", "", "Unfinished jobs without series of their own on this page, which is limited in size."},
    {"tercio_job_info", kCoordinator, kGauge, "1", "data device job_id job_name pipeline precision schedule tensor", "1; the layout and numbers of the job. Labels of the layout are empty before the first plan."},
    {"tercio_job_state", kCoordinator, kGauge, "1", "job_id job_name state", "1 for the state that the job is in, 0 for all others."},
    {"tercio_job_attempt", kCoordinator, kGauge, "1", kJob, "Number of the current attempt; 0 before the first."},
    {"tercio_job_submitted_timestamp_seconds", kCoordinator, kGauge, "seconds", kJob, "When the job was submitted."},
    {"tercio_job_last_progress_timestamp_seconds", kCoordinator, kGauge, "seconds", kJob, "When the job last made progress: a rank completed an action of a step or of an evaluation, or the job entered a phase."},
    {"tercio_job_ranks", kCoordinator, kGauge, "ranks", "job_id job_name kind", "Ranks of the job: requested (wanted), and holding devices now (present)."},
    {"tercio_job_loading_bytes", kCoordinator, kGauge, "bytes", "job_id job_name kind", "State that the ranks of the job load before their first step: in total (wanted), and so far (loaded); both 0 while no rank is loading."},
    {"tercio_job_time_seconds", kCoordinator, kGauge, "seconds", "job_id job_name kind", "Time of the job since it was submitted, by kind; the kinds sum to its age. Not a counter: productive time becomes lost work when an attempt breaks."},

    // ---- training ----
    {"tercio_job_step", kCoordinator, kGauge, "steps", kJob, "Last completed step."},
    {"tercio_job_target_steps", kCoordinator, kGauge, "steps", kJob, "Step at which the job ends."},
    {"tercio_job_tokens", kCoordinator, kGauge, "tokens", kJob, "Tokens trained on up to the last step; falls when a restart goes back to a checkpoint."},
    {"tercio_job_tokens_per_second", kCoordinator, kGauge, "tokens per second", kJob, "Throughput at the last step."},
    {"tercio_job_mfu_ratio", kCoordinator, kGauge, "ratio", kJob, "Model-FLOPs utilisation at the last step, attention counted full; only on GPUs whose peak is known."},
    {"tercio_job_loss", kCoordinator, kGauge, "nats per token", kJob, "Loss of the last step."},
    {"tercio_job_validation_loss", kCoordinator, kGauge, "nats per token", kJob, "Loss of the last evaluation."},
    {"tercio_job_validation_score", kCoordinator, kGauge, "1", "job_id job_name metric", "Scores of the last evaluation of a classifier: accuracy, precision, recall and f1 (of the second class of two, else the mean over classes)."},
    {"tercio_job_best_step", kCoordinator, kGauge, "steps", kJob, "Step of the best checkpoint, which training.evaluate.keep_best keeps; only where there is one."},
    {"tercio_job_reward_margin", kCoordinator, kGauge, "1", kJob, "Mean reward of chosen answers above that of rejected ones, in the last step; where preferences are learnt."},
    {"tercio_job_reward_accuracy_ratio", kCoordinator, kGauge, "ratio", kJob, "Share of pairs whose chosen answer has the greater reward, in the last step; where preferences are learnt."},
    {"tercio_job_test_loss", kCoordinator, kGauge, "nats per token", kJob, "Loss of the test data, evaluated after the last step."},
    {"tercio_job_test_score", kCoordinator, kGauge, "1", "job_id job_name metric", "Scores of the test data, as tercio_job_validation_score."},
    {"tercio_job_learning_rate", kCoordinator, kGauge, "1", kJob, "Learning rate of the last step."},
    {"tercio_job_gradient_norm", kCoordinator, kGauge, "1", kJob, "Gradient norm of the last step, before clipping."},
    {"tercio_job_loss_scale", kCoordinator, kGauge, "1", kJob, "Loss scale of the last step; fp16 only."},
    {"tercio_job_step_duration_seconds", kCoordinator, kHistogram, "seconds", kJob, "Duration of steps.", kStepBuckets},
    {"tercio_job_skipped_steps_total", kCoordinator, kCounter, "steps", kJob, "Steps that changed no weights because the loss or the gradients were not finite."},
    {"tercio_job_spikes_total", kCoordinator, kCounter, "steps", kJob, "Steps whose loss or gradient norm was far above that of the steps before."},
    {"tercio_job_predicted_step_seconds", kCoordinator, kGauge, "seconds", kJob, "Step duration predicted by the planner."},
    {"tercio_job_predicted_mfu_ratio", kCoordinator, kGauge, "ratio", kJob, "Model-FLOPs utilisation predicted by the planner."},
    {"tercio_job_predicted_bubble_ratio", kCoordinator, kGauge, "ratio", kJob, "Idle time of the pipeline over its ideal time, predicted by the planner."},
    {"tercio_job_predicted_memory_bytes", kCoordinator, kGauge, "bytes", kJob, "Memory of the rank that needs most, predicted by the planner."},

    // ---- faults ----
    {"tercio_job_restarts_total", kCoordinator, kCounter, "restarts", "cause job_id job_name", "Restarts of the job, by what broke the previous attempt."},
    {"tercio_job_restarts_left", kCoordinator, kGauge, "restarts", kJob, "Restarts left of fault_tolerance.max_restarts; at 0 the next fault fails the job."},
    {"tercio_job_hangs_total", kCoordinator, kCounter, "hangs", kJob, "Attempts that hung and were ended."},
    {"tercio_job_stragglers", kCoordinator, kGauge, "ranks", kJob, "Ranks that currently compute much longer than their peers; 0 while the job is not running."},
    {"tercio_fenced_messages_total", kCoordinator, kCounter, "messages", "", "Messages from nodes about attempts that had already ended; they were ignored."},
    {"tercio_events_total", kCoordinator, kCounter, "events", "kind", "Events of all jobs and nodes, as shown by `tercio events`, by kind."},

    // ---- checkpoints ----
    {"tercio_checkpoint_last_success_timestamp_seconds", kCoordinator, kGauge, "seconds", kJob, "When the last checkpoint was committed; absent before the first."},
    {"tercio_checkpoint_step", kCoordinator, kGauge, "steps", kJob, "Step of the last committed checkpoint; 0 if there is none."},
    {"tercio_checkpoint_verified_step", kCoordinator, kGauge, "steps", kJob, "Step of the newest checkpoint that was read back in full and found intact; 0 if there is none."},
    {"tercio_checkpoint_damaged", kCoordinator, kGauge, "checkpoints", kJob, "Checkpoints of the job that are known to be damaged and have not been removed."},
    {"tercio_checkpoint_unreadable", kCoordinator, kGauge, "", kJob, "1 while the job waits because no checkpoint can be read; else 0."},
    {"tercio_checkpoint_every_steps", kCoordinator, kGauge, "steps", kJob, "Steps between two checkpoints, as configured for the job."},
    {"tercio_checkpoint_bytes", kCoordinator, kGauge, "bytes", kJob, "Size of the last committed checkpoint."},
    {"tercio_checkpoint_duration_seconds", kCoordinator, kHistogram, "seconds", kJob, "From the first byte of a checkpoint to its commit.", kSaveBuckets},
    {"tercio_checkpoint_failures_total", kCoordinator, kCounter, "checkpoints", "job_id job_name reason", "Checkpoints that failed, by reason; training continued."},
    {"tercio_checkpoint_store_size_bytes", kCoordinator, kGauge, "bytes", "", "Size of the file system that holds the checkpoints."},
    {"tercio_checkpoint_store_free_bytes", kCoordinator, kGauge, "bytes", "", "Bytes of that file system that are free for the coordinator."},
    {"tercio_checkpoint_store_inodes", kCoordinator, kGauge, "inodes", "", "Inodes of the file system that holds the checkpoints; 0 if it has no such limit."},
    {"tercio_checkpoint_store_free_inodes", kCoordinator, kGauge, "inodes", "", "Inodes of that file system that are free."},

    // ---- nodes ----
    {"tercio_nodes", kCoordinator, kGauge, "nodes", "", "Nodes whose agents are connected."},
    {"tercio_nodes_by_state", kCoordinator, kGauge, "nodes", "state", "Nodes in this state."},
    {"tercio_node_state", kCoordinator, kGauge, "1", "node state", "1 for the state that the node is in, 0 for all others."},
    {"tercio_devices", kCoordinator, kGauge, "devices", "", "Devices of connected nodes."},
    {"tercio_devices_free", kCoordinator, kGauge, "devices", "", "Schedulable devices that no job holds."},
    {"tercio_devices_faulty", kCoordinator, kGauge, "devices", "", "GPUs of connected nodes that are faulty and get no ranks."},
    {"tercio_agent_connected", kCoordinator, kGauge, "1", "node", "1 if the node's agent is connected."},
    {"tercio_agent_last_heartbeat_timestamp_seconds", kCoordinator, kGauge, "seconds", "node", "When the coordinator last received a message from the agent; absent if it has received none since it started."},
    {"tercio_agent_devices", kCoordinator, kGauge, "devices", "node", "Devices that the agent offers."},
    {"tercio_agent_devices_free", kCoordinator, kGauge, "devices", "node", "Schedulable devices of the node that no job holds."},

    // ---- service ----
    {"tercio_rpc_started_total", kCoordinator, kCounter, "calls", kMethod, "Calls started, including streams."},
    {"tercio_rpc_handled_total", kCoordinator, kCounter, "calls", "code method service type", "Calls completed, by gRPC status code; codes other than OK appear with their first call."},
    {"tercio_rpc_open", kCoordinator, kGauge, "calls", kMethod, "Calls in progress, including open streams."},
    {"tercio_rpc_duration_seconds", kCoordinator, kHistogram, "seconds", kMethod, "Duration of calls; for streams, how long they were open.", kCallBuckets},
    {"tercio_streams", kCoordinator, kGauge, "streams", "", "Clients that are following jobs."},
    {"tercio_streams_refused_total", kCoordinator, kCounter, "streams", "", "Streams refused because there were already --max-streams."},
    {"tercio_streams_cut_off_total", kCoordinator, kCounter, "streams", "", "Streams closed because their clients did not read."},
    {"tercio_access_refused_total", kCoordinator, kCounter, "requests", "reason", "Refused requests: handshakes, enrolments, and calls with a revoked certificate, without the required role, on another user's job or another node, or above the rate limit; without TLS nothing is refused."},
    {"tercio_audit_lines_lost_total", kCoordinator, kCounter, "lines", "", "Audit log lines that could not be written; always 0 without TLS."},
    {"tercio_events_queued", kCoordinator, kGauge, "events", "", "Events waiting to be processed."},
    {"tercio_batch_events", kCoordinator, kHistogram, "events", "", "Events processed together and made durable by one commit.", kBatchBuckets},
    {"tercio_store_commit_duration_seconds", kCoordinator, kHistogram, "seconds", "", "Duration of commits of the state store, until they are on disk.", kCommitBuckets},
    {"tercio_store_commit_failures_total", kCoordinator, kCounter, "commits", "", "Commits that failed; each is retried until it succeeds, and no other event is processed meanwhile."},
    {"tercio_store_bytes", kCoordinator, kGauge, "bytes", "", "Size of the state store's file."},

    // ---- ranks ----
    {"tercio_rank_info", kAgent, kGauge, "1", "data device job_id job_name pipeline rank tensor", "1; the rank's place in the grid, and its device on the node."},
    {"tercio_tokens_total", kAgent, kCounter, "tokens", kRank, "Tokens that the job has trained on, counted by each of its ranks."},
    {"tercio_steps_total", kAgent, kCounter, "steps", kRank, "Optimizer steps that the rank has completed."},
    {"tercio_tokens_per_second", kAgent, kGauge, "tokens per second", kRank, "Throughput of the whole job at the last step."},
    {"tercio_mfu_ratio", kAgent, kGauge, "ratio", "convention job_id job_name rank", "Model-FLOPs utilisation of the job at the last step, attention counted full or causal; only on GPUs whose peak is known."},
    {"tercio_step", kAgent, kGauge, "steps", kRank, "Last completed step."},
    {"tercio_step_seconds", kAgent, kGauge, "seconds", kRank, "Duration of the last step."},
    {"tercio_communication_seconds", kAgent, kGauge, "seconds", kRank, "Part of the last step that the rank spent waiting for others, including its replicas; the rank that waits least is the slow one."},
    {"tercio_loss", kAgent, kGauge, "nats per token", kRank, "Loss of the last step of the job, as the rank knows it."},
    {"tercio_grad_norm", kAgent, kGauge, "1", kRank, "Gradient norm of the last step of the job, before clipping."},
    {"tercio_phase_seconds_total", kAgent, kCounter, "seconds", "job_id job_name phase rank", "Time of the rank's training loop by phase; the phases sum to the time since its first step. Measured on the host: a GPU runs behind it, and the time that the host waits for the GPU is in other."},
    {"tercio_state_bytes_total", kAgent, kCounter, "bytes", "job_id job_name rank what", "Bytes of the training state that the rank has sent to other data ranks (`gathered`: weights, `reduced`: gradients), and that its process has read from and written to disks (`read`, `written`: with `offload`, and checkpoints)."},
    {"tercio_state_seconds_total", kAgent, kCounter, "seconds", "job_id job_name part rank what", "Time that exchanges of weights (`gather`) and gradients (`reduce`) between data ranks took, and the part of it that the rank waited for; the rest was hidden behind computing. Of ranks on CPUs: a GPU's is in a trace."},
    {"tercio_communication_bytes_total", kAgent, kCounter, "bytes", "group job_id job_name rank", "Bytes that the rank has sent to other ranks, by kind of group; under NCCL those of its collectives are computed, for a ring."},
    {"tercio_gpu_fallbacks_total", kAgent, kCounter, "shapes", "job_id job_name rank what", "Shapes of operations that the rank on a GPU computes in a slower way than was meant, since a library refused them: epilogues of products apart (gelu, gelu_gradient, bias_gradient), products by another algorithm than that of the table (table_algorithm) or than the library's first (product_algorithm), attention by our own kernel (attention)."},
    {"tercio_rank_cpu_seconds_total", kAgent, kCounter, "seconds", kRank, "Processor time of the rank's process."},
    {"tercio_log_lines_lost_total", kAgent, kCounter, "lines", kRank, "Log lines of the rank that were dropped because the disk could not be written or there were too many."},
    {"tercio_memory_bytes", kAgent, kGauge, "bytes", "job_id job_name kind rank", "Memory of the rank. planned: the arena of its device, by the plan. Measured: used, of the arena (CPU: resident pages; GPU: what its allocation took of the free memory); peak, the maximum of arena and memory outside it; resident, of its process."},
    {"tercio_load_seconds", kAgent, kGauge, "seconds", "job_id job_name rank source", "How long the rank took to load its initial state, from a copy of a snapshot (memory) or from a checkpoint or weights (disk)."},
    {"tercio_checkpoint_sent_bytes_total", kAgent, kCounter, "bytes", kRank, "Bytes of checkpoints that the rank has sent."},
    {"tercio_checkpoint_send_seconds", kAgent, kGauge, "seconds", kRank, "Duration of the rank's last checkpoint stream."},
    {"tercio_checkpoint_send_failures_total", kAgent, kCounter, "streams", kRank, "Checkpoint streams of the rank that failed."},

    // ---- agent ----
    {"tercio_trainers", kAgent, kGauge, "processes", "", "Trainers running on this node."},
    {"tercio_trainer_exits_total", kAgent, kCounter, "processes", "kind", "Trainers that have ended: by themselves with success (normal), or otherwise (fault)."},
    {"tercio_coordinator_connected", kAgent, kGauge, "1", "", "1 while the agent is connected to the coordinator."},
    {"tercio_agent_spool_bytes", kAgent, kGauge, "bytes", "", "Messages that the coordinator has not acknowledged; at --spool-limit log lines are dropped."},
    {"tercio_agent_snapshot_bytes", kAgent, kGauge, "bytes", "", "Copies of snapshots in the agent's memory."},
    {"tercio_agent_memory_bytes", kAgent, kGauge, "bytes", "", "Memory of the machine."},
    {"tercio_agent_memory_available_bytes", kAgent, kGauge, "bytes", "", "Memory of the machine that processes can use without swapping."},
    {"tercio_agent_state_free_bytes", kAgent, kGauge, "bytes", "", "Free bytes on the file system of the state directory: logs, spool, token cache."},

    // ---- GPUs ----
    {"tercio_gpu_info", kAgent, kGauge, "1", "driver gpu model uuid", "1; driver, model and UUID of the GPU."},
    {"tercio_gpu_faulty", kAgent, kGauge, "1", kGpu, "1 if the GPU is faulty and gets no ranks."},
    {"tercio_gpu_last_sample_timestamp_seconds", kAgent, kGauge, "seconds", kGpu, "When the driver last answered; until its first answer, when the agent started."},
    {"tercio_gpu_xid_errors_total", kAgent, kCounter, "errors", "gpu uuid xid", "Errors that the driver has reported, by XID; a code appears with its first error."},
    {"tercio_gpu_utilization_ratio", kAgent, kGauge, "ratio", kGpu, "Share of the time with a kernel running."},
    {"tercio_gpu_memory_utilization_ratio", kAgent, kGauge, "ratio", kGpu, "Share of the time with memory being read or written."},
    {"tercio_gpu_memory_bytes", kAgent, kGauge, "bytes", "gpu kind uuid", "Memory of the GPU: total (size), and in use by any process (used)."},
    {"tercio_gpu_power_watts", kAgent, kGauge, "watts", kGpu, "Power that the GPU draws."},
    {"tercio_gpu_power_limit_watts", kAgent, kGauge, "watts", kGpu, "Power that the GPU may draw."},
    {"tercio_gpu_temperature_celsius", kAgent, kGauge, "celsius", kGpu, "Temperature of the die."},
    {"tercio_gpu_sm_clock_hertz", kAgent, kGauge, "hertz", kGpu, "Clock rate of the multiprocessors."},
    {"tercio_gpu_sm_clock_limit_hertz", kAgent, kGauge, "hertz", kGpu, "Maximum clock rate of the multiprocessors."},
    {"tercio_gpu_memory_clock_hertz", kAgent, kGauge, "hertz", kGpu, "Clock rate of the memory."},
    {"tercio_gpu_clocks_limited", kAgent, kGauge, "1", "gpu reason uuid", "1 for each reason that currently limits the clocks."},
    {"tercio_gpu_processes", kAgent, kGauge, "processes", kGpu, "Processes with a context on the GPU."},
    {"tercio_gpu_ecc_enabled", kAgent, kGauge, "1", kGpu, "1 if memory errors are corrected and counted."},
    {"tercio_gpu_ecc_errors_total", kAgent, kCounter, "errors", "gpu kind uuid", "ECC errors since the driver was loaded."},
    {"tercio_gpu_lifetime_ecc_errors_total", kAgent, kCounter, "errors", "gpu kind uuid", "ECC errors over the lifetime of the GPU."},
    {"tercio_gpu_remapped_rows", kAgent, kGauge, "rows", "gpu kind uuid", "Rows of memory that were remapped, by the kind of their errors."},
    {"tercio_gpu_row_remap_failed", kAgent, kGauge, "1", kGpu, "1 if a row could not be remapped because no spare row was left."},
    {"tercio_gpu_retirement_pending", kAgent, kGauge, "1", kGpu, "1 if a reset would take faulty rows or pages out of use."},
    {"tercio_gpu_pcie_generation", kAgent, kGauge, "1", kGpu, "PCIe generation that the link runs at."},
    {"tercio_gpu_pcie_lanes", kAgent, kGauge, "lanes", kGpu, "PCIe lanes that the link uses."},
    {"tercio_gpu_nvlinks", kAgent, kGauge, "links", "gpu kind uuid", "NVLinks of the GPU: all, and those that are up (active)."},

    // ---- tercio serve ----
    {"tercio_serve_requests_total", kServer, kCounter, "requests", "code endpoint", "Requests answered, by endpoint and HTTP status; 499: the client had gone before its answer was complete."},
    {"tercio_serve_prompt_tokens_total", kServer, kCounter, "tokens", "", "Tokens of prompts that the model was given."},
    {"tercio_serve_new_tokens_total", kServer, kCounter, "tokens", "", "Tokens that were generated."},
    {"tercio_serve_model_requests_total", kServer, kCounter, "requests", "model", "Requests that the model was given, by what they name: it, or one of its adapters."},
    {"tercio_serve_model_new_tokens_total", kServer, kCounter, "tokens", "model", "Tokens that were generated, by what their requests name."},
    {"tercio_serve_queued_texts", kServer, kGauge, "texts", "", "Texts waiting for a free slot, or for pages of the cache."},
    {"tercio_serve_growing_texts", kServer, kGauge, "texts", "", "Texts that are growing: slots in use."},
    {"tercio_serve_slots", kServer, kGauge, "slots", "", "Texts that can grow at the same time."},
    {"tercio_serve_cache_pages", kServer, kGauge, "pages", "", "Pages of the cache of keys and values."},
    {"tercio_serve_used_cache_pages", kServer, kGauge, "pages", "", "Pages that texts use. The others are free, whether or not they keep what earlier texts have left."},
    {"tercio_serve_reused_prompt_tokens_total", kServer, kCounter, "tokens", "", "Tokens of prompts whose keys and values were in the cache: they were not computed."},
    {"tercio_serve_evicted_texts_total", kServer, kCounter, "texts", "", "Times that a text gave its pages to an older one, and has to be read again."},
    {"tercio_serve_connections", kServer, kGauge, "connections", "", "Open connections of clients."},
    {"tercio_serve_first_token_seconds", kServer, kHistogram, "seconds", "", "From a complete request to the first token of each of its texts, with the time that it waited.", kTokenBuckets},
    {"tercio_serve_next_token_seconds", kServer, kHistogram, "seconds", "", "From a token of a text to its next one.", kTokenBuckets},

    // ---- process ----
    {"tercio_build_info", kBoth, kGauge, "1", "commit version", "1; version and commit of the program. The commit is unknown if it was built from a working tree."},
    {"tercio_certificate_not_after_timestamp_seconds", kBoth, kGauge, "seconds", "file", "When the daemon's own certificate and its authority's expire; absent without TLS."},
    {"tercio_metrics_requests_total", kBoth, kCounter, "requests", "outcome", "Requests to this server: served; refused (no such page, or not HTTP); dropped (too slow, or too many connections)."},
    {"tercio_metrics_connections", kBoth, kGauge, "connections", "", "Connections to this server."},
    {"process_cpu_seconds_total", kBoth, kCounter, "seconds", "", "Processor time of the process, user and system."},
    {"process_resident_memory_bytes", kBoth, kGauge, "bytes", "", "Resident memory of the process."},
    {"process_virtual_memory_bytes", kBoth, kGauge, "bytes", "", "Virtual memory of the process."},
    {"process_open_fds", kBoth, kGauge, "files", "", "Open files of the process."},
    {"process_max_fds", kBoth, kGauge, "files", "", "Maximum number of open files of the process."},
    {"process_threads", kBoth, kGauge, "threads", "", "Threads of the process."},
    {"process_start_time_seconds", kBoth, kGauge, "seconds", "", "When the process started."},
};
// clang-format on

}  // namespace metric_table

inline constexpr size_t kMetricCount = std::size(metric_table::kAll);

// A metric of the table, by its name as a literal.
class MetricId {
 public:
  // Does not compile for a name that is not in the table.
  consteval MetricId(const char* name) : index_(Find(name)) {}  // NOLINT: meant to convert

  size_t index() const { return index_; }
  const MetricSpec& spec() const { return metric_table::kAll[index_]; }

 private:
  static consteval size_t Find(absl::string_view name) {
    for (size_t i = 0; i < kMetricCount; ++i) {
      if (metric_table::kAll[i].name == name) return i;
    }
    throw "this metric is not in the table";
  }

  size_t index_;
};

}  // namespace tercio
