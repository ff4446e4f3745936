"""GPT-2 training steps in PyTorch as people run them on a GPU: bf16 autocast over fp32 weights, flash attention, fused AdamW, eager
and torch.compile. Prints one JSON line; run by speed.py.

    torch_baseline.py '{"layers": 12, "heads": 12, "hidden": 768, "context": 1024, "vocab_size": 50257, "batch": 32}'

Ends with 3 where PyTorch sees no GPU.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))

_WARM_UP, _STEPS = 5, 20


def measure(torch, model, m):
    """Seconds of a step, the mean of many: nothing waits for the GPU in between."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=3e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(m["vocab_size"], (_WARM_UP + _STEPS, m["batch"], m["context"] + 1), device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for step in range(_WARM_UP + _STEPS):
            if step == _WARM_UP:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens[step, :, :-1].contiguous(), tokens[step, :, 1:].contiguous())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / _STEPS


def main():
    m = json.loads(sys.argv[1])
    import torch
    if not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} sees no GPU", file=sys.stderr)
        return 3
    from torch_gpt import Gpt
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Gpt({**m, "vocab": m["vocab_size"], "bias": True})
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "attention": "flash"}
    result["eager_step_seconds"] = measure(torch, model, m)
    result["step_seconds"] = measure(torch, torch.compile(model), m)
    result["tokens_per_second"] = m["batch"] * m["context"] / result["step_seconds"]
    result["eager_tokens_per_second"] = m["batch"] * m["context"] / result["eager_step_seconds"]
    result["peak_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
