"""Writes fixtures/curve.json: 100 losses of a small llama whose layers' matrices are bitsandbytes' Linear4bit (NF4, double quantisation), in
transformers, and fixtures/qlora_curve.json: those of peft's LoRA beside it. Run by hand, once, as make_fixtures.py, with transformers and
peft beside it.

Weights are those of tests/huggingface/make_published.py (matrices a quarter of them), tokens those of tokens() here; quantized_curve_test.cc
has both a second time. All but the quantised matrices is trained, or adapters alone (A as it is, B a tenth), by AdamW, in fp32.

    {"model": {...}, "training": {...}, "losses": [nats per token, before each step's update]}
"""

import json
import os
import sys

import peft
import torch
import transformers

import bitsandbytes

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "huggingface"))
from make_published import value  # noqa: E402

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
MODEL = {"layers": 2, "hidden": 128, "heads": 4, "ffn_hidden": 256, "context": 16, "vocab_size": 61, "norm_eps": 1e-6, "rope_theta": 10000}
TRAINING = {"steps": 100, "global_batch": 8, "learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
NAMES = {"model.embed_tokens": "embedding.token", "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
         "self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value",
         "self_attn.o_proj": "attention.output", "gate_proj": "gate", "up_proj": "up", "down_proj": "down", "model.norm": "final_norm",
         "lm_head": "head", "model.layers": "layers"}
ADAPTER = {"rank": 8, "alpha": 16}


def canonical(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def tokens(step, sequence):
    """Each token but the first follows from the one before it, in two ways."""
    row = [(7 * step + 13 * sequence) % MODEL["vocab_size"]]
    for i in range(MODEL["context"]):
        row.append((5 * row[-1] + 3 + (step + sequence + i) % 2) % MODEL["vocab_size"])
    return row


def make_model():
    config = transformers.LlamaConfig(
        vocab_size=MODEL["vocab_size"], hidden_size=MODEL["hidden"], intermediate_size=MODEL["ffn_hidden"], num_hidden_layers=MODEL["layers"],
        num_attention_heads=MODEL["heads"], num_key_value_heads=MODEL["heads"], max_position_embeddings=MODEL["context"],
        rms_norm_eps=MODEL["norm_eps"], rope_theta=MODEL["rope_theta"], tie_word_embeddings=False, attention_bias=False)
    model = transformers.LlamaForCausalLM(config).float()
    for name, parameter in model.named_parameters():
        values = torch.tensor(list(value(canonical(name), parameter.numel())), dtype=torch.float32).view(parameter.shape)
        parameter.data = values if values.dim() == 1 else values / 4
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, module in list(block.named_children()):
                if not isinstance(module, torch.nn.Linear):
                    continue
                made = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, bias=False, compute_dtype=torch.float32,
                                                  compress_statistics=True, quant_type="nf4")
                made.weight = bitsandbytes.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True)
                setattr(block, name, made.to("cpu"))
    return model


def with_adapters(model):
    model = peft.get_peft_model(model, peft.LoraConfig(r=ADAPTER["rank"], lora_alpha=ADAPTER["alpha"], target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        for theirs, ours, scale in ((".lora_A.default.weight", ".lora_a", 1), (".lora_B.default.weight", ".lora_b", 0.1)):
            if name.endswith(theirs):
                ours = canonical(name.removeprefix("base_model.model.").removesuffix(theirs)) + ours
                values = torch.tensor(list(value(ours, parameter.numel())), dtype=torch.float32)
                parameter.data = values.view(parameter.shape) * scale
    return model


def write(model, name, more):
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.dtype == torch.float32 for p in trained)
    t = TRAINING
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() >= 2], "weight_decay": t["weight_decay"]},
                                   {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=t["learning_rate"], betas=(t["beta1"], t["beta2"]), eps=t["eps"])
    losses = []
    for step in range(1, t["steps"] + 1):
        rows = torch.tensor([tokens(step, sequence) for sequence in range(t["global_batch"])])
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(os.path.join(FIXTURES, name), "w", encoding="utf-8") as file:
        json.dump({"model": MODEL, "training": TRAINING, **more, "losses": losses}, file, indent=1)
        file.write("\n")
    print(len(trained), "tensors trained; loss", losses[0], "to", losses[-1])


def main():
    torch.manual_seed(0)
    write(make_model(), "curve.json", {})
    write(with_adapters(make_model()), "qlora_curve.json", {"adapter": ADAPTER})


if __name__ == "__main__":
    main()
