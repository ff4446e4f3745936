#!/usr/bin/env python3
"""Writes the dashboards beside this file; a test checks that they are what is committed.

    python3 dashboards/make.py [--check]     --check writes nothing and exits with 1 if a file differs
"""

import json
import os
import sys

from grafana import (annotation, bars, dashboard, graph, histogram, number, rows_over_time, states, table, variable)

HERE = os.path.dirname(os.path.abspath(__file__))

JOB = variable("job", "Job", "query_result(tercio_job_info)", '/job_id="(?<value>[^"]+)",job_name="(?<text>[^"]*)"/')
JOBS = variable("job", "Job", "query_result(tercio_job_info)", '/job_id="(?<value>[^"]+)",job_name="(?<text>[^"]*)"/',
                multi=True)
RANK = variable("rank", "Rank", 'label_values(tercio_steps_total{job_id=~"$job"}, rank)', multi=True)
NODE = variable("node", "Node", "label_values(tercio_trainers, node)", multi=True)

RESTARTS = annotation("Restarts", "red", 'sum by (job_id, job_name, cause) (increase(tercio_job_restarts_total[1m])) > 0',
                      "{{job_name}} restarts", "{{cause}}")
RESTARTS_OF_JOB = annotation(
    "Restarts", "red", 'sum by (job_id, job_name, cause) (increase(tercio_job_restarts_total{job_id=~"$job"}[1m])) > 0',
    "{{job_name}} restarts", "{{cause}}")
COMMITS = annotation("Checkpoints", "green", 'changes(tercio_checkpoint_step{job_id=~"$job"}[1m]) > 0', "{{job_name}}",
                     "checkpoint committed")
OF_JOB = '{job_id=~"$job"}'
OF_RANK = '{job_id=~"$job", rank=~"$rank", node=~"$node"}'

# From bad to good, and the other way round.
RISING = ((None, "green"), (1, "orange"), (5, "red"))
ANY_IS_BAD = ((None, "green"), (1, "red"))


