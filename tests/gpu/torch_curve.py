"""What PyTorch computes in double precision from the weights of a Hugging Face directory (gpt2, fp32) and one batch that every step
sees whole. Prints {"version", "steps": [{"loss", "grad_norm"}]}; run by curves.py.

    torch_curve.py DIRECTORY TOKENS.bin BATCH STEPS LEARNING_RATE WEIGHT_DECAY
"""

import json
import os
import struct
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from torch_gpt import Gpt  # noqa: E402


def read_tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}"
            begin, end = entry["data_offsets"]
            tensors[name.removeprefix("transformer.")] = torch.frombuffer(
                data[begin:end], dtype=torch.float32).reshape(entry["shape"]).double()
    return tensors


def load(model, tensors, layers):
    """transformers keeps matrices as [in, out]."""
    wanted = {"token.weight": tensors["wte.weight"], "position.weight": tensors["wpe.weight"],
              "head.weight": tensors["wte.weight"], "norm.weight": tensors["ln_f.weight"], "norm.bias": tensors["ln_f.bias"]}
    names = {"norm1": "ln_1", "query_key_value": "attn.c_attn", "output": "attn.c_proj", "norm2": "ln_2", "up": "mlp.c_fc",
             "down": "mlp.c_proj"}
    for layer in range(layers):
        for ours, theirs in names.items():
            weight = tensors[f"h.{layer}.{theirs}.weight"]
            wanted[f"blocks.{layer}.{ours}.weight"] = weight.t() if weight.dim() == 2 else weight
            wanted[f"blocks.{layer}.{ours}.bias"] = tensors[f"h.{layer}.{theirs}.bias"]
    model.load_state_dict(wanted)


def main():
    directory, tokens_path, batch, steps, rate, decay = sys.argv[1:]
    batch = int(batch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    model = Gpt({"layers": config["n_layer"], "heads": config["n_head"], "hidden": config["n_embd"],
                 "context": config["n_positions"], "vocab": config["vocab_size"], "bias": True}).double()
    load(model, read_tensors(os.path.join(directory, "model.safetensors")), config["n_layer"])
    model.to(device)
    with open(tokens_path, "rb") as file:
        raw = file.read()
    ids = torch.tensor(struct.unpack(f"<{len(raw) // 2}H", raw), device=device)
    context = config["n_positions"]
    inputs, targets = ids[:batch * context].view(batch, context), ids[1:batch * context + 1].view(batch, context)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": float(decay)},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=float(rate), betas=(0.9, 0.95), eps=1e-8)
    curve = []
    for _ in range(int(steps)):
        loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        curve.append({"loss": loss.item(), "grad_norm": norm.item()})
    print(json.dumps({"version": torch.__version__, "device": device, "steps": curve}))


if __name__ == "__main__":
    main()
