"""Models of transformers from the sizes of a ModelSpec (proto/tercio/v1/job.proto), and the names that both sides have for
their tensors: what make_fixtures.py here and in tests/golden share. The names are a second copy of those in
checkpoint/huggingface/forms/, so that a slip in one of them shows.
"""

import torch
import transformers

TANH, EXACT, RELU, SILU = "gelu_tanh", "gelu", "relu", "silu"
# As transformers calls them.
ACTIVATIONS = {TANH: "gelu_pytorch_tanh", EXACT: "gelu", RELU: "relu"}


def head_dim(model):
    return model.get("head_dim") or model["hidden"] // model["heads"]


def rotary_share(model):
    return (model.get("rotary_dim") or head_dim(model)) / head_dim(model)


# --- config.json -----------------------------------------------------------------------------------------


def gptj_sizes(model):
    return {"n_layer": model["layers"], "n_embd": model["hidden"], "n_head": model["heads"], "n_inner": model["ffn_hidden"],
            "n_positions": model["context"], "layer_norm_epsilon": model["norm_eps"],
            "rotary_dim": model.get("rotary_dim") or head_dim(model)}


def usual_sizes(model):
    return {"num_hidden_layers": model["layers"], "hidden_size": model["hidden"], "num_attention_heads": model["heads"],
            "num_key_value_heads": model["kv_heads"], "intermediate_size": model["ffn_hidden"],
            "max_position_embeddings": model["context"]}