def cluster():
    return dashboard(
        "tercio-cluster", "Tercio / Cluster", "All jobs, nodes and devices.", [NODE], [RESTARTS], [
            ("Now", [
                number("Running", "none", "Jobs that are running.", ('tercio_jobs{state="running"}', "")),
                number("Waiting", "none", "Jobs that are waiting for devices.", ("tercio_jobs_waiting", ""), thresholds=RISING),
                number("Nodes lost", "none", "Nodes whose agents have stopped sending heartbeats.", ('tercio_nodes_by_state{state="lost"}', ""),
                       thresholds=ANY_IS_BAD),
                number("Quarantined", "none", "Nodes that failed repeatedly; no ranks are scheduled on them until they are released.",
                       ('tercio_nodes_by_state{state="quarantined"}', ""), thresholds=ANY_IS_BAD),
                number("Devices free", "none", "Devices that no job holds.", ("tercio_devices_free", "")),
                number("Devices faulty", "none", "GPUs on which no ranks are scheduled because they are faulty.", ("tercio_devices_faulty", ""),
                       thresholds=ANY_IS_BAD),
            ]),
            ("Jobs", [
                graph("Jobs by state", "none", "Jobs in each state, without those that have ended.",
                      ('tercio_jobs{state!~"succeeded|failed|cancelled"}', "{{state}}"), stack=True),
                graph("Throughput", "short", "Tokens per second of each job at its last step.",
                      ("tercio_job_tokens_per_second", "{{job_name}}"), stack=True),
                graph("Goodput", "percentunit", "Share of the last 15 minutes spent on steps that count, on all ranks or "
                      "fewer.", ("clamp_min(tercio:job_goodput:ratio15m, 0)", "{{job_name}}"), high=1),
                graph("Restarts", "none", "Restarts in the last hour, by what broke the previous attempt.",
                      ("sum by (cause) (increase(tercio_job_restarts_total[1h]))", "{{cause}}")),
                table("All jobs", "none", "Jobs that Prometheus currently knows, with their layouts. An id links to the dashboard of the job.",
                      "tercio_job_info", hidden=("node",), links=(("job_id", "tercio-job", "job"),)),
            ]),
            ("Nodes", [
                graph("Nodes by state", "none", "Ranks are scheduled on ready nodes only.",
                      ("tercio_nodes_by_state", "{{state}}"), stack=True),
                graph("Devices", "none", "Devices of connected nodes: all, free and faulty.", ("tercio_devices", "all"),
                      ("tercio_devices_free", "free"), ("tercio_devices_faulty", "faulty")),
                graph("Since the last heartbeat", "s", "A node is lost after 2.75 heartbeat intervals (13.75 s).",
                      ('clamp_min(time() - tercio_agent_last_heartbeat_timestamp_seconds{node=~"$node"}, 0)', "{{node}}")),
                graph("Trainers", "none", "Trainer processes on each node.", ('tercio_trainers{node=~"$node"}', "{{node}}"),
                      stack=True),
                graph("Disk of agents", "bytes", "Free space on the file system of each agent's state directory: logs, spool, tokens.",
                      ('tercio_agent_state_free_bytes{node=~"$node"}', "{{node}}")),
                graph("Memory of machines", "percentunit", "Share of the memory of each agent's machine that is available to processes.",
                      ('tercio_agent_memory_available_bytes{node=~"$node"} / tercio_agent_memory_bytes{node=~"$node"}',
                       "{{node}}"), high=1),
                graph("Unacknowledged messages", "bytes", "Messages that agents keep until the coordinator has acknowledged them.",
                      ('tercio_agent_spool_bytes{node=~"$node"}', "{{node}}")),
                graph("Events", "none", "Events of the last five minutes, as shown by `tercio events`.",
                      ("sum by (kind) (increase(tercio_events_total[5m])) > 0", "{{kind}}"), width=24),
            ]),
            ("GPUs", [
                graph("Utilisation", "percentunit", "Share of the time with a kernel running.",
                      ('tercio_gpu_utilization_ratio{node=~"$node"}', "{{node}} {{gpu}}"), high=1),
                graph("Memory", "bytes", "Memory in use by any process.", ('tercio_gpu_memory_bytes{node=~"$node", kind="used"}',
                                                              "{{node}} {{gpu}}")),
                graph("Power", "watt", "Power that each GPU draws.", ('tercio_gpu_power_watts{node=~"$node"}', "{{node}} {{gpu}}")),
                graph("Temperature", "celsius", "Temperature of the die.", ('tercio_gpu_temperature_celsius{node=~"$node"}',
                                                               "{{node}} {{gpu}}")),
                graph("Clock", "hertz", "Clock rate of the multiprocessors. The other GPUs wait for one that is far below theirs.",
                      ('tercio_gpu_sm_clock_hertz{node=~"$node"}', "{{node}} {{gpu}}")),
                rows_over_time("Clocks held back", "none", "1 while a GPU is slowed down by heat, power or hardware.",
                               ('max by (node, gpu) (tercio_gpu_clocks_limited{node=~"$node", '
                                'reason=~".*slowdown|power_brake"})', "{{node}} {{gpu}}"), width=12, height=8),
                graph("XID errors", "none", "Errors that the driver reported in the last hour.",
                      ('increase(tercio_gpu_xid_errors_total{node=~"$node"}[1h])', "{{node}} {{gpu}} XID {{xid}}")),
                graph("ECC errors", "none", "Memory errors in the last hour.",
                      ('sum by (node, gpu, kind) (increase(tercio_gpu_ecc_errors_total{node=~"$node"}[1h]))',
                       "{{node}} {{gpu}} {{kind}}")),
                table("GPUs", "none", "Model, UUID and driver of each GPU.", 'tercio_gpu_info{node=~"$node"}', height=6),
            ]),
        ])


