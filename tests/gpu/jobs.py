"""The jobs that the parts run: tiny ones with --quick, else as large as the time allows."""

import os

from tree import layout, write_tokens

_SENTINELS = 16


class Jobs:

    def __init__(self, quick, folder):
        self.quick = quick
        self.steps = 5 if quick else 30
        self.vocabulary = 64 if quick else 1024
        self.prefix = os.path.join(folder, "tokens")
        self.context = 16 if quick else 128
        write_tokens(self.prefix, self.vocabulary, 40, 8 * self.context)

    def model(self, architecture):
        sizes = {"layers": 2, "hidden": 32, "heads": 2} if self.quick else {"layers": 4, "hidden": 256, "heads": 4}
        model = {"architecture": architecture, **sizes, "context": self.context, "vocab_size": self.vocabulary}
        if architecture == "llama":
            model.update(bias=False, kv_heads=2)
        if architecture == "t5":
            model["vocab_size"] += _SENTINELS
        return model

    def data(self, architecture):
        data = {"train": self.prefix}
        if architecture == "bert":
            data["special_tokens"] = {"cls": 0, "sep": 1, "mask": 2, "pad": 3}
        if architecture == "t5":  # sentinels count down from the first
            data["special_tokens"] = {"pad": 0, "eos": 1, "first_sentinel": self.vocabulary + _SENTINELS - 1, "sentinels": _SENTINELS}
        return data

    def job(self, architecture="gpt2", device="cuda", precision="fp32", degrees=(1, 1, 1), **resources):
        tensor, pipeline, data = degrees
        return {
            "name": f"{architecture}-{device}-{precision}",
            "model": self.model(architecture),
            "data": self.data(architecture),
            "training": {"steps": self.steps, "global_batch": 8, "micro_batch": 2, "precision": precision,
                         "optimizer": {"learning_rate": 3e-3 if self.quick else 1e-3},
                         "schedule": {"warmup_steps": 3, "decay_steps": self.steps}},
            "parallelism": layout(tensor, pipeline, data),
            "resources": {"device": device, "ranks": tensor * pipeline * data, **resources},
            "checkpoint": {"every_steps": 0, "keep_last": 1},
        }