def rotary(model, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": model["rope_theta"], **more}}


def window(model):
    return model.get("sliding_window") or None


def t5_config(model, **more):
    """A function of T5's "gated-gelu" is the approximation by tanh."""
    function = {TANH: "gelu", EXACT: "gelu", RELU: "relu", SILU: "silu"}[model.get("activation", RELU)]
    return transformers.T5Config(
        num_layers=model["layers"], num_decoder_layers=model["decoder_layers"], d_model=model["hidden"], d_kv=head_dim(model),
        num_heads=model["heads"], d_ff=model["ffn_hidden"], n_positions=model["context"],
        relative_attention_num_buckets=model["relative_buckets"], relative_attention_max_distance=model["relative_distance"],
        layer_norm_epsilon=model["norm_eps"], dropout_rate=0, decoder_start_token_id=0,
        feed_forward_proj=("gated-" if model.get("gated_mlp") else "") + function, **more)


def config(model, **more):
    """transformers' configuration of the model; `more` goes into it, too."""
    kind = model["architecture"]
    common = {"vocab_size": model["vocab_size"], "tie_word_embeddings": not model["untied_head"], "bos_token_id": None,
              "eos_token_id": None, "pad_token_id": None, **more}  # every id is a token like others here
    norm = {"rms_norm_eps": model["norm_eps"]}
    switched = {"use_sliding_window": bool(window(model)), "sliding_window": window(model), "max_window_layers": 0}
    if kind == "t5":
        # Padding and the end have ids, since transformers shifts and stops by them.
        return t5_config(model, **{**common, "pad_token_id": 0, "eos_token_id": 1, **more})
    if kind == "opt":
        sizes = usual_sizes(model)
        sizes["ffn_dim"] = sizes.pop("intermediate_size")
        del sizes["num_key_value_heads"]
        return transformers.OPTConfig(**sizes, dropout=0, attention_dropout=0,
                                      activation_function=ACTIVATIONS[model.get("activation", RELU)], **common)
    if kind == "gptj":
        return transformers.GPTJConfig(**gptj_sizes(model), **common)
    if kind == "gpt_neox":
        sizes = usual_sizes(model)
        del sizes["num_key_value_heads"]
        return transformers.GPTNeoXConfig(
            **sizes, layer_norm_eps=model["norm_eps"], use_parallel_residual=not model.get("sequential_residual", False),
            hidden_act=ACTIVATIONS[model.get("activation", EXACT)],
            **rotary(model, partial_rotary_factor=rotary_share(model)), **common)
    if kind == "phi":
        return transformers.PhiConfig(**usual_sizes(model), layer_norm_eps=model["norm_eps"],
                                      **rotary(model, partial_rotary_factor=rotary_share(model)), **common)
    if kind == "phi3":
        return transformers.Phi3Config(**usual_sizes(model), **norm, sliding_window=window(model),
                                       original_max_position_embeddings=model["context"],
                                       **rotary(model, partial_rotary_factor=rotary_share(model)), **common)
    if kind == "qwen2":
        return transformers.Qwen2Config(**usual_sizes(model), **norm, **switched, **rotary(model), **common)
    if kind == "qwen3":
        return transformers.Qwen3Config(**usual_sizes(model), **norm, **switched, head_dim=head_dim(model), **rotary(model),
                                        **common)
    if kind == "mistral":
        return transformers.MistralConfig(**usual_sizes(model), **norm, sliding_window=window(model), **rotary(model), **common)
    assert kind == "gemma2", kind
    return transformers.Gemma2Config(
        **usual_sizes(model), **norm, head_dim=head_dim(model), sliding_window=window(model),
        query_pre_attn_scalar=model.get("query_scale") or head_dim(model),
        attn_logit_softcapping=model.get("attention_softcap") or None,
        final_logit_softcapping=model.get("logit_softcap") or None, **rotary(model), **common)


def auto_class(model):
    return transformers.AutoModelForSeq2SeqLM if model["architecture"] == "t5" else transformers.AutoModelForCausalLM


def build(model, dtype=torch.float32, **more):
    module = auto_class(model).from_config(config(model, **more))
    if model["architecture"] == "t5" and model["untied_head"]:
        # transformers 5 ties the head of every new T5; files that hold one of its own are read as they are.
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
        module.all_tied_weights_keys.pop("lm_head.weight")
    return module.to(dtype).eval()


# --- tensors ---------------------------------------------------------------------------------------------

LLAMA = {"embedding.token": "model.embed_tokens", "attention_norm": "input_layernorm", "attention.query": "self_attn.q_proj",
         "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj", "attention.output": "self_attn.o_proj",
         "mlp_norm": "post_attention_layernorm", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
         "mlp.down": "mlp.down_proj", "final_norm": "model.norm", "head": "lm_head", "layers": "model.layers"}

NAMES = {
    "opt": {**LLAMA, "embedding.token": "model.decoder.embed_tokens", "embedding.position": "model.decoder.embed_positions",
            "attention_norm": "self_attn_layer_norm", "attention.output": "self_attn.out_proj", "mlp_norm": "final_layer_norm",
            "mlp.up": "fc1", "mlp.down": "fc2", "final_norm": "model.decoder.final_layer_norm", "layers": "model.decoder.layers"},
    "gptj": {**LLAMA, "embedding.token": "transformer.wte", "attention_norm": "ln_1", "attention.query": "attn.q_proj",
             "attention.key": "attn.k_proj", "attention.value": "attn.v_proj", "attention.output": "attn.out_proj",
             "mlp.up": "mlp.fc_in", "mlp.down": "mlp.fc_out", "final_norm": "transformer.ln_f", "layers": "transformer.h"},
    "gpt_neox": {**LLAMA, "embedding.token": "gpt_neox.embed_in", "attention.output": "attention.dense",
                 "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h", "final_norm": "gpt_neox.final_layer_norm",
                 "layers": "gpt_neox.layers"},
    "phi": {**LLAMA, "attention.output": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2",
            "final_norm": "model.final_layernorm"},
    "phi3": LLAMA,
    "qwen2": LLAMA,
    "qwen3": {**LLAMA, "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"},
    "mistral": LLAMA,
    "gemma2": {**LLAMA, "attention_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
               "mlp_post_norm": "post_feedforward_layernorm"},
}

# Which products have a bias; norms have one where they are LayerNorms.
BIASES = {"opt": ("attention.", "mlp."), "gptj": ("mlp.", "head"), "gpt_neox": ("attention.", "mlp."),
          "phi": ("attention.", "mlp.", "head"), "phi3": (), "qwen2": ("attention.query", "attention.key", "attention.value"),
          "qwen3": (), "mistral": (), "gemma2": ()}
LAYER_NORM = ("opt", "gptj", "gpt_neox", "phi")


def t5_layers(model):
    """(canonical prefix, transformers' prefix, whether it is the decoder's) of each layer."""
    for layer in range(model["layers"] + model["decoder_layers"]):
        decodes = layer >= model["layers"]
        place = layer - model["layers"] if decodes else layer
        yield f"layers.{layer}.", f"{'decoder' if decodes else 'encoder'}.block.{place}.layer.", decodes


def t5_names(model):
    """{canonical name: transformers' name}. The tables of biases are the only matrices that are stored transposed."""
    names = {"embedding.token.weight": "shared.weight"}
    parts = {"query": "q", "key": "k", "value": "v", "output": "o"}
    for ours, theirs, decodes in t5_layers(model):
        last = 2 if decodes else 1
        names[f"{ours}attention_norm.weight"] = f"{theirs}0.layer_norm.weight"
        for part, short in parts.items():
            names[f"{ours}attention.{part}.weight"] = f"{theirs}0.SelfAttention.{short}.weight"
        if ".block.0." in theirs:
            names[f"{ours}attention.relative_bias.weight"] = f"{theirs}0.SelfAttention.relative_attention_bias.weight"
        if decodes:
            names[f"{ours}cross_attention_norm.weight"] = f"{theirs}1.layer_norm.weight"
            for part, short in parts.items():
                names[f"{ours}cross_attention.{part}.weight"] = f"{theirs}1.EncDecAttention.{short}.weight"
        names[f"{ours}mlp_norm.weight"] = f"{theirs}{last}.layer_norm.weight"
        feed_forward = {"up": "wi", "down": "wo"}
        if model.get("gated_mlp"):
            feed_forward = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
        for part, short in feed_forward.items():
            names[f"{ours}mlp.{part}.weight"] = f"{theirs}{last}.DenseReluDense.{short}.weight"
    names[f"layers.{model['layers'] - 1}.encoder_norm.weight"] = "encoder.final_layer_norm.weight"
    names["final_norm.weight"] = "decoder.final_layer_norm.weight"
    if model["untied_head"]:
        names["head.weight"] = "lm_head.weight"
    return names


def t5_tensors(model, shapes):
    hidden, ffn, width = model["hidden"], model["ffn_hidden"], model["heads"] * head_dim(model)
    for name in t5_names(model):
        part = name.split(".")[-2]
        shapes[name] = ((model["vocab_size"], hidden) if part in ("token", "head") else
                        (model["heads"], model["relative_buckets"]) if part == "relative_bias" else
                        (width, hidden) if part in ("query", "key", "value") else
                        (hidden, width) if part == "output" else
                        (ffn, hidden) if part in ("gate", "up") else
                        (hidden, ffn) if part == "down" else (hidden,))
    return shapes


def tensors(model):
    """{canonical name: shape} of all tensors."""
    kind, hidden, ffn = model["architecture"], model["hidden"], model["ffn_hidden"]
    width, keys = model["heads"] * head_dim(model), model["kv_heads"] * head_dim(model)
    shapes = {}

    def linear(name, rows, columns):
        shapes[name + ".weight"] = (rows, columns)
        if any(part in name for part in BIASES[kind]):
            shapes[name + ".bias"] = (rows,)

    def norm(name, size=hidden):
        shapes[name + ".weight"] = (size,)
        if kind in LAYER_NORM:
            shapes[name + ".bias"] = (size,)

    shapes["embedding.token.weight"] = (model["vocab_size"], hidden)
    if kind == "t5":
        return t5_tensors(model, shapes)
    if kind == "opt":
        shapes["embedding.position.weight"] = (model["context"] + 2, hidden)
    for layer in range(model["layers"]):
        at = f"layers.{layer}."
        norm(at + "attention_norm")
        linear(at + "attention.query", width, hidden)
        linear(at + "attention.key", keys, hidden)
        linear(at + "attention.value", keys, hidden)
        if kind == "qwen3":
            norm(at + "attention.query_norm", head_dim(model))
            norm(at + "attention.key_norm", head_dim(model))
        linear(at + "attention.output", hidden, width)
        if kind == "gemma2":
            norm(at + "attention_post_norm")
        if kind not in ("gptj", "phi"):
            norm(at + "mlp_norm")
        if kind not in LAYER_NORM:
            linear(at + "mlp.gate", ffn, hidden)
        linear(at + "mlp.up", ffn, hidden)
        linear(at + "mlp.down", hidden, ffn)
        if kind == "gemma2":
            norm(at + "mlp_post_norm")
    norm("final_norm")
    if model["untied_head"]:
        linear("head", model["vocab_size"], hidden)
    return shapes


def their_name(model, name):
    """transformers' name of a canonical tensor that has one of its own."""
    names = NAMES[model["architecture"]]
    module, kind = name.rsplit(".", 1)
    if module.startswith("layers."):
        _, layer, part = module.split(".", 2)
        return f"{names['layers']}.{layer}.{names[part]}.{kind}"
    return f"{names[module]}.{kind}"


def to_transformers(model, weights):
    """{transformers' name: tensor} from {canonical name: tensor}; gradients flow through it."""
    kind = model["architecture"]
    if kind == "t5":
        names = t5_names(model)
        named = {names[name]: value.T if "relative_bias" in name else value for name, value in weights.items()}
        copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        named.update({copy: weights["embedding.token.weight"] for copy in copies + ([] if model["untied_head"] else ["lm_head.weight"])})
        return named
    joined = {}
    named = {}
    for name, value in weights.items():
        part = name.split(".")[-2]
        at = name.split(".attention.")[0]
        if kind == "gpt_neox" and part in ("query", "key", "value"):
            joined.setdefault(their_name(model, at + ".attention_norm.weight").replace(
                "input_layernorm.weight", "attention.query_key_value." + name.split(".")[-1]), []).append(value)
        elif kind == "phi3" and part in ("query", "key", "value"):
            joined.setdefault(their_name(model, name.replace(part, "query")).replace("q_proj", "qkv_proj"), []).append(value)
        elif kind == "phi3" and part in ("gate", "up"):
            joined.setdefault(their_name(model, name.replace("up", "gate")).replace("gate_proj", "gate_up_proj"),
                              []).append(value)
        else:
            named[their_name(model, name)] = value
    for name, parts in joined.items():
        if kind == "gpt_neox":  # for each head its rows of query, key and value
            heads = [part.reshape(model["heads"], -1, *part.shape[1:]) for part in parts]
            named[name] = torch.cat(heads, 1).reshape(-1, *parts[0].shape[1:])
        else:
            named[name] = torch.cat(parts)
    if not model["untied_head"]:
        named["lm_head.weight"] = weights["embedding.token.weight"]
    return named