def job():
    mean_step = (f"sum by (job_id, job_name) (rate(tercio_job_step_duration_seconds_sum{OF_JOB}[$__rate_interval])) / "
                 f"sum by (job_id, job_name) (rate(tercio_job_step_duration_seconds_count{OF_JOB}[$__rate_interval]))")
    return dashboard(
        "tercio-job", "Tercio / Job", "One training job.", [JOB], [RESTARTS_OF_JOB, COMMITS], [
            ("Now", [
                number("Step", "none", "Last completed step.", (f"tercio_job_step{OF_JOB}", ""), width=3),
                number("Done", "percentunit", "Share of all steps.", (f"tercio_job_step{OF_JOB} / tercio_job_target_steps{OF_JOB}", ""),
                       width=3),
                number("Time left", "s", "Estimated from the rate of the last five minutes.",
                       (f"tercio:job_eta:seconds{OF_JOB}", ""), width=3),
                number("Loss", "none", "Loss of the last step.", (f"tercio_job_loss{OF_JOB}", ""), width=3),
                number("Throughput", "short", "Tokens per second at the last step.", (f"tercio_job_tokens_per_second{OF_JOB}", ""), width=3),
                number("Goodput", "percentunit", "Share of the job's time spent on steps that count.",
                       (f'sum(tercio_job_time_seconds{{job_id=~"$job", kind=~"productive|degraded"}}) / '
                        f"sum(tercio_job_time_seconds{OF_JOB})", ""), width=3),
                number("Restarts", "none", "Restarts since the coordinator started.",
                       (f"sum(tercio_job_restarts_total{OF_JOB})", ""), width=3, thresholds=RISING),
                number("Last checkpoint", "s", "Time since the last checkpoint was committed.",
                       (f"time() - tercio_checkpoint_last_success_timestamp_seconds{OF_JOB}", ""), width=3),
            ]),
            ("Progress", [
                states("State", "The state that the job is in.", (f"tercio_job_state{OF_JOB}", "{{state}}"), height=6),
                graph("Loss", "none", "Training loss of each step and loss on the validation data, in nats per token.",
                      (f"tercio_job_loss{OF_JOB}", "training"), (f"tercio_job_validation_loss{OF_JOB}", "validation"), low=None),
                graph("Throughput", "short", "Tokens per second, at the last step and as the mean over time.",
                      (f"tercio_job_tokens_per_second{OF_JOB}", "last step"),
                      (f"max(rate(tercio_tokens_total{OF_JOB}[$__rate_interval]))", "mean")),
                graph("Gradient norm", "none", "Norm before clipping; growth over many steps announces a divergence.",
                      (f"tercio_job_gradient_norm{OF_JOB}", "gradient norm"), log=True),
                graph("Learning rate", "none", "Learning rate of the last step; in fp16 also the loss scale, divided by 10^9.",
                      (f"tercio_job_learning_rate{OF_JOB}", "learning rate"),
                      (f"tercio_job_loss_scale{OF_JOB} / 1e9", "loss scale / 1e9")),
                graph("Steps not used", "none", "Steps of the last hour that were skipped because a number was not finite, or that "
                      "were spikes.", (f"increase(tercio_job_skipped_steps_total{OF_JOB}[1h])", "skipped"),
                      (f"increase(tercio_job_spikes_total{OF_JOB}[1h])", "spikes"), width=8),
                graph("Ranks", "none", "Ranks that hold devices, and ranks that the job requests.",
                      (f'tercio_job_ranks{{job_id=~"$job"}}', "{{kind}}"), width=8),
                graph("Loading", "bytes", "State that the ranks load before their first step: in total, and loaded so far.",
                      (f"tercio_job_loading_bytes{OF_JOB}", "{{kind}}"), width=8),
                graph("Quality of a classifier", "percentunit", "Scores of the last evaluation of the validation data; at the end those of the "
                      "test data.", (f"tercio_job_validation_score{OF_JOB}", "validation {{metric}}"),
                      (f"tercio_job_test_score{OF_JOB}", "test {{metric}}")),
                number("Best step", "none", "Step of the best checkpoint, which is kept.", (f"tercio_job_best_step{OF_JOB}", ""), width=6),
                number("Loss of the test data", "none", "In nats per prediction, evaluated after the last step.",
                       (f"tercio_job_test_loss{OF_JOB}", ""), width=6),
            ]),
            ("Speed", [
                graph("Time of a step", "s", "Mean over time, the planner's prediction, and the 99th percentile (from buckets).",
                      (mean_step, "mean"), (f"tercio_job_predicted_step_seconds{OF_JOB}", "predicted"),
                      (f"histogram_quantile(0.99, sum by (le) (rate(tercio_job_step_duration_seconds_bucket{OF_JOB}"
                       f"[$__rate_interval])))", "99 %")),
                histogram("Distribution of steps", "s", "Steps per second, by duration.",
                          f"sum by (le) (rate(tercio_job_step_duration_seconds_bucket{OF_JOB}[$__rate_interval]))"),
                graph("Model-FLOPs utilisation", "percentunit", "With attention counted full and causal, and as predicted; only on "
                      "GPUs whose peak is known.",
                      (f"max by (convention) (tercio_mfu_ratio{OF_JOB})", "{{convention}}"),
                      (f"tercio_job_predicted_mfu_ratio{OF_JOB}", "predicted")),
                graph("Idle time of the pipeline", "percentunit", "Time that ranks wait for each other over the time that they "
                      "compute, and the bubble inherent in the layout.",
                      (f"tercio:job_wait:ratio5m{OF_JOB}", "waiting, measured"),
                      (f"tercio_job_predicted_bubble_ratio{OF_JOB}", "bubble, predicted")),
                graph("Where the time goes", "percentunit", "Share of the time of all ranks, by phase.",
                      (f"sum by (phase) (rate(tercio_phase_seconds_total{OF_JOB}[$__rate_interval])) / scalar("
                       f"sum(rate(tercio_phase_seconds_total{OF_JOB}[$__rate_interval])))", "{{phase}}"), stack=True, high=1),
                graph("Bytes between ranks", "Bps", "Bytes that all ranks send to each other per second, by kind of group.",
                      (f"sum by (group) (rate(tercio_communication_bytes_total{OF_JOB}[$__rate_interval]))", "{{group}}"), stack=True),
                graph("Training state on the move", "Bps", "Weights and gradients between data ranks, and what processes read from and "
                      "write to disks.",
                      (f"sum by (what) (rate(tercio_state_bytes_total{OF_JOB}[$__rate_interval]))", "{{what}}")),
                graph("Time for moving it", "percentunit", "Share of the ranks' time that exchanges of weights and gradients take, and that "
                      "ranks wait for them.",
                      (f"sum by (what, part) (rate(tercio_state_seconds_total{OF_JOB}[$__rate_interval])) / scalar("
                       f"sum(rate(tercio_phase_seconds_total{OF_JOB}[$__rate_interval])))", "{{what}}: {{part}}")),
                graph("Restarts", "none", "Restarts in the last hour, by what broke the previous attempt.",
                      (f"sum by (cause) (increase(tercio_job_restarts_total{OF_JOB}[1h]))", "{{cause}}")),
            ]),
        ])


