"""Many ranks: eight that share a GPU over host-staged collectives, and as many as there are GPUs over NCCL."""

from checks import require
from tree import curve, largest_difference

_BOUND = 1e-4  # between losses of two layouts in fp32, relative


def host(part, tree, machine, options):
    alone = None
    with part.check("one rank, fp32"):
        alone = tree.run_job(part, options.jobs.job())[2]
    first = None
    with part.check("tensor 2 x pipeline 2 x data 2, eight ranks, collectives staged through the host, fp32") as numbers:
        require(alone, "there is no curve of one rank")
        first = tree.run_job(part, options.jobs.job(degrees=(2, 2, 2), collectives="host"))[2]
        difference = largest_difference(first, alone)
        numbers.update(gpus=len(machine.gpus), steps=len(first), loss_difference=difference, bound=_BOUND)
        require(difference < _BOUND, f"losses differ from one rank's by up to {difference:.2e} (relative), bound {_BOUND:.0e}")
    with part.check("the same again: equal bits"):
        require(first, "there is no first run")
        again = tree.run_job(part, options.jobs.job(degrees=(2, 2, 2), collectives="host"))[2]
        require(curve(again) == curve(first), "other bits")


def nccl(part, tree, machine, options):
    ranks = min(8, len(machine.gpus))
    while 8 % ranks:  # data ranks divide the batch
        ranks -= 1
    with part.check(f"data {ranks} over NCCL, a GPU each, fp32") as numbers:
        numbers.update(gpus=len(machine.gpus), ranks=ranks)
        job = options.jobs.job(degrees=(1, 1, ranks), collectives="nccl")
        job["training"]["micro_batch"] = 1
        steps = tree.run_job(part, job)[2]
        alone = options.jobs.job()
        alone["training"]["micro_batch"] = 1
        difference = largest_difference(steps, tree.run_job(part, alone)[2])
        numbers.update(steps=len(steps), loss_difference=difference, bound=_BOUND)
        if ranks == 1:
            numbers["note"] = "one GPU: NCCL starts with one rank, and nothing is sent"
        require(difference < _BOUND, f"losses differ from one rank's by up to {difference:.2e} (relative), bound {_BOUND:.0e}")
