"""GPT-2 in PyTorch as people write it (nn.Linear, scaled_dot_product_attention, AdamW), timed: what Tercio is
compared with. Prints one JSON line.

    python torch_gpt.py --model nanogpt|gpt2-124m --steps N [--threads N] [--processes N] [--batch N] [--fsdp]
                        [--zero-stage N] [--compile] [--gemm]

--processes N > 1 is DistributedDataParallel over Gloo, the batch divided among the processes; with --fsdp it is FSDP2, with
--zero-stage DeepSpeed's ZeRO.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

MODELS = {
    "nanogpt": {"layers": 4, "heads": 4, "hidden": 128, "context": 64, "vocab": 65, "batch": 12, "bias": False},
    "gpt2-124m": {"layers": 12, "heads": 12, "hidden": 768, "context": 256, "vocab": 50257, "batch": 4,
                  "bias": True},
}


class Block(nn.Module):

    def __init__(self, m):
        super().__init__()
        self.heads = m["heads"]
        self.norm1 = nn.LayerNorm(m["hidden"], bias=m["bias"])
        self.query_key_value = nn.Linear(m["hidden"], 3 * m["hidden"], bias=m["bias"])
        self.output = nn.Linear(m["hidden"], m["hidden"], bias=m["bias"])
        self.norm2 = nn.LayerNorm(m["hidden"], bias=m["bias"])
        self.up = nn.Linear(m["hidden"], 4 * m["hidden"], bias=m["bias"])
        self.down = nn.Linear(4 * m["hidden"], m["hidden"], bias=m["bias"])

    def forward(self, x):
        batch, tokens, hidden = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                   for part in self.query_key_value(self.norm1(x)).split(hidden, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):

    def __init__(self, m):
        super().__init__()
        self.token = nn.Embedding(m["vocab"], m["hidden"])
        self.position = nn.Embedding(m["context"], m["hidden"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = nn.LayerNorm(m["hidden"], bias=m["bias"])
        self.head = nn.Linear(m["hidden"], m["vocab"], bias=False)
        self.head.weight = self.token.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gemm_rate():
    """GFLOP/s of a large fp32 product: the best of several."""
    n = 2048
    a, b = torch.randn(n, n), torch.randn(n, n)
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begin)
    return 2 * n**3 / best / 1e9


def with_deepspeed(model, optimizer, options, batch):
    """DeepSpeed's engine, in fp32, with its defaults beside the stage."""
    import deepspeed  # pylint: disable=import-outside-toplevel  # only this option needs it
    config = {"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": options.zero_stage}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    return engine


def train(rank, options, results):
    torch.set_num_threads(options.threads)
    m = MODELS[options.model]
    if options.processes > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=options.processes)
    torch.manual_seed(1337)
    model = Gpt(m)
    if options.compile:
        model = torch.compile(model)
    if options.fsdp:
        # As its documents have it: each block on its own, then what is left.
        mesh = torch.distributed.init_device_mesh("cpu", (options.processes,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif options.processes > 1 and options.zero_stage is None:
        model = nn.parallel.DistributedDataParallel(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    batch = (options.batch or m["batch"]) // options.processes
    engine = None if options.zero_stage is None else with_deepspeed(model, optimizer, options, batch)
    for _ in range(options.steps):
        tokens = torch.randint(m["vocab"], (batch, m["context"] + 1), generator=generator)
        begin = time.perf_counter()
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if engine is not None:
            loss = engine(inputs, targets)
            engine.backward(loss)
            engine.step()
        else:
            loss = model(inputs, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        median = statistics.median(seconds[max(1, len(seconds) // 5):])  # the first fifth warms up
        results.put({"step_seconds": median, "tokens_per_second": batch * options.processes * m["context"] / median})
    if options.processes > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="nanogpt")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--batch", type=int, help="sequences of a step, of all processes; default: the model's")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 in place of DistributedDataParallel")
    parser.add_argument("--zero-stage", type=int, choices=range(4), help="DeepSpeed's engine with this stage")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--gemm", action="store_true")
    options = parser.parse_args()
    if options.gemm:
        torch.set_num_threads(options.threads)
        print(json.dumps({"gemm_gflops": gemm_rate(), "version": torch.__version__}))
        return
    # DeepSpeed looks the rank's device up there.
    os.environ.setdefault("LOCAL_RANK", "0")
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    if options.processes == 1:
        train(0, options, results)
    else:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29533")
        torch.multiprocessing.spawn(train, (options, results), options.processes)
    print(json.dumps(results.get()))


if __name__ == "__main__":
    main()