def ranks():
    wait = (f'sum by (rank) (rate(tercio_phase_seconds_total{{job_id=~"$job", rank=~"$rank", node=~"$node", phase="wait"}}'
            f"[$__rate_interval])) / sum by (rank) (rate(tercio_phase_seconds_total{OF_RANK}[$__rate_interval]))")
    return dashboard(
        "tercio-ranks", "Tercio / Ranks", "The ranks of one job side by side.", [JOB, NODE, RANK],
        [RESTARTS_OF_JOB, COMMITS], [
            ("Stragglers", [
                number("Stragglers", "none", "Ranks that compute much longer than their peers.",
                       (f"tercio_job_stragglers{OF_JOB}", ""), thresholds=ANY_IS_BAD),
                number("Hangs", "none", "Attempts that hung and were ended, in the last hour.",
                       (f"increase(tercio_job_hangs_total{OF_JOB}[1h])", ""), thresholds=ANY_IS_BAD),
                number("Slowest rank", "percentunit", "How much longer it computes than the median.",
                       (f"tercio:job_imbalance:ratio5m{OF_JOB}", "")),
                number("Log lines lost", "none", "Log lines of all ranks lost in the last hour.",
                       (f"sum(increase(tercio_log_lines_lost_total{OF_RANK}[1h]))", ""), thresholds=ANY_IS_BAD),
                rows_over_time("Share of time waiting for others", "percentunit", "One row for each rank. The rank that waits least "
                               "is the one that the others wait for.", (wait, "{{rank}}"), colours="continuous-YlBl"),
                graph("Waiting in the last step", "s", "Time that each rank waited for others in the last step.",
                      (f"tercio_communication_seconds{OF_RANK}", "{{rank}}")),
                graph("Computing in the last step", "s", "Time of the last step without waiting; ranks of one stage should be alike.",
                      (f"tercio_step_seconds{OF_RANK} - tercio_communication_seconds{OF_RANK}", "{{rank}}")),
                graph("Last completed step", "none", "Ranks of a job are never more than one step apart.",
                      (f"tercio_step{OF_RANK}", "{{rank}}"), low=None),
                graph("Processor cores", "none", "Processor cores used by each rank's process.",
                      (f"rate(tercio_rank_cpu_seconds_total{OF_RANK}[$__rate_interval])", "{{rank}}")),
                graph("Bytes sent", "Bps", "Bytes that each rank sends to others per second.",
                      (f"sum by (rank) (rate(tercio_communication_bytes_total{OF_RANK}[$__rate_interval]))", "{{rank}}")),
            ]),
            ("Phases", [
                graph("Phases of the chosen ranks", "percentunit", "Share of the time of all chosen ranks.",
                      (f"sum by (phase) (rate(tercio_phase_seconds_total{OF_RANK}[$__rate_interval])) / scalar("
                       f"sum(rate(tercio_phase_seconds_total{OF_RANK}[$__rate_interval])))", "{{phase}}"), stack=True, high=1),
                bars("Phases by rank", "percentunit", "Share of each rank's time, over the last five minutes.",
                     (f"tercio:rank_phase:ratio5m{OF_RANK} > 0.01", "{{rank}} {{phase}}"), high=1),
                table("Places", "none", "Place of each rank in the grid, its node and its device.", f"tercio_rank_info{OF_RANK}", hidden=("job_id", "job_name")),
            ]),
            ("Memory", [
                graph("Arena in use", "bytes", "Measured use of the arena: resident pages on a CPU, on a GPU what the allocation took.",
                      (f'tercio_memory_bytes{{job_id=~"$job", rank=~"$rank", node=~"$node", kind="used"}}', "{{rank}}")),
                graph("Resident", "bytes", "Resident memory of the rank's process.",
                      (f'tercio_memory_bytes{{job_id=~"$job", rank=~"$rank", node=~"$node", kind="resident"}}', "{{rank}}")),
                bars("Arena used / planned", "percentunit", "Measured use of the arena over its planned size.",
                     ('max by (rank) (tercio_memory_bytes{job_id=~"$job", rank=~"$rank", node=~"$node", kind="used"}) / '
                      'max by (rank) (tercio_memory_bytes{job_id=~"$job", rank=~"$rank", node=~"$node", kind="planned"})',
                      "{{rank}}"), high=1),
                bars("Outside the arena", "bytes", "Measured peak of memory less the use of the arena.",
                     ('max by (rank) (tercio_memory_bytes{job_id=~"$job", rank=~"$rank", node=~"$node", kind="peak"}) - '
                      'max by (rank) (tercio_memory_bytes{job_id=~"$job", rank=~"$rank", node=~"$node", kind="used"})',
                      "{{rank}}")),
                bars("Planned", "bytes", "Planned arena of each rank.",
                     (f'tercio_memory_bytes{{job_id=~"$job", rank=~"$rank", node=~"$node", kind="planned"}}', "{{rank}}")),
            ]),
        ])


