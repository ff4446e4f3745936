"""Writes the fixtures of golden_test.cc: what PyTorch says about a tiny GPT-2 (written out here), and what
transformers says of its classes for the other architectures. Run by hand, once; names of models make only those:

    python3 -m venv ~/golden-venv && ~/golden-venv/bin/pip install torch numpy transformers
    ~/golden-venv/bin/python tests/golden/make_fixtures.py [MODEL...]

The initial weights are not in a fixture. Those of the first six models are Tercio's own (kernels/random.h), computed here a
second time with numpy, so that the test also fails when the initialisation changes. All others begin with the values of
tests/huggingface/make_published.py, which a hash of the canonical name chooses ("start": "published"): with biases of zero and norms
of one a wrong name would hardly show.

fixtures/tokens.json            {"tokens": [step][sequence][context + 1]}: a text-like Markov chain
fixtures/<model>.json           the job, and per step: loss, grad_norm, learning_rate (as PyTorch computes them in
                                double precision from the same fp32 weights), and the largest relative
                                difference of the loss when PyTorch computes in fp32
fixtures/<model>.safetensors    the gradient of the first step, before clipping, by canonical name
for <model> in: bias, no_bias, llama (two query heads for each key head, stretched rotary positions, a head of its
own), bert, megatron_bert (masked tokens and sentence order), bert_classes, those of FURTHER, and gpt2_packed and llama_packed,
whose sequences hold several documents: no document sees another, and positions begin anew with each.

transformers computes the norms of the llama family, tables of rotary positions, and the softmax of gptj and gemma2 in single
precision whatever the weights are.

The samples of a bert are made from the tokens by encoder_samples(), those of a t5 by decoder_samples(), and packed ones by
packed_samples(); golden_test.cc has all of them a second time.
"""

import functools
import json
import math
import os
import struct
import sys

import numpy
import torch
from torch.nn import functional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "huggingface"))
LAYERS, HEADS, HIDDEN, CONTEXT, VOCABULARY = 2, 2, 32, 16, 61
STEPS, BATCH, SEED = 100, 4, 1337
TRAINING = {
    "learning_rate": 3e-3, "min_learning_rate": 3e-4, "warmup_steps": 10, "decay_steps": STEPS,
    "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad_norm": 1.8,  # some steps are clipped, some not
}
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


# --- Tercio's initialisation, from the description in kernels/random.h ---------------------------------


def split_mix(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def philox(key, counters):
    """Philox4x32-10 of an array of counters [n, 4]."""
    k0, k1 = key
    c = [counters[:, i].astype(numpy.uint64) for i in range(4)]
    low = numpy.uint64(0xFFFFFFFF)
    shift = numpy.uint64(32)
    for _ in range(10):
        p0 = numpy.uint64(0xD2511F53) * c[0]
        p1 = numpy.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ numpy.uint64(k0), p1 & low, (p0 >> shift) ^ c[3] ^ numpy.uint64(k1), p0 & low]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return numpy.stack(c, 1)


