"""Writes the fixtures of checkpoint/huggingface/huggingface_test.cc and tests/e2e/huggingface_test.py: tiny models as
transformers saves them, and the logits that it computes. Run by hand, once; names make only those:

    python3 -m venv ~/hf-venv && ~/hf-venv/bin/pip install torch transformers
    ~/hf-venv/bin/python tests/huggingface/make_fixtures.py [NAME...]

fixtures/<name>/                what save_pretrained writes
fixtures/<name>.json            {"tokens": [ids], "logits": [[float] for each token]}, computed in double precision;
                                of FURTHER also the ModelSpec, and "greedy": the likeliest ids after the tokens

gpt2          tied head, fp32, one file, an inner size of its own
llama         two query heads for each key head, stretched rotary positions, a head of its own, fp32, three files
llama_bf16    tied head, bf16
bert, megatron_bert   masked tokens and sentence order: one file holds {"tokens", "types", "length", "logits" of each
              token's position, "classes"}
bert_classes  a classifier with three classes that have names: no "logits"
FURTHER       one of each other architecture, in 16 bits as most of them are published
t5, t5_gated  of FURTHER, with the row of the decoder besides: "decoder_tokens" (the first is id 0), of which each has its row of
              "logits"; "generated": [{"prompt": [ids of the encoder], "tokens": [the likeliest ids of the decoder, one after
              the other, whatever the end's id]}]
"""

import json
import os
import shutil
import sys

import torch
from architectures import build
from transformers import (
    AutoModelForCausalLM, AutoModelForSeq2SeqLM, BertConfig, BertForPreTraining, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel,
    LlamaConfig, LlamaForCausalLM, MegatronBertConfig, MegatronBertForPreTraining)

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
TOKENS = [7, 0, 39, 12, 12, 3, 25, 31, 1, 18, 38, 5]
SIZES = {"vocab_size": 40, "bos_token_id": None, "eos_token_id": None}


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_inner=40, n_positions=16,
                                      layer_norm_epsilon=2e-5, **SIZES))


def llama(tied, **more):
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, tie_word_embeddings=tied, **SIZES, **more))


BERT = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 40, "max_position_embeddings": 16}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}


def further(architecture, dtype, **more):
    spec = {"architecture": architecture, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 32, "ffn_hidden": 24, "context": 32,
            "vocab_size": 40, "bias": architecture in ("opt", "gptj", "gpt_neox", "phi"), "untied_head": True,
            "norm_eps": 1e-5, **more}
    return spec, dtype


T5 = {"head_dim": 16, "decoder_layers": 3, "relative_buckets": 8, "relative_distance": 16}
FURTHER = {
    "opt": further("opt", torch.float16, untied_head=False),
    "gptj": further("gptj", torch.float16, heads=2, kv_heads=2, rotary_dim=4, rope_theta=10000.0),
    "gpt_neox": further("gpt_neox", torch.float16, heads=2, kv_heads=2, rotary_dim=4, rope_theta=1000.0),
    "phi": further("phi", torch.float16, kv_heads=2, rotary_dim=4, rope_theta=1000.0),
    "phi3": further("phi3", torch.bfloat16, kv_heads=2, rope_theta=1000.0, sliding_window=6),
    "qwen2": further("qwen2", torch.bfloat16, kv_heads=2, rope_theta=1000.0, untied_head=False, norm_eps=1e-6),
    "qwen3": further("qwen3", torch.bfloat16, kv_heads=2, head_dim=16, rope_theta=1000.0, norm_eps=1e-6),
    "mistral": further("mistral", torch.float32, kv_heads=2, rope_theta=1000.0, sliding_window=5),
    "gemma2": further("gemma2", torch.bfloat16, kv_heads=2, head_dim=16, rope_theta=1000.0, norm_eps=1e-6, untied_head=False,
                      sliding_window=5, attention_softcap=5.0, logit_softcap=4.0, query_scale=24),
    "t5": further("t5", torch.float32, untied_head=False, norm_eps=1e-6, **T5),
    "t5_gated": further("t5", torch.bfloat16, norm_eps=1e-6, gated_mlp=True, activation="gelu_tanh", **T5),
}