def checkpoints():
    return dashboard(
        "tercio-checkpoints", "Tercio / Checkpoints and goodput", "What is saved, what saving costs, and where the time goes.",
        [JOBS], [RESTARTS_OF_JOB, COMMITS], [
            ("Goodput", [
                graph("Goodput", "percentunit", "Share of the last 15 minutes spent on steps that count.",
                      (f"clamp_min(tercio:job_goodput:ratio15m{OF_JOB}, 0)", "{{job_name}}"), high=1),
                bars("Where the time has gone", "s", "Time since the jobs were submitted, by kind; the kinds sum to the jobs' ages.",
                     (f"sum by (kind) (tercio_job_time_seconds{OF_JOB})", "{{kind}}")),
                graph("Time by kind", "s", "The same over time. Productive time falls when an attempt breaks: steps that are in no "
                      "checkpoint become lost work.", (f"sum by (kind) (tercio_job_time_seconds{OF_JOB})", "{{kind}}"), stack=True,
                      width=24),
            ]),
            ("Checkpoints", [
                number("Damaged", "none", "Checkpoints that are known to be damaged and have not been removed; jobs start from earlier ones.",
                       (f"sum(tercio_checkpoint_damaged{OF_JOB})", ""), width=8, thresholds=ANY_IS_BAD),
                number("Jobs without a readable checkpoint", "none", "Jobs that wait for a volume, permissions or a disk, and fail after "
                       "--checkpoint-patience.", (f"sum(tercio_checkpoint_unreadable{OF_JOB})", ""), width=8, thresholds=ANY_IS_BAD),
                number("Newest not verified", "none", "Jobs whose last checkpoint has not been read back yet.",
                       (f"sum(tercio_checkpoint_step{OF_JOB} > bool tercio_checkpoint_verified_step{OF_JOB})", ""), width=8),
                graph("Since the last checkpoint", "s", "Work that a fault now would lose, apart from what copies in memory hold.",
                      (f"time() - tercio_checkpoint_last_success_timestamp_seconds{OF_JOB}", "{{job_name}}")),
                graph("Steps since the last checkpoint", "none", "Compared with the interval that the job requests.",
                      (f"tercio_job_step{OF_JOB} - tercio_checkpoint_step{OF_JOB}", "{{job_name}}"),
                      (f"tercio_checkpoint_every_steps{OF_JOB}", "{{job_name}}: every")),
                graph("Steps since the last verified one", "none", "Steps since the newest checkpoint that was read back in full and found "
                      "intact: what would be lost if all later ones were damaged.",
                      (f"tercio_job_step{OF_JOB} - tercio_checkpoint_verified_step{OF_JOB}", "{{job_name}}")),
                graph("Damaged and unreadable", "none", "Damaged checkpoints of each job; 1 while a job waits because it can read no checkpoint.",
                      (f"tercio_checkpoint_damaged{OF_JOB}", "{{job_name}}: damaged"),
                      (f"tercio_checkpoint_unreadable{OF_JOB}", "{{job_name}}: unreadable")),
                graph("Duration", "s", "Time from the first byte of a checkpoint to its commit: mean, and 90th percentile from buckets.",
                      (f"sum by (job_name) (rate(tercio_checkpoint_duration_seconds_sum{OF_JOB}[$__rate_interval])) / "
                       f"sum by (job_name) (rate(tercio_checkpoint_duration_seconds_count{OF_JOB}[$__rate_interval]))",
                       "{{job_name}}: mean"),
                      (f"histogram_quantile(0.9, sum by (job_name, le) (rate("
                       f"tercio_checkpoint_duration_seconds_bucket{OF_JOB}[$__rate_interval])))", "{{job_name}}: 90 %")),
                graph("Size", "bytes", "Size of the last checkpoint.", (f"tercio_checkpoint_bytes{OF_JOB}", "{{job_name}}")),
                graph("Failures", "none", "Checkpoints that failed in the last hour; training continued.",
                      (f"sum by (reason) (increase(tercio_checkpoint_failures_total{OF_JOB}[1h]))", "{{reason}}")),
                graph("Sent by ranks", "Bps", "Checkpoint bytes per second, sent by all ranks.",
                      (f"sum by (job_name) (rate(tercio_checkpoint_sent_bytes_total{OF_JOB}[$__rate_interval]))", "{{job_name}}")),
                graph("Slowest stream", "s", "Duration of the last checkpoint stream of the slowest rank.",
                      (f"max by (job_name) (tercio_checkpoint_send_seconds{OF_JOB})", "{{job_name}}")),
                graph("Loading", "s", "How long the slowest rank took to load its initial state.",
                      (f"max by (job_name, source) (tercio_load_seconds{OF_JOB})", "{{job_name}}, from {{source}}")),
                graph("Being loaded", "bytes", "State that the ranks of each job load before their first step: in total, and loaded so far.",
                      (f"tercio_job_loading_bytes{OF_JOB}", "{{job_name}}: {{kind}}")),
            ]),
            ("Store", [
                graph("Free", "bytes", "Free space on the file system of the checkpoints, now and in four hours at the current rate.",
                      ("tercio_checkpoint_store_free_bytes", "free"),
                      ("predict_linear(tercio_checkpoint_store_free_bytes[1h], 4 * 3600)", "in 4 hours"), low=None),
                graph("Free inodes", "percentunit", "Share of free inodes on the same file system; empty if it has no such limit.",
                      ("tercio_checkpoint_store_free_inodes / (tercio_checkpoint_store_inodes > 0)", "free"), high=1),
                graph("Copies in memory", "bytes", "Size of the snapshot copies in the memory of each agent.",
                      ("tercio_agent_snapshot_bytes", "{{node}}")),
            ]),
        ])