def normal_matrix(seed, tensor_index, rows, columns, deviation):
    assert columns % 4 == 0
    mixed = split_mix(split_mix(seed) ^ ((1 << 64) - 1))
    counters = numpy.zeros((rows, columns // 4, 4), numpy.uint64)
    counters[:, :, 0] = numpy.arange(rows)[:, None]
    counters[:, :, 1] = numpy.arange(columns // 4)[None, :]
    counters[:, :, 2] = tensor_index
    bits = philox((mixed & 0xFFFFFFFF, mixed >> 32), counters.reshape(-1, 4)).astype(numpy.float64)
    values = numpy.empty_like(bits)
    for pair in (0, 2):
        radius = numpy.sqrt(-2 * numpy.log((bits[:, pair] + 1) / 4294967296.0))
        angle = 2 * math.pi * bits[:, pair + 1] / 4294967296.0
        values[:, pair] = radius * numpy.cos(angle)
        values[:, pair + 1] = radius * numpy.sin(angle)
    return (values.reshape(rows, columns) * float(numpy.float32(deviation))).astype(numpy.float32)


LLAMA = {"architecture": "llama", "layers": LAYERS, "heads": 4, "kv_heads": 2, "hidden": HIDDEN, "ffn_hidden": 96,
         "context": CONTEXT, "vocab_size": VOCABULARY, "bias": False, "dropout": 0, "untied_head": True,
         "norm_eps": 1e-6, "rope_theta": 1000.0,
         "rope_scaling": {"factor": 4.0, "low_freq_factor": 0.8, "high_freq_factor": 4.0, "original_context": 30}}


def gpt2(bias):
    return {"architecture": "gpt2", "layers": LAYERS, "heads": HEADS, "kv_heads": HEADS, "hidden": HIDDEN,
            "ffn_hidden": 4 * HIDDEN, "context": CONTEXT, "vocab_size": VOCABULARY, "bias": bias, "dropout": 0}


def bert(norm, labels):
    return {"architecture": "bert", "layers": LAYERS, "heads": HEADS, "kv_heads": HEADS, "hidden": HIDDEN,
            "ffn_hidden": 4 * HIDDEN, "context": CONTEXT, "vocab_size": VOCABULARY, "bias": True, "dropout": 0,
            "norm": norm, "token_types": 2, "sentence_order": labels == 0, "labels": labels, "norm_eps": 1e-12}


def further(architecture, **more):
    return {"architecture": architecture, "layers": LAYERS, "heads": 4, "kv_heads": 4, "hidden": HIDDEN, "ffn_hidden": 64,
            "context": CONTEXT, "vocab_size": VOCABULARY, "bias": architecture in ("opt", "gptj", "gpt_neox", "phi"),
            "dropout": 0, "untied_head": True, "norm_eps": 1e-5, **more}


FURTHER = {
    # ReLU's gradient jumps at zero: where a value lies within rounding of it, curves of two orders of sums part. With a width of 80
    # PyTorch's own curve in fp32 is 7e-4 from that in fp64; with this one no value of 100 steps is so near.
    "opt": further("opt", untied_head=False, ffn_hidden=48),
    "gptj": further("gptj", heads=2, kv_heads=2, rotary_dim=4, rope_theta=10000.0),
    "gpt_neox": further("gpt_neox", heads=2, kv_heads=2, rotary_dim=4, rope_theta=1000.0),
    "gpt_neox_sequential": further("gpt_neox", heads=2, kv_heads=2, rope_theta=10000.0, activation="gelu_tanh",
                                   sequential_residual=True),
    "phi": further("phi", kv_heads=2, rotary_dim=4, rope_theta=1000.0),
    "phi3": further("phi3", kv_heads=2, rope_theta=1000.0, sliding_window=6),
    "qwen2": further("qwen2", kv_heads=2, rope_theta=1000.0, untied_head=False),
    "qwen3": further("qwen3", kv_heads=2, head_dim=16, rope_theta=1000.0, norm_eps=1e-6),
    "mistral": further("mistral", kv_heads=2, rope_theta=1000.0, sliding_window=5),
    "gemma2": further("gemma2", kv_heads=2, head_dim=16, rope_theta=1000.0, norm_eps=1e-6, untied_head=False, sliding_window=5,
                      attention_softcap=5.0, logit_softcap=4.0, query_scale=24),
}

def t5(**more):
    """Longer than the other models on one side, and shorter on the other; most distances share a bucket with others."""
    return further("t5", context=24, decoder_context=12, decoder_layers=LAYERS, head_dim=8, relative_buckets=8,
                   relative_distance=16, norm_eps=1e-6, **more)


# As in opt, the width is one with which no value of 100 steps lies within rounding of ReLU's jump.
FURTHER["t5"] = t5(untied_head=False, ffn_hidden=40)
# With this one 100 steps in single precision stay near those in double; with others PyTorch's own do not (norms differ by 3e-4).
FURTHER["t5_gated"] = t5(gated_mlp=True, activation="gelu_tanh", ffn_hidden=56)

MODELS = {"bias": gpt2(True), "no_bias": gpt2(False), "llama": LLAMA, "bert": bert("post", 0),
          "megatron_bert": bert("pre", 0), "bert_classes": bert("post", 3), **FURTHER,
          "gpt2_packed": {**gpt2(True), "packed": True}, "llama_packed": {**LLAMA, "packed": True}}


def bert_names(model):
    """transformers' name -> canonical name, in canonical order."""
    post = model["norm"] == "post"
    names = {}

    def pair(theirs, ours):
        for part in (".weight", ".bias"):
            names[theirs + part] = ours + part

    names["bert.embeddings.word_embeddings.weight"] = "embedding.token.weight"
    names["bert.embeddings.position_embeddings.weight"] = "embedding.position.weight"
    names["bert.embeddings.token_type_embeddings.weight"] = "embedding.type.weight"
    if post:
        pair("bert.embeddings.LayerNorm", "embedding.norm")
    for layer in range(LAYERS):
        theirs, ours = f"bert.encoder.layer.{layer}.", f"layers.{layer}."
        pair(theirs + ("attention.output.LayerNorm" if post else "attention.ln"), ours + "attention_norm")
        for kind in ("weight", "bias"):
            for part in ("query", "key", "value"):
                names[f"{theirs}attention.self.{part}.{kind}"] = f"{ours}attention.{part}.{kind}"
        pair(theirs + "attention.output.dense", ours + "attention.output")
        pair(theirs + ("output.LayerNorm" if post else "ln"), ours + "mlp_norm")
        pair(theirs + "intermediate.dense", ours + "mlp.up")
        pair(theirs + "output.dense", ours + "mlp.down")
    if not post:
        pair("bert.encoder.ln", "final_norm")
    if model["labels"] == 0:
        pair("cls.predictions.transform.dense", "head.transform")
        pair("cls.predictions.transform.LayerNorm", "head.norm")
        names["cls.predictions.bias"] = "head.bias"
    pair("bert.pooler.dense", "pooler")
    if model["labels"] == 0:
        pair("cls.seq_relationship", "sentence_order")
    else:
        pair("classifier", "classifier")
    return names


def bert_model(model, dtype):
    import transformers
    kind = "Bert" if model["norm"] == "post" else "MegatronBert"
    config = getattr(transformers, kind + "Config")(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=model["ffn_hidden"], max_position_embeddings=CONTEXT, type_vocab_size=2,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, layer_norm_eps=model["norm_eps"],
        num_labels=max(2, model["labels"]), pad_token_id=None)  # id 0 is a token like others here
    task = "ForSequenceClassification" if model["labels"] else "ForPreTraining"
    return getattr(transformers, kind + task)(config).to(dtype)


def encoder_samples(step, tokens, labels):
    """(inputs, types, attention mask, targets, label) of a batch of token rows, as in golden_test.cc."""
    batch = tokens.shape[0]
    ids = tokens[:, :CONTEXT].clone()
    sequence = torch.arange(batch)[:, None]
    at = torch.arange(CONTEXT)[None, :]
    length = CONTEXT - (step + sequence) % 5
    real = at < length
    chosen = real & ((7 * step + 3 * sequence + 5 * at) % 6 == 0)
    targets = torch.where(chosen, ids, torch.full_like(ids, -100))
    inputs = torch.where(chosen, torch.full_like(ids, 3), torch.where(real, ids, torch.zeros_like(ids)))
    types = (real & (at >= CONTEXT // 2)).long()
    label = torch.clamp(ids[:, 0] % 5, max=max(2, labels) - 1)
    return inputs, types, real.long(), targets, label


def llama_names():
    """transformers' name -> canonical name, in canonical order of the canonical names."""
    names = {"model.embed_tokens.weight": "embedding.token.weight"}
    parts = {"input_layernorm": "attention_norm", "self_attn.q_proj": "attention.query",
             "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value",
             "self_attn.o_proj": "attention.output", "post_attention_layernorm": "mlp_norm",
             "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up", "mlp.down_proj": "mlp.down"}
    for layer in range(LAYERS):
        for theirs, ours in parts.items():
            names[f"model.layers.{layer}.{theirs}.weight"] = f"layers.{layer}.{ours}.weight"
    names["model.norm.weight"] = "final_norm.weight"
    names["lm_head.weight"] = "head.weight"
    return names


def llama_model(dtype):
    from transformers import LlamaConfig, LlamaForCausalLM
    scaling = LLAMA["rope_scaling"]
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=LLAMA["ffn_hidden"], num_hidden_layers=LAYERS,
        num_attention_heads=LLAMA["heads"], num_key_value_heads=LLAMA["kv_heads"],
        max_position_embeddings=CONTEXT, rms_norm_eps=LLAMA["norm_eps"], tie_word_embeddings=False,
        rope_theta=LLAMA["rope_theta"],
        rope_scaling={"rope_type": "llama3", "rope_theta": LLAMA["rope_theta"], "factor": scaling["factor"],
                      "low_freq_factor": scaling["low_freq_factor"],
                      "high_freq_factor": scaling["high_freq_factor"],
                      "original_max_position_embeddings": scaling["original_context"]})
    return LlamaForCausalLM(config).to(dtype)


def tensor_table(model):
    """(name, shape, kind) in canonical order: plan/model_tensors.h."""
    if model["architecture"] == "llama":
        shapes = dict(llama_model(torch.float32).named_parameters())

        def kind(name):
            return "ones" if "norm" in name else "residual" if "output" in name or "down" in name else "normal"
        return [(ours, tuple(shapes[theirs].shape), kind(ours)) for theirs, ours in llama_names().items()]
    if model["architecture"] == "bert":
        shapes = dict(bert_model(model, torch.float32).named_parameters())

        def kind_of(name):
            if name.endswith(".bias"):
                return "zeros"
            if "norm" in name:
                return "ones"
            residual = model["norm"] == "pre" and ("attention.output" in name or "down" in name)
            return "residual" if residual else "normal"
        return [(ours, tuple(shapes[theirs].shape), kind_of(ours)) for theirs, ours in bert_names(model).items()]
    bias = model["bias"]
    table = [("embedding.token.weight", (VOCABULARY, HIDDEN), "normal"),
             ("embedding.position.weight", (CONTEXT, HIDDEN), "normal")]

    def norm(name):
        table.append((name + ".weight", (HIDDEN,), "ones"))
        if bias:
            table.append((name + ".bias", (HIDDEN,), "zeros"))

    def linear(name, out_features, in_features, kind):
        table.append((name + ".weight", (out_features, in_features), kind))
        if bias:
            table.append((name + ".bias", (out_features,), "zeros"))

    for layer in range(LAYERS):
        at = f"layers.{layer}."
        norm(at + "attention_norm")
        for part in ("query", "key", "value"):
            table.append((at + f"attention.{part}.weight", (HIDDEN, HIDDEN), "normal"))
        if bias:
            for part in ("query", "key", "value"):
                table.append((at + f"attention.{part}.bias", (HIDDEN,), "zeros"))
        linear(at + "attention.output", HIDDEN, HIDDEN, "residual")
        norm(at + "mlp_norm")
        linear(at + "mlp.up", 4 * HIDDEN, HIDDEN, "normal")
        linear(at + "mlp.down", HIDDEN, 4 * HIDDEN, "residual")
    norm("final_norm")
    return table


def published_weights(model):
    from architectures import tensors
    from make_published import value
    return {name: numpy.array(list(value(name, math.prod(shape))), numpy.float32).reshape(shape)
            for name, shape in tensors(model).items()}


def initial_weights(model):
    if is_further(model):
        return published_weights(model)
    weights = {}
    for index, (name, shape, kind) in enumerate(tensor_table(model)):
        if kind == "ones":
            weights[name] = numpy.ones(shape, numpy.float32)
        elif kind == "zeros":
            weights[name] = numpy.zeros(shape, numpy.float32)
        else:
            deviation = 0.02 / math.sqrt(2 * LAYERS) if kind == "residual" else 0.02
            weights[name] = normal_matrix(SEED, index, *shape, deviation)
    return weights


# --- the model in PyTorch ------------------------------------------------------------------------------


def packed_samples(step, tokens):
    """(inputs, positions, which keys a query sees, targets) of a batch of token rows, as in golden_test.cc: each row is cut into
    three documents, the last tokens of which have no target, but the row's own."""
    sequence = torch.arange(tokens.shape[0])[:, None]
    first = 2 + (step + sequence) % 5
    second = first + 1 + (3 * step + sequence) % 7
    at = torch.arange(CONTEXT)[None]
    starts = torch.where(at < first, 0, torch.where(at < second, first, second))
    same = starts[:, :, None] == starts[:, None, :]
    seen = (same & torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril())[:, None]
    is_last = (at + 1 == first) | (at + 1 == second)
    return tokens[:, :-1], at - starts, seen, torch.where(is_last, -100, tokens[:, 1:])


def loss_of(w, step, tokens, packed=False):
    inputs, positions, seen, targets = tokens[:, :-1], torch.arange(CONTEXT), None, tokens[:, 1:]
    if packed:
        inputs, positions, seen, targets = packed_samples(step, tokens)

    def norm(x, name):
        return functional.layer_norm(x, (HIDDEN,), w[name + ".weight"], w.get(name + ".bias"), 1e-5)

    def linear(x, name):
        return functional.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    x = w["embedding.token.weight"][inputs] + w["embedding.position.weight"][positions]
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        y = norm(x, at + "attention_norm")
        query, key, value = (linear(y, at + f"attention.{part}").unflatten(2, (HEADS, -1)).transpose(1, 2)
                             for part in ("query", "key", "value"))
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=seen is None)
        x = x + linear(y.transpose(1, 2).flatten(2), at + "attention.output")
        y = linear(norm(x, at + "mlp_norm"), at + "mlp.up")
        x = x + linear(functional.gelu(y, approximate="tanh"), at + "mlp.down")
    logits = functional.linear(norm(x, "final_norm"), w["embedding.token.weight"])
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def is_further(model):
    return model["architecture"] not in ("gpt2", "llama", "bert")


def decoder_samples(tokens, context, decoder_context):
    """(inputs, decoder's inputs, targets) of a batch of token rows, as in golden_test.cc: the encoder reads the row from
    its begin on, and again from its begin on until it is full; the decoder begins with id 0, and predicts the row backwards.
    """
    row = tokens.shape[1]
    inputs = tokens[:, torch.arange(context) % row]
    targets = tokens[:, row - 1 - torch.arange(decoder_context)]
    decoder_inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], 1)
    return inputs, decoder_inputs, targets


def t5_loss(model, dtype):
    from architectures import build, to_transformers
    module = build(model, dtype)

    def loss(w, step, tokens):
        inputs, decoder_inputs, targets = decoder_samples(tokens, model["context"], model["decoder_context"])
        arguments = {"input_ids": inputs, "decoder_input_ids": decoder_inputs, "labels": targets}
        return torch.func.functional_call(module, to_transformers(model, w), (), arguments).loss
    return loss


def further_loss(model, dtype):
    from architectures import build, to_transformers
    if model["architecture"] == "t5":
        return t5_loss(model, dtype)
    module = build(model, dtype)

    def loss(w, step, tokens):
        logits = torch.func.functional_call(module, to_transformers(model, w), (tokens[:, :-1],)).logits
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return loss


def llama_loss(dtype, packed=False):
    module = llama_model(dtype)

    def loss(w, step, tokens):
        named = {theirs: w[ours] for theirs, ours in llama_names().items()}
        inputs, targets, more = tokens[:, :-1], tokens[:, 1:], {}
        if packed:
            inputs, positions, seen, targets = packed_samples(step, tokens)
            # transformers takes a mask of four dimensions as it is, and adds it to scores.
            hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
            more = {"position_ids": positions, "attention_mask": hidden}
        logits = torch.func.functional_call(module, named, (inputs,), more).logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss


def bert_loss(model, dtype):
    module = bert_model(model, dtype).eval()

    def loss(w, step, tokens):
        named = {theirs: w[ours] for theirs, ours in bert_names(model).items()}
        if model["labels"] == 0:  # tied
            named["cls.predictions.decoder.weight"] = w["embedding.token.weight"]
            named["cls.predictions.decoder.bias"] = w["head.bias"]
        inputs, types, mask, targets, label = encoder_samples(step, tokens, model["labels"])
        arguments = {"input_ids": inputs, "token_type_ids": types, "attention_mask": mask}
        if model["labels"]:
            arguments["labels"] = label
        else:
            arguments.update(labels=targets, next_sentence_label=label)
        return torch.func.functional_call(module, named, (), arguments).loss
    return loss


def learning_rate(step):
    t = TRAINING
    if step <= t["warmup_steps"]:
        return t["learning_rate"] * step / t["warmup_steps"]
    part = (step - t["warmup_steps"]) / (t["decay_steps"] - t["warmup_steps"])
    low = t["min_learning_rate"]
    return low + (t["learning_rate"] - low) / 2 * (1 + math.cos(math.pi * min(part, 1)))


def train(model, tokens, dtype):
    """(loss, gradient norm) of each step, and the gradient of the first."""
    weights = {name: torch.tensor(value, dtype=dtype, requires_grad=True)
               for name, value in initial_weights(model).items()}
    loss_function = (further_loss(model, dtype) if is_further(model) else
                     llama_loss(dtype, model.get("packed", False)) if model["architecture"] == "llama" else
                     bert_loss(model, dtype) if model["architecture"] == "bert" else
                     functools.partial(loss_of, packed=model.get("packed", False)))
    optimizer = torch.optim.AdamW(
        [{"params": [v for v in weights.values() if v.dim() >= 2], "weight_decay": TRAINING["weight_decay"]},
         {"params": [v for v in weights.values() if v.dim() < 2], "weight_decay": 0.0}],
        betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"])
    curve, first = [], None
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss = loss_function(weights, step, tokens[step - 1])
        loss.backward()
        if first is None:
            first = {name: value.grad.to(torch.float32).numpy().copy() for name, value in weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), TRAINING["clip_grad_norm"])
        optimizer.step()
        curve.append((loss.item(), norm.item()))
    return curve, first


# --- files ---------------------------------------------------------------------------------------------


def markov_tokens():
    """Each token has four likely followers, so that there is something to learn."""
    generator = numpy.random.default_rng(7)
    followers = generator.integers(0, VOCABULARY, (VOCABULARY, 4))
    tokens = numpy.zeros((STEPS, BATCH, CONTEXT + 1), numpy.int64)
    for sequence in tokens.reshape(-1, CONTEXT + 1):
        sequence[0] = generator.integers(VOCABULARY)
        for i in range(1, CONTEXT + 1):
            sequence[i] = followers[sequence[i - 1], generator.integers(4)]
    return tokens


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(numpy.ascontiguousarray(value, "<f4").tobytes())


def main():
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    tokens = markov_tokens()
    with open(os.path.join(FOLDER, "tokens.json"), "w", encoding="utf-8") as file:
        json.dump({"tokens": tokens.tolist()}, file, separators=(",", ":"))
        file.write("\n")
    tokens = torch.tensor(tokens)
    for name in sys.argv[1:] or MODELS:
        curve, gradient = train(MODELS[name], tokens, torch.float64)
        single, _ = train(MODELS[name], tokens, torch.float32)
        difference = max(abs(a[0] - b[0]) / a[0] for a, b in zip(curve, single))
        write_safetensors(os.path.join(FOLDER, name + ".safetensors"), gradient)
        fixture = {
            "model": MODELS[name],
            **({"start": "published"} if is_further(MODELS[name]) else {}),
            "training": {**TRAINING, "steps": STEPS, "global_batch": BATCH, "seed": SEED},
            "pytorch": torch.__version__.split("+")[0],
            "fp32_loss_difference": difference,
            "steps": [{"loss": loss, "grad_norm": norm, "learning_rate": learning_rate(i + 1)}
                      for i, (loss, norm) in enumerate(curve)],
        }
        with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(fixture, file, indent=1)
            file.write("\n")
        clipped = sum(norm > TRAINING["clip_grad_norm"] for _, norm in curve)
        print(f"{name}: loss {curve[0][0]:.6f} to {curve[-1][0]:.6f}, gradient norm {curve[0][1]:.4f} to "
              f"{curve[-1][1]:.4f}, {clipped} steps clipped, fp32 differs by {difference:.1e}")


if __name__ == "__main__":
    main()
