"""Writes fixtures/published.json: the forms of widely used checkpoints, with small sizes, and the logits that transformers
computes. Run by hand, once:

    python3 -m venv ~/hf-venv && ~/hf-venv/bin/pip install torch transformers
    ~/hf-venv/bin/python tests/huggingface/make_published.py

Names of tensors, their dtypes, buffers, the keys of config.json and the containers are those of the published files; only sizes
are smaller. No weights are stored: value() gives them, and tests/huggingface/published.h gives the same ones.

    {FORM: {"config": {...}, "context": what the test uses of the model's,
            "files": {NAME: [[tensor, dtype, shape, name of the tensor it is tied to or null], ...]},   "*" is each layer
            "containers": [how pytorch_model.bin is saved: "archive", "stream"; [] for safetensors],
            "tokens": [ids], "types": [ids] (bert), "logits": [[float] for each token], "classes": [float] (bert)}}
"""

import json
import math
import os
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForPreTraining

OUTPUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", "published.json")
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8}
HIDDEN, FFN, VOCABULARY, LAYERS, POSITIONS = 32, 40, 40, 2, 16
TOKENS = [7, 0, 39, 12, 3, 25, 31, 18]
MASK64 = (1 << 64) - 1


def value(name, count):
    """The values of a tensor: multiples of 2^-17 that a hash of the name and the place choose."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & MASK64
    norm = name.endswith((".weight", ".gamma")) and ("norm" in name.lower() or ".ln" in "." + name)
    for place in range(count):
        mixed = seed + (place + 1) * 0x9E3779B97F4A7C15 & MASK64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK64
        yield ((mixed ^ mixed >> 31) >> 48) * 2.0**-17 - 0.25 + (1 if norm else 0)


# ---- the names ----

def pair(name, shape, weight="weight", bias="bias"):
    return [(f"{name}.{weight}", shape), (f"{name}.{bias}", shape[:1])]


def bert(norm=("weight", "bias")):
    at = "bert.encoder.layer.*."
    tensors = [("bert.embeddings.word_embeddings.weight", [VOCABULARY, HIDDEN]),
               ("bert.embeddings.position_embeddings.weight", [POSITIONS, HIDDEN]),
               ("bert.embeddings.token_type_embeddings.weight", [2, HIDDEN]),
               *pair("bert.embeddings.LayerNorm", [HIDDEN], *norm)]
    for part in ("query", "key", "value"):
        tensors += pair(at + "attention.self." + part, [HIDDEN, HIDDEN])
    tensors += [*pair(at + "attention.output.dense", [HIDDEN, HIDDEN]), *pair(at + "attention.output.LayerNorm", [HIDDEN], *norm),
                *pair(at + "intermediate.dense", [FFN, HIDDEN]), *pair(at + "output.dense", [HIDDEN, FFN]),
                *pair(at + "output.LayerNorm", [HIDDEN], *norm)]
    return tensors + bert_heads(norm)


def bert_heads(norm=("weight", "bias")):
    return [*pair("bert.pooler.dense", [HIDDEN, HIDDEN]), ("cls.predictions.bias", [VOCABULARY]),
            *pair("cls.predictions.transform.dense", [HIDDEN, HIDDEN]), *pair("cls.predictions.transform.LayerNorm", [HIDDEN], *norm),
            *pair("cls.seq_relationship", [2, HIDDEN])]


def megatron_bert():
    at = "bert.encoder.layer.*."
    tensors = [("bert.embeddings.word_embeddings.weight", [VOCABULARY, HIDDEN]),
               ("bert.embeddings.position_embeddings.weight", [POSITIONS, HIDDEN]),
               ("bert.embeddings.token_type_embeddings.weight", [2, HIDDEN]), *pair(at + "attention.ln", [HIDDEN])]
    for part in ("query", "key", "value"):
        tensors += pair(at + "attention.self." + part, [HIDDEN, HIDDEN])
    return tensors + [*pair(at + "attention.output.dense", [HIDDEN, HIDDEN]), *pair(at + "ln", [HIDDEN]),
                      *pair(at + "intermediate.dense", [FFN, HIDDEN]), *pair(at + "output.dense", [HIDDEN, FFN]),
                      *pair("bert.encoder.ln", [HIDDEN]), *bert_heads()]


def gpt2(prefix=""):
    at = prefix + "h.*."
    conv = lambda name, inputs, outputs: [(name + ".weight", [inputs, outputs]), (name + ".bias", [outputs])]
    return [(prefix + "wte.weight", [VOCABULARY, HIDDEN]), (prefix + "wpe.weight", [POSITIONS, HIDDEN]), *pair(at + "ln_1", [HIDDEN]),
            *conv(at + "attn.c_attn", HIDDEN, 3 * HIDDEN), *conv(at + "attn.c_proj", HIDDEN, HIDDEN), *pair(at + "ln_2", [HIDDEN]),
            *conv(at + "mlp.c_fc", HIDDEN, 4 * HIDDEN), *conv(at + "mlp.c_proj", 4 * HIDDEN, HIDDEN), *pair(prefix + "ln_f", [HIDDEN])]


def llama(kv=HIDDEN, head=True):
    at = "model.layers.*."
    tensors = [("model.embed_tokens.weight", [VOCABULARY, HIDDEN]), (at + "input_layernorm.weight", [HIDDEN]),
               (at + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]), (at + "self_attn.k_proj.weight", [kv, HIDDEN]),
               (at + "self_attn.v_proj.weight", [kv, HIDDEN]), (at + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]),
               (at + "post_attention_layernorm.weight", [HIDDEN]), (at + "mlp.gate_proj.weight", [FFN, HIDDEN]),
               (at + "mlp.up_proj.weight", [FFN, HIDDEN]), (at + "mlp.down_proj.weight", [HIDDEN, FFN]), ("model.norm.weight", [HIDDEN])]
    return tensors + ([("lm_head.weight", [VOCABULARY, HIDDEN])] if head else [])


def typed(tensors, dtype="F32", tied=None, buffers=()):
    """Rows of a file: all tensors of one dtype, copies of tied ones, and buffers, which have dtypes of their own."""
    shapes = dict(tensors)
    rows = [[name, dtype, shape, None] for name, shape in tensors]
    rows += [[copy, dtype, shapes[original], original] for copy, original in (tied or {}).items()]
    return rows + [[name, kind, shape, None] for name, kind, shape in buffers]


def in_shards(rows, names):
    """The first layer, and what is no layer, in the first file; the other layer in the second."""
    first, second = names
    files = {first: [], second: []}
    for name, dtype, shape, tied in rows:
        if "*" not in name:
            files[first].append([name, dtype, shape, tied])
            continue
        files[first].append([name.replace("*", "0"), dtype, shape, tied])
        files[second].append([name.replace("*", "1"), dtype, shape, tied])
    return files


# ---- the configurations, with the keys that are published ----

BERT = {"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN,
        "layer_norm_eps": 1e-12, "max_position_embeddings": POSITIONS, "model_type": "bert", "num_attention_heads": 4,
        "num_hidden_layers": LAYERS, "pad_token_id": 0, "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
        "type_vocab_size": 2, "use_cache": True, "vocab_size": VOCABULARY}
# convert_megatron_bert_checkpoint.py of transformers writes no architectures.
MEGATRON = {**{key: BERT[key] for key in BERT if key != "architectures"}, "model_type": "megatron-bert",
            "tokenizer_type": "BertWordPieceLowerCase"}
GPT2 = {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 1,
        "embd_pdrop": 0.1, "eos_token_id": 1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": POSITIONS, "n_embd": HIDDEN, "n_head": 4, "n_layer": LAYERS, "n_positions": POSITIONS, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": VOCABULARY}
DISTILGPT2 = {**GPT2, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "gradient_checkpointing": False}
LLAMA2 = {"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
          "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN,
          "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": LAYERS,
          "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
          "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": VOCABULARY}
LLAMA3 = {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 3,
          "eos_token_id": 4, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN,
          "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": LAYERS,
          "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0,
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True,
          "vocab_size": VOCABULARY}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
           "rope_type": "llama3"}
LLAMA31 = {**LLAMA3, "max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": SCALING, "eos_token_id": [4, 5, 6],
           "transformers_version": "4.43.0.dev0"}
LLAMA32 = {**LLAMA31, "head_dim": 8, "rope_scaling": {**SCALING, "factor": 32.0}, "tie_word_embeddings": True,
           "transformers_version": "4.45.0.dev0"}
TINY = {key: value_ for key, value_ in {**LLAMA3, "max_position_embeddings": 2048, "rope_theta": 10000.0, "bos_token_id": 1,
                                        "eos_token_id": 2, "transformers_version": "4.35.0"}.items()}

OLD_NORMS = ("gamma", "beta")
DECODER = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
POSITION_IDS = [("bert.embeddings.position_ids", "I64", [1, POSITIONS])]
MASK = [("h.*.attn.bias", "F32", [1, 1, POSITIONS, POSITIONS])]
OLD_MASK = [("h.*.attn.bias", "U8", [1, 1, POSITIONS, POSITIONS]), ("h.*.attn.masked_bias", "F32", [])]
FREQUENCIES = [("model.layers.*.self_attn.rotary_emb.inv_freq", "F32", [HIDDEN // 4 // 2])]
BIN_SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
SAFE_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def one(rows, name="model.safetensors"):
    return {name: rows}


def forms():
    bin_name = "pytorch_model.bin"
    prefixed = [("transformer." + name, dtype, shape) for name, dtype, shape in OLD_MASK]
    yield "bert-base-uncased", BERT, one(typed(bert(OLD_NORMS))), []
    yield "bert-base-uncased.bin", BERT, one(typed(bert(OLD_NORMS), tied=DECODER), bin_name), ["stream"]
    yield "bert-large-uncased", BERT, one(typed(bert(OLD_NORMS), buffers=POSITION_IDS)), []
    yield "megatron-bert-uncased-345m", MEGATRON, one(typed(megatron_bert(), "F16", DECODER), bin_name), ["archive"]
    yield "gpt2", GPT2, one(typed(gpt2(), buffers=MASK)), []
    yield "gpt2-medium", GPT2, one(typed(gpt2(), buffers=OLD_MASK), bin_name), ["stream", "archive"]
    yield "gpt2-xl", {**GPT2, "n_head": 2, "output_past": True}, one(typed(gpt2(), buffers=MASK), bin_name), ["archive"]
    yield "distilgpt2", DISTILGPT2, one(typed(gpt2("transformer."), tied={"lm_head.weight": "transformer.wte.weight"},
                                              buffers=prefixed), bin_name), ["stream"]
    yield "Llama-2-7b-hf", LLAMA2, in_shards(typed(llama(), "F16", buffers=FREQUENCIES), SAFE_SHARDS), []
    yield "Llama-2-7b-hf.bin", LLAMA2, in_shards(typed(llama(), "F16", buffers=FREQUENCIES), BIN_SHARDS), ["archive"]
    yield "Meta-Llama-3-8B", LLAMA3, in_shards(typed(llama(16), "BF16"), SAFE_SHARDS), []
    yield "Llama-3.1-8B", LLAMA31, in_shards(typed(llama(16), "BF16"), SAFE_SHARDS), []
    yield "Llama-3.2-1B", LLAMA32, one(typed(llama(16, head=False), "BF16")), []
    yield "TinyLlama-1.1B-Chat-v1.0", TINY, one(typed(llama(16), "BF16")), []
    yield "TinyLlama-1.1B.bin", {**TINY, "torch_dtype": "float32"}, one(typed(llama(16)), bin_name), ["archive"]


# ---- the directories, and what transformers makes of them ----

def tensors_of(rows):
    tensors = {}
    for name, dtype, shape, tied in rows:
        layers = range(LAYERS) if "*" in name else [None]
        for layer in layers:
            full = name if layer is None else name.replace("*", str(layer))
            if tied:
                tensors[full] = tensors[tied]
                continue
            numbers = list(value(full, math.prod(shape)))
            tensors[full] = torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(torch.float32).to(DTYPES[dtype])
    return tensors


def write(folder, config, files, stream):
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    weight_map = {}
    for name, rows in files.items():
        tensors = tensors_of(rows)
        weight_map.update({tensor: name for tensor in tensors})
        path = os.path.join(folder, name)
        if name.endswith(".safetensors"):
            save_file(tensors, path, metadata={"format": "pt"})
        else:
            torch.save(tensors, path, _use_new_zipfile_serialization=not stream)
    if len(files) > 1:
        index = "model.safetensors.index.json" if name.endswith(".safetensors") else "pytorch_model.bin.index.json"
        with open(os.path.join(folder, index), "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": 1}, "weight_map": weight_map}, file)


def rounded(values):
    return [float(f"{value_:.7g}") for value_ in values]


def outputs(folder):
    is_bert = "bert" in AutoConfig.from_pretrained(folder).model_type
    auto = AutoModelForPreTraining if is_bert else AutoModelForCausalLM
    model, loaded = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    missing = [name for name in loaded["missing_keys"] if "position_ids" not in name]
    assert not missing and not loaded["mismatched_keys"], loaded
    model = model.eval().to(torch.float64)
    with torch.no_grad():
        if not is_bert:
            return {"tokens": TOKENS, "logits": [rounded(row) for row in model(torch.tensor([TOKENS])).logits[0].tolist()]}
        types = [int(i > 3) for i in range(len(TOKENS))]
        out = model(input_ids=torch.tensor([TOKENS]), token_type_ids=torch.tensor([types]))
    return {"tokens": TOKENS, "types": types, "length": len(TOKENS), "classes": rounded(out.seq_relationship_logits[0].tolist()),
            "logits": [rounded(row) for row in out.prediction_logits[0].tolist()]}


def main():
    torch.set_num_threads(1)
    lines = []
    for name, config, files, containers in forms():
        found = []
        for stream in [container == "stream" for container in containers] or [False]:
            with tempfile.TemporaryDirectory() as folder:
                write(folder, config, files, stream)
                found.append(outputs(folder))
        assert all(each == found[0] for each in found), name
        form = {"config": config, "context": POSITIONS, "files": files, "containers": containers, **found[0]}
        lines.append(f"{json.dumps(name)}: {json.dumps(form)}")
        print(name, max(abs(number) for row in found[0]["logits"] for number in row))
    with open(OUTPUT, "w", encoding="utf-8") as file:
        file.write("{" + ",\n".join(lines) + "}\n")
    print(OUTPUT, os.path.getsize(OUTPUT))


if __name__ == "__main__":
    main()