def coordinator():
    return dashboard(
        "tercio-coordinator", "Tercio / Coordinator", "The service itself: calls, decisions, store, process.", [], [RESTARTS], [
            ("Now", [
                number("Uptime", "s", "Time since the process started.",
                       ("time() - process_start_time_seconds and on (instance) tercio_nodes", ""), width=6),
                table("Build", "none", "Running versions of the coordinator and the agents.", "tercio_build_info", width=12,
                      height=4),
                number("Certificate", "s", "Time until the certificate expires; empty without TLS.",
                       ("min(tercio_certificate_not_after_timestamp_seconds) - time()", ""), width=6,
                       thresholds=((None, "red"), (604800, "green"))),
            ]),
            ("Calls", [
                graph("Calls per second", "reqps", "Completed calls, by method.",
                      ("sum by (method) (rate(tercio_rpc_handled_total[$__rate_interval])) > 0", "{{method}}")),
                graph("Errors", "reqps", "Calls per second that ended with a code other than OK, NOT_FOUND, CANCELLED or ABORTED.",
                      ('sum by (method, code) (rate(tercio_rpc_handled_total{code!~"OK|NOT_FOUND|CANCELLED|ABORTED"}'
                       "[$__rate_interval]))", "{{method}} {{code}}")),
                graph("Duration, 99 %", "s", "99th percentile of the duration of unary calls, from buckets.",
                      ("tercio:rpc_duration_seconds:p99_5m", "{{method}}"), log=True),
                graph("Open calls", "none", "Streams of agents (Attach) and clients, uploads, and waiting calls.",
                      ("sum by (method) (tercio_rpc_open) > 0", "{{method}}")),
                graph("Clients following jobs", "none", "Clients now; in the last hour also those that exceeded the limit (refused) or did not read (cut off).",
                      ("tercio_streams", "now"), ("increase(tercio_streams_refused_total[1h])", "refused"),
                      ("increase(tercio_streams_cut_off_total[1h])", "cut off")),
                graph("Refused", "none", "Requests refused in the last hour, by reason, and lost lines of the audit log.",
                      ("increase(tercio_access_refused_total[1h])", "{{reason}}"),
                      ("increase(tercio_audit_lines_lost_total[1h])", "audit lines lost")),
                graph("Messages of ended attempts", "none", "Ignored messages in the last hour. Many of them mean that a node was "
                      "disconnected.", ("increase(tercio_fenced_messages_total[1h])", "fenced")),
            ]),
            ("Decisions and store", [
                graph("Events waiting", "none", "Events waiting to be processed.", ("tercio_events_queued", "waiting")),
                graph("Events per commit", "none", "Mean number of events made durable by one commit.",
                      ("rate(tercio_batch_events_sum[$__rate_interval]) / rate(tercio_batch_events_count[$__rate_interval])",
                       "mean")),
                graph("Duration of commits", "s", "Time until a commit is on disk.",
                      ("tercio:store_commit_duration_seconds:p99_5m", "99 %"),
                      ("rate(tercio_store_commit_duration_seconds_sum[$__rate_interval]) / "
                       "rate(tercio_store_commit_duration_seconds_count[$__rate_interval])", "mean"), log=True),
                histogram("Distribution of commits", "s", "Commits per second, by duration.",
                          "sum by (le) (rate(tercio_store_commit_duration_seconds_bucket[$__rate_interval]))"),
                graph("Failed commits", "none", "Failed commits in the last hour; each is retried, and no other event is processed meanwhile.",
                      ("increase(tercio_store_commit_failures_total[1h])", "failed")),
                graph("Size of the store", "bytes", "The database file.", ("tercio_store_bytes", "state.sqlite")),
            ]),
            ("Processes", [
                graph("Processor", "none", "Cores that each daemon uses.",
                      ("rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) tercio_build_info",
                       "{{instance}}")),
                graph("Memory", "bytes", "Resident memory of each daemon.",
                      ("process_resident_memory_bytes and on (instance) tercio_build_info", "{{instance}}")),
                graph("Open files", "percentunit", "Share of the daemon's limit on open files.",
                      ("process_open_fds / process_max_fds and on (instance) tercio_build_info", "{{instance}}"),
                      high=1),
                graph("Scrapes", "reqps", "Requests to the metrics pages.",
                      ("sum by (instance, outcome) (rate(tercio_metrics_requests_total[$__rate_interval]))",
                       "{{instance}} {{outcome}}")),
            ]),
        ])


DASHBOARDS = {"cluster.json": cluster, "job.json": job, "ranks.json": ranks, "checkpoints.json": checkpoints,
              "coordinator.json": coordinator}


def text_of(made):
    return json.dumps(made, indent=2, ensure_ascii=True) + "\n"


def main():
    differ = []
    for name, make in DASHBOARDS.items():
        path = os.path.join(HERE, name)
        text = text_of(make())
        if "--check" in sys.argv[1:]:
            try:
                with open(path, encoding="utf-8") as file:
                    same = file.read() == text
            except FileNotFoundError:
                same = False
            if not same:
                differ.append(name)
            continue
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    for name in differ:
        print(f"dashboards/{name} is not what make.py writes: python3 dashboards/make.py", file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
