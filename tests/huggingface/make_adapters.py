"""Writes the fixtures of tests/huggingface/adapters_test.cc: adapters of the models in fixtures/ as peft saves them, what they make of
the models' logits, and curves of their training. Run by hand, once; names make only those:

    python3 -m venv ~/hf-venv && ~/hf-venv/bin/pip install torch transformers peft
    ~/hf-venv/bin/python tests/huggingface/make_adapters.py [NAME...]

adapters/<name>/        what peft's save_pretrained writes, but for its README; both factors are random
adapters/<name>.json    {"tokens": [ids], "logits": [[float] for each token] or "classes": [float],
                        "curve": [mean loss of each step before its update]}, computed in double precision

A step of a curve is torch's AdamW on the adapter alone, behind the clipping of the gradient's norm, with a constant learning rate. Its
sequence s of step t has the tokens (7 s + 3 t mod 5 + (s + 1) i) mod 40 at positions i = 0 .. 16, of which all but the first are
predicted; so the five different batches can be learnt.
"""

import json
import os
import shutil
import sys

import torch
from peft import IA3Config, LoraConfig, TaskType, get_peft_model
from peft.tuners.ia3 import IA3Layer
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = [7, 0, 39, 12, 12, 3, 25, 31, 1, 18, 38, 5]
STEPS, SEQUENCES, CONTEXT, VOCABULARY = 100, 8, 16, 40
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, CLIP = 0.003, (0.9, 0.95), 1e-8, 0.1, 1.0

ADAPTERS = {
    "gpt2": LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj"], fan_in_fan_out=True,
                       task_type=TaskType.CAUSAL_LM),
    "llama_bf16": LoraConfig(r=8, lora_alpha=8, target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"],
                             task_type=TaskType.CAUSAL_LM),
    "qwen3": LoraConfig(r=2, lora_alpha=6, use_rslora=True, target_modules="all-linear", task_type=TaskType.CAUSAL_LM),
    "gpt_neox": LoraConfig(r=3, lora_alpha=3, target_modules=["query_key_value", "dense_4h_to_h"], task_type=TaskType.CAUSAL_LM),
    "phi3": LoraConfig(r=4, lora_alpha=2, target_modules=["qkv_proj", "gate_up_proj"], task_type=TaskType.CAUSAL_LM),
    "bert_classes": LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value", "intermediate.dense"], task_type=TaskType.SEQ_CLS),
}
# These have the same bases.
ADAPTERS["gpt2_ia3"] = IA3Config(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], fan_in_fan_out=True,
                                 task_type=TaskType.CAUSAL_LM)
ADAPTERS["llama_bf16_ia3"] = IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"],
                                       task_type=TaskType.CAUSAL_LM)
CURVES = ("gpt2", "llama_bf16", "llama_bf16_ia3")


def batch(step):
    rows = [[(7 * s + 3 * (step % 5) + (s + 1) * i) % VOCABULARY for i in range(CONTEXT + 1)] for s in range(SEQUENCES)]
    return torch.tensor(rows)


def rounded(values):
    return [float(f"{value:.9g}") for value in values]


def results(model):
    """What the model says of TOKENS."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([TOKENS])).logits[0]
    return rounded(logits.tolist()) if logits.dim() == 1 else [rounded(row) for row in logits.tolist()]


def curve(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Factors of IA3 are vectors, which are not decayed.
    decayed = [{"params": [parameter], "weight_decay": WEIGHT_DECAY if min(parameter.shape) > 1 else 0} for parameter in trained]
    optimizer = torch.optim.AdamW(decayed, lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    losses = []
    for step in range(1, STEPS + 1):
        tokens = batch(step)
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        losses.append(loss.item())
    return rounded(losses)


def fixture(name):
    classes = name == "bert_classes"
    folder = os.path.join(HERE, "adapters", name)
    shutil.rmtree(folder, ignore_errors=True)
    base_name = name.removesuffix("_ia3")
    auto = AutoModelForSequenceClassification if classes else AutoModelForCausalLM
    base = auto.from_pretrained(os.path.join(HERE, "fixtures", base_name), dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(base, ADAPTERS[name])
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, IA3Layer):
            factors = module.ia3_l["default"]
            factors.data = 1 + 0.3 * torch.randn(factors.shape, generator=generator)
        if not isinstance(module, LoraLayer):
            continue
        for factors, deviation in ((module.lora_A, 0.3), (module.lora_B, 0.05)):
            weight = factors["default"].weight
            weight.data = torch.randn(weight.shape, generator=generator) * deviation
    model.peft_config["default"].base_model_name_or_path = f"../../fixtures/{base_name}"
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    model = model.double().eval()
    key = "classes" if classes else "logits"
    written = {"tokens": TOKENS, key: results(model)}
    if name in CURVES:
        written["curve"] = curve(model)
    with open(folder + ".json", "w", encoding="utf-8") as out:
        json.dump(written, out)
        out.write("\n")


def main():
    torch.set_num_threads(1)
    os.makedirs(os.path.join(HERE, "adapters"), exist_ok=True)
    for name in sys.argv[1:] or ADAPTERS:
        fixture(name)


if __name__ == "__main__":
    main()
