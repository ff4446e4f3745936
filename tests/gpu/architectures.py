"""Every other architecture, and products of 8 bits: loss curves of whole jobs on a GPU beside the CPU's."""

from checks import Failure, Skip, require
from tree import largest_difference

_FP32_BOUND = 1e-4  # for every loss, relative
_FP8_BOUND = 1e-2  # beside bf16
# What of it differs from gpt2, llama and bert, which `curves` has: rotary styles, norms of heads, windows, soft caps, two streams.
_ARCHITECTURES = {
    "opt": {},
    "gptj": {},
    "gpt_neox": {},
    "phi": {},
    "phi3": {"kv_heads": 2, "sliding_window": 12},
    "qwen2": {"kv_heads": 2},
    "qwen3": {"kv_heads": 2},
    "mistral": {"kv_heads": 2, "sliding_window": 12},
    "gemma2": {"kv_heads": 2, "sliding_window": 12, "attention_softcap": 50, "logit_softcap": 30},
    "t5": {},
}


def run(part, tree, machine, options):
    for architecture, more in _ARCHITECTURES.items():
        with part.check(f"{architecture}, fp32, against the CPU") as numbers:
            curves = {}
            for device in ("cpu", "cuda"):
                job = options.jobs.job(architecture, device=device)
                job["model"].update(more)
                curves[device] = tree.run_job(part, job)[2]
            difference = largest_difference(curves["cuda"], curves["cpu"])
            numbers.update(steps=len(curves["cuda"]), loss_difference=difference, bound=_FP32_BOUND)
            require(difference < _FP32_BOUND, f"losses differ by up to {difference:.2e} (relative), bound {_FP32_BOUND:.0e}")


def fp8(part, tree, machine, options):
    for architecture in ("gpt2", "llama"):
        with part.check(f"{architecture}, fp8, against bf16") as numbers:
            bf16 = tree.run_job(part, options.jobs.job(architecture, precision="bf16"))[2]
            job = options.jobs.job(architecture, precision="bf16")
            job["training"]["fp8"] = True
            try:
                eight_bits = tree.run_job(part, job)[2]
            except Failure as failure:
                if "needs a GPU of compute capability" in str(failure):
                    raise Skip("the GPU has no products of 8 bits") from None
                raise
            difference = largest_difference(eight_bits, bf16)
            numbers.update(steps=len(eight_bits), loss_difference=difference, bound=_FP8_BOUND)
            require(difference < _FP8_BOUND, f"losses differ by up to {difference:.2e} (relative), bound {_FP8_BOUND:.0e}")
            require(any(a["loss"] != b["loss"] for a, b in zip(eight_bits, bf16)), "the losses are bf16's: nothing was computed in 8 bits")