MODELS = {
    "bert": lambda: (BertForPreTraining(BertConfig(**BERT)), {}),
    "megatron_bert": lambda: (MegatronBertForPreTraining(MegatronBertConfig(**BERT)), {}),
    "bert_classes": lambda: (BertForSequenceClassification(BertConfig(**BERT, **LABELS)), {}),
    "gpt2": lambda: (gpt2(), {}),
    "llama": lambda: (llama(False, num_key_value_heads=2, rope_theta=1000.0,
                            rope_scaling={"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0,
                                          "low_freq_factor": 0.8, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 30}),
                      {"max_shard_size": "22KB"}),
    "llama_bf16": lambda: (llama(True, num_key_value_heads=4, rms_norm_eps=1e-5).to(torch.bfloat16), {}),
    **{name: lambda item=item: (build(*item), {}) for name, item in FURTHER.items()},
}
GREEDY = 8
DECODER_TOKENS = [0, 17, 4, 4, 29, 36, 8, 21, 13]
PROMPTS = [[7, 12, 3, 25, 31, 1], [38], list(range(39, 9, -1)), [5, 5, 5, 22, 14, 30, 2, 2, 19, 11, 6]]
GENERATED = 12


def bert_outputs(model, folder):
    """What the model says of TOKENS, of which the last two are padding."""
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval().to(torch.float64)
    length = len(TOKENS) - 2
    types = [int(i > 5) for i in range(len(TOKENS))]
    mask = [int(i < length) for i in range(len(TOKENS))]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([TOKENS]), token_type_ids=torch.tensor([types]),
                    attention_mask=torch.tensor([mask]))
    fixture = {"tokens": TOKENS, "types": types, "length": length}
    rounded = lambda values: [float(f"{value:.7g}") for value in values]
    if hasattr(out, "prediction_logits"):
        fixture["classes"] = rounded(out.seq_relationship_logits[0].tolist())
        fixture["logits"] = [rounded(row) for row in out.prediction_logits[0, :length].tolist()]
    else:
        fixture["classes"] = rounded(out.logits[0].tolist())
    return fixture


def greedy(model):
    """The likeliest ids after TOKENS, one after the other."""
    ids = list(TOKENS)
    with torch.no_grad():
        for _ in range(GREEDY):
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > 1e-3, "rounding would choose; take another seed"
            ids.append(best.indices[0].item())
    return ids[len(TOKENS):]


def generated(model):
    """What follows each prompt, the end's id like any other."""
    results = []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = [0]
            for _ in range(GENERATED):
                best = model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
                assert best.values[0] - best.values[1] > 1e-3, "rounding would choose; take another seed"
                ids.append(best.indices[0].item())
            results.append({"prompt": prompt, "tokens": ids[1:]})
    # Else the prompt would show in nothing.
    assert len({tuple(result["tokens"]) for result in results}) == len(PROMPTS), results
    return results


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        decodes = name.startswith("t5")
        # With these the ids that follow a prompt are not all the same.
        torch.manual_seed(15 if decodes else sum(map(ord, name)))
        model, options = MODELS[name]()
        for parameter in model.parameters():  # norms and biases too: ones and zeros would hide a mix-up
            spread = 0.3 if parameter.dim() == 1 else 0.5 if decodes else 0.15
            parameter.data.add_(torch.randn(parameter.shape).mul(spread).to(parameter.dtype))
        folder = os.path.join(FOLDER, name)
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **options)
        for file in os.listdir(folder):
            os.chmod(os.path.join(folder, file), 0o644)
        if "bert" in name:
            with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
                json.dump(bert_outputs(model, folder), file)
                file.write("\n")
            continue
        # Loaded again, since .to(bfloat16) has rounded the rotary frequencies too.
        auto = AutoModelForSeq2SeqLM if decodes else AutoModelForCausalLM
        model = auto.from_pretrained(folder, dtype=torch.float32).eval().to(torch.float64)
        inputs = {"input_ids": torch.tensor([TOKENS])}
        if decodes:
            inputs["decoder_input_ids"] = torch.tensor([DECODER_TOKENS])
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        further_keys = ""
        if name in FURTHER:
            further_keys = f' "model": {json.dumps(FURTHER[name][0])},\n'
            answers = {"decoder_tokens": DECODER_TOKENS, "generated": generated(model)} if decodes else {"greedy": greedy(model)}
            further_keys += "".join(f' "{key}": {json.dumps(value)},\n' for key, value in answers.items())
        with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
            rows = ["[" + ", ".join(f"{value:.7g}" for value in row) + "]" for row in logits.tolist()]
            file.write('{"tokens": ' + json.dumps(TOKENS) + ",\n" + further_keys + ' "logits": [\n' + ",\n".join(rows) + "]}\n")
        size = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))
        print(f"{name}: {size} bytes, logits up to {logits.abs().max().item():.3f}")


if __name__ == "__main__":
    main()
