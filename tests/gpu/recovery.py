"""Equal bits: a job that is repeated, interrupted and resumed, or killed."""

import json
import os
import signal
import time

from checks import require
from tree import curve

_SECONDS_OF_REPORTS = 10  # ranks report their memory twice a second
_UNITS_OF_ALLOCATION = 4 << 20  # the driver gives memory in pieces of 2 MiB
_MOST_BESIDE = 1536 << 20  # plan/gpu_reserve.h: kGpuContextBytes


def _first_difference(ours, theirs):
    require(len(ours) == len(theirs), f"{len(ours)} steps instead of {len(theirs)}")
    return next((a for a, b in zip(ours, theirs) if a != b), None)


def repeat(part, tree, machine, options):
    whole = None
    job = options.jobs.job(precision="bf16")
    with part.check("a job and its repetition, bf16") as numbers:
        whole = curve(tree.run_job(part, job)[2])
        again = curve(tree.run_job(part, job)[2])
        numbers["steps"] = len(whole)
        different = _first_difference(again, whole)
        require(different is None, f"other bits from step {different and different[0]} on")
    with part.check("stopped half way and resumed, bf16") as numbers:
        require(whole is not None, "there is no whole job to compare with")
        half = options.jobs.steps // 2
        first = {**job, "training": {**job["training"], "steps": half}}
        state, done, _ = tree.run_job(part, first)
        tree.tercio(part, "resume", done["id"], "--state-dir", state, "--set", f"training.steps={options.jobs.steps}", "-o", "json")
        ours = curve(tree.history(part, done["id"], "--state-dir", state))
        numbers.update(steps=len(ours), resumed_after=half)
        different = _first_difference(ours, whole)
        require(different is None, f"other bits from step {different and different[0]} on")


def kill(part, tree, machine, options):
    """Long enough that the kill comes in the middle, with checkpoints on the way."""
    with part.check("kill -9 of a trainer: restart, equal bits") as numbers, tree.cluster(part, 2) as cluster:
        job = options.jobs.job(precision="bf16", degrees=(1, 1, 2), collectives="host")
        job["training"]["steps"] = 14 if options.quick else 600
        job["checkpoint"]["every_steps"] = 4 if options.quick else 60
        undisturbed = cluster.submit(job)
        cluster.wait(undisturbed)
        broken = cluster.submit(job)
        cluster.after_step(broken, job["checkpoint"]["every_steps"] + 1)
        trainers = cluster.trainers(broken)
        require(trainers, "the job has no trainers any more: it was too fast to be killed")
        os.kill(trainers[0], signal.SIGKILL)
        cluster.wait(broken)
        status = cluster.get(broken)
        numbers.update(steps=job["training"]["steps"], restarts=status["restarts"])
        require(status["restarts"] >= 1, "the job ended without a restart: it was too fast to be killed")
        different = _first_difference(curve(cluster.history(broken)), curve(cluster.history(undisturbed)))
        require(different is None, f"other bits from step {different and different[0]} on")


def memory(part, tree, machine, options):
    """One rank: what the GPU's free memory loses is then its own, but for what other processes take."""
    with part.check("memory: as planned, and little beside it") as numbers, tree.cluster(part, 1) as cluster:
        job = options.jobs.job(precision="bf16", degrees=(1, 1, 1), collectives="host")
        job["training"]["steps"] = 1000000
        name = cluster.submit(job)
        cluster.after_step(name, 2)
        kinds = {}

        def full():
            kinds.clear()
            for key, value in cluster.metrics().items():
                if key.startswith("tercio_memory_bytes{") and f'job_id="{name}"' in key:
                    labels = dict(pair.split("=") for pair in key[key.index("{") + 1:-1].split(","))
                    kinds.setdefault(json.loads(labels["kind"]), {})[json.loads(labels["rank"])] = int(value)
            return as_planned()

        def as_planned():
            return bool(kinds.get("used")) and all(abs(kinds["used"][rank] - planned) <= _UNITS_OF_ALLOCATION
                                                   for rank, planned in kinds["planned"].items())

        try:
            end = time.monotonic() + _SECONDS_OF_REPORTS
            while not full() and time.monotonic() < end:
                part.remaining()
                time.sleep(0.1)
        finally:
            numbers.update({kind: [kinds[kind][rank] for rank in sorted(kinds[kind])] for kind in sorted(kinds)})
            numbers["device_bytes_in_use"] = machine.used_bytes()
            cluster.cancel(name)
        require(as_planned(), f"planned {kinds.get('planned')}, used {kinds.get('used')}")
        beside = [kinds["peak"][rank] - used for rank, used in kinds["used"].items()]
        numbers["beside_the_arena"] = beside
        require(max(beside) <= _MOST_BESIDE, f"{max(beside)} bytes beside the arena, more than {_MOST_BESIDE}")
