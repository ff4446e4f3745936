"""Loss curves of whole jobs on a GPU beside the CPU's, which are tested against PyTorch to the bit of docs/numerics.md, and beside
PyTorch's own on the same weights and data."""

import json
import math
import os
import sys

from checks import Skip, require
from machine import has_torch
from tree import largest_difference, write_tokens

_BOUNDS = {"fp32": 1e-4, "bf16": 1e-2}  # for every loss, relative
_NORM_BOUND = 1e-3  # for gradient norms, fp32


def run(part, tree, machine, options):
    for architecture in ("gpt2", "llama", "bert"):
        reference = None
        with part.check(f"{architecture} on the CPU, fp32") as numbers:
            reference = tree.run_job(part, options.jobs.job(architecture, device="cpu"))[2]
            numbers.update(first_loss=reference[0]["loss"], last_loss=reference[-1]["loss"])
            require(len(reference) == options.jobs.steps, f"{len(reference)} steps instead of {options.jobs.steps}")
        for precision, bound in _BOUNDS.items():
            with part.check(f"{architecture}, {precision}, against the CPU in fp32") as numbers:
                if reference is None:
                    raise Skip("no curve of the CPU")
                steps = tree.run_job(part, options.jobs.job(architecture, precision=precision))[2]
                difference = largest_difference(steps, reference)
                numbers.update(steps=len(steps), loss_difference=difference, bound=bound,
                               norm_difference=largest_difference(steps, reference, "grad_norm"))
                require(difference < bound, f"losses differ by up to {difference:.2e} (relative), bound {bound:.0e}")
                require(precision != "fp32" or numbers["norm_difference"] < _NORM_BOUND,
                        f"gradient norms differ by up to {numbers['norm_difference']:.2e}, bound {_NORM_BOUND:.0e}")
    _against_torch(part, tree, options)


def _against_torch(part, tree, options):
    """A full batch in every step, so that the order of the samples does not matter."""
    with part.check("gpt2, fp32, against PyTorch in double precision") as numbers:
        if not has_torch():
            raise Skip("PyTorch is not installed for this python3")
        jobs = options.jobs
        batch = 8
        prefix = os.path.join(tree.folder("data"), "batch")
        write_tokens(prefix, jobs.vocabulary, 1, batch * jobs.context + 1)
        job = jobs.job("gpt2", device="cpu")
        job["data"] = {"train": prefix}
        # The weights of the start: a step that moves nothing.
        still = {**job, "training": {**job["training"], "steps": 1, "optimizer": {"learning_rate": 0}}}
        state, done, _ = tree.run_job(part, still)
        exported = os.path.join(state, "exported")
        tree.tercio(part, "checkpoint", "export", done["id"], "--state-dir", state, "--format", "hf", "--output", exported)
        job["model"] = {"from": exported}
        job["resources"]["device"] = "cuda"
        rate, decay = 1e-3, 0.1
        job["training"] = {**job["training"], "schedule": {"kind": "constant"},
                           "optimizer": {"learning_rate": rate, "betas": [0.9, 0.95], "weight_decay": decay}}
        steps = tree.run_job(part, job)[2]
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_curve.py")
        _, out, _ = tree.run(part, [sys.executable, script, exported, prefix + ".bin", str(batch), str(jobs.steps), str(rate),
                                    str(decay)], environment=dict(os.environ))
        theirs = json.loads(out)
        difference = largest_difference(steps, theirs["steps"])
        numbers.update(steps=len(steps), loss_difference=difference, torch=theirs["version"],
                       norm_difference=largest_difference(steps, theirs["steps"], "grad_norm"), bound=_BOUNDS["fp32"])
        require(math.isfinite(difference) and difference < _BOUNDS["fp32"],
                f"losses differ by up to {difference:.2e} (relative), bound {_BOUNDS['fp32']:.0e}")
