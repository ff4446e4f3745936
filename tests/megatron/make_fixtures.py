"""Writes the fixtures of checkpoint/megatron/fixtures_test.cc and tests/e2e/megatron_test.py: tiny checkpoints as
Megatron-LM of several ages saves them, and the logits that others compute of them. Run by hand, once; names make only
those:

    python3 -m venv ~/megatron-venv && ~/megatron-venv/bin/pip install torch numpy transformers==4.46.3
    ~/megatron-venv/bin/pip install --no-deps megatron-core==0.12.3
    ~/megatron-venv/bin/python tests/megatron/make_fixtures.py [NAME...]

fixtures/<name>/        a checkpoint: latest_checkpointed_iteration.txt, iter_0000100/mp_rank_..., or release/...
fixtures/gpt.json       {"tokens": [ids], "logits": [[float] for each token]} of all gpt_*, in double precision, by
                        transformers after its own conversion (convert_megatron_gpt2_checkpoint.py)
fixtures/bert.json      the same of all bert_*: {"tokens", "types", "length", "logits", "classes"}
fixtures/core_*.json    logits of megatron-core itself, in single precision

gpt_v0 ... bert_v3      the layout of megatron/model, saved as checkpoint version 0, 1, 2 or 3 has it; all gpt_* have equal
                        weights, and all bert_*
core_gpt, core_bert     modules of megatron-core, saved as Megatron-LM saves them
core_llama              the same with rotary positions, SwiGLU, RMSNorm and grouped queries, by two tensor ranks
"""

import argparse
import json
import os
import random
import shutil
import sys
import types

import numpy
import torch
import torch.multiprocessing
from transformers import GPT2Config, GPT2LMHeadModel, MegatronBertConfig, MegatronBertForPreTraining
from transformers.models.megatron_bert import convert_megatron_bert_checkpoint
from transformers.models.megatron_gpt2 import convert_megatron_gpt2_checkpoint

import core_model

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
TOKENS = [7, 0, 18, 12, 12, 3, 16, 5]
LAYERS, HIDDEN, HEADS, FFN, CONTEXT, VOCABULARY = 2, 16, 4, 20, 8, 19
DIVISIBLE = 4
EPS = 1e-5

# Name -> version, tensor degree, pipeline degree, and whether it is saved as a release.
LEGACY = {
    "gpt_v0": (0, 2, 1, True), "gpt_v1": (1, 1, 1, False), "gpt_v2": (2, 1, 1, False), "gpt_v3": (3, 2, 2, False),
    "bert_v0": (0, 1, 1, True), "bert_v1": (1, 2, 1, False), "bert_v2": (2, 1, 1, False), "bert_v3": (3, 2, 2, False),
}
CORE = ["core_gpt", "core_bert", "core_llama"]


def padded(tensor):
    multiple = DIVISIBLE * tensor
    return (VOCABULARY + multiple - 1) // multiple * multiple


def random_model(bert):
    """Whole tensors: rows of query, key and value lie as in version 2, [heads, 3, channels of a head]."""
    torch.manual_seed(5 if bert else 4)
    matrix = lambda rows, columns: torch.randn(rows, columns) * 0.25
    vector = lambda size, middle=0.0: middle + torch.randn(size) * 0.3
    model = {"word_embeddings": matrix(VOCABULARY, HIDDEN), "position_embeddings": matrix(CONTEXT, HIDDEN),
             "final.weight": vector(HIDDEN, 1.0), "final.bias": vector(HIDDEN)}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        model.update({
            at + "input_layernorm.weight": vector(HIDDEN, 1.0), at + "input_layernorm.bias": vector(HIDDEN),
            at + "attention.query_key_value.weight": matrix(3 * HIDDEN, HIDDEN),
            at + "attention.query_key_value.bias": vector(3 * HIDDEN),
            at + "attention.dense.weight": matrix(HIDDEN, HIDDEN), at + "attention.dense.bias": vector(HIDDEN),
            at + "post_attention_layernorm.weight": vector(HIDDEN, 1.0),
            at + "post_attention_layernorm.bias": vector(HIDDEN),
            at + "mlp.dense_h_to_4h.weight": matrix(FFN, HIDDEN), at + "mlp.dense_h_to_4h.bias": vector(FFN),
            at + "mlp.dense_4h_to_h.weight": matrix(HIDDEN, FFN), at + "mlp.dense_4h_to_h.bias": vector(HIDDEN)})
    if bert:
        model.update({
            "tokentype_embeddings": matrix(2, HIDDEN), "pooler.weight": matrix(HIDDEN, HIDDEN),
            "pooler.bias": vector(HIDDEN), "lm_head.dense.weight": matrix(HIDDEN, HIDDEN),
            "lm_head.dense.bias": vector(HIDDEN), "lm_head.layernorm.weight": vector(HIDDEN, 1.0),
            "lm_head.layernorm.bias": vector(HIDDEN), "lm_head.bias": vector(VOCABULARY),
            "binary_head.weight": matrix(2, HIDDEN), "binary_head.bias": vector(2)})
    return model


def part_of_rank(name, whole, version, tensor, rank):
    """What a tensor rank holds of a whole tensor."""
    rows = lambda value: torch.chunk(value, tensor, dim=0)[rank].clone()
    if name in ("word_embeddings", "lm_head.bias"):
        padding = whole.new_zeros(padded(tensor) - VOCABULARY, *whole.shape[1:])
        return rows(torch.cat((whole, padding)))
    if "query_key_value" in name:
        mine = rows(whole)
        heads = mine.view(HEADS // tensor, 3, HIDDEN // HEADS, *whole.shape[1:])
        # The inverse of what Megatron-LM does where it loads an older version.
        order = {0: (1, 0, 2), 1: (0, 2, 1), 2: (0, 1, 2), 3: (0, 1, 2)}[version] + tuple(range(3, heads.dim()))
        return heads.permute(*order).contiguous().view(mine.shape)
    if "dense_h_to_4h" in name:
        return rows(whole)
    if name.endswith("attention.dense.weight") or name.endswith("dense_4h_to_h.weight"):
        return torch.chunk(whole, tensor, dim=1)[rank].clone()
    return whole.clone()


def state_of_rank(model, version, degrees, rank, stage):
    tensor, pipeline = degrees
    part = lambda name: part_of_rank(name, model[name], version, tensor, rank)
    bert = "pooler.weight" in model
    language, state = {}, {}
    state["language_model"] = language
    if stage == 0:
        language["embedding"] = {
            key: {"weight": part(key)} for key in ("word_embeddings", "position_embeddings", "tokentype_embeddings")
            if key in model}
    layers, count = {}, LAYERS // pipeline
    for layer in range(count):
        for name in model:
            whole = f"layers.{stage * count + layer}."
            if name.startswith(whole):
                # The module was renamed in 2021.
                local = name[len(whole):] if version < 2 else name[len(whole):].replace("attention.", "self_attention.") \
                    if name[len(whole):].startswith("attention.") else name[len(whole):]
                layers[f"layers.{layer}.{local}"] = part(name)
    language["transformer" if version < 2 else "encoder"] = layers
    if stage < pipeline - 1:
        return state
    layers["final_layernorm.weight"], layers["final_layernorm.bias"] = part("final.weight"), part("final.bias")
    if bert:
        language["pooler"] = {"dense.weight": part("pooler.weight"), "dense.bias": part("pooler.bias")}
        head = {"dense.weight", "dense.bias", "layernorm.weight", "layernorm.bias", "bias"}
        state["lm_head"] = {key: part("lm_head." + key) for key in sorted(head)}
        state["binary_head"] = {key: part("binary_head." + key) for key in ("weight", "bias")}
    if pipeline > 1:
        state["word_embeddings_for_head"] = {"weight": part("word_embeddings")}
    return state


def arguments(version, tensor, pipeline, bert):
    from megatron.core.enums import ModelType
    args = argparse.Namespace(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=FFN, seq_length=CONTEXT,
        max_position_embeddings=CONTEXT, layernorm_epsilon=EPS, make_vocab_size_divisible_by=DIVISIBLE,
        padded_vocab_size=padded(tensor), tokenizer_type="BertWordPieceLowerCase" if bert else "GPT2BPETokenizer",
        vocab_file="/data/vocab.txt", vocab_size=VOCABULARY, hidden_dropout=0.1, attention_dropout=0.1, lr=1.5e-4,
        openai_gelu=False, bias_gelu_fusion=not bert, onnx_safe=None, bert_binary_head=True,
        apply_residual_connection_post_layernorm=False, params_dtype=torch.float32, data_path=["/data/text_document"],
        world_size=tensor * pipeline, rank=0, consumed_train_samples=6400, adam_beta2=0.999)
    if version < 2:
        args.model_parallel_size = tensor
        return args
    args.tensor_model_parallel_size, args.pipeline_model_parallel_size = tensor, pipeline
    args.virtual_pipeline_model_parallel_size = None
    if version == 3:
        args.model_type = ModelType.encoder_or_decoder
        args.group_query_attention, args.num_query_groups, args.swiglu = False, 1, False
        args.normalization, args.position_embedding_type = "LayerNorm", "learned_absolute"
        args.add_bias_linear, args.untie_embeddings_and_output_weights = True, False
        args.rotary_percent, args.apply_layernorm_1p, args.num_experts = 1.0, False, None
    return args


def loss_scaler():
    """The object that optimizers of 2019 kept, of a module that was imported from their folder."""
    module = types.ModuleType("fp16.loss_scaler")
    module.DynamicLossScaler = type("DynamicLossScaler", (), {"__module__": "fp16.loss_scaler"})
    sys.modules.update({"fp16": types.ModuleType("fp16"), "fp16.loss_scaler": module})
    scaler = module.DynamicLossScaler()
    scaler.cur_scale, scaler.cur_iter = 2.0**32, 100
    return scaler


def random_state():
    """States of random number generators, of which the fixtures need the form only."""
    return [{"random_rng_state": (3, tuple(random.Random(1).getstate()[1][:8]), None),
             "np_rng_state": ("MT19937", numpy.arange(8, dtype=numpy.uint32), 624, 0, 0.0),
             "torch_rng_state": torch.arange(16, dtype=torch.uint8), "cuda_rng_state": torch.zeros(16, dtype=torch.uint8),
             "rng_tracker_states": {"model-parallel-rng": torch.zeros(16, dtype=torch.uint8)}}]


def save(state, folder, release, rank, stage=None, old_format=False):
    name = f"mp_rank_{rank:02d}" if stage is None else f"mp_rank_{rank:02d}_{stage:03d}"
    path = os.path.join(folder, "release" if release else "iter_0000100", name)
    os.makedirs(path, exist_ok=True)
    torch.save(state, os.path.join(path, "model_optim_rng.pt"), _use_new_zipfile_serialization=not old_format)
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w", encoding="utf-8") as file:
        file.write("release" if release else "100")


def make_legacy(name):
    version, tensor, pipeline, release = LEGACY[name]
    folder = os.path.join(FOLDER, name)
    shutil.rmtree(folder, ignore_errors=True)
    bert = name.startswith("bert")
    model = random_model(bert)
    for stage in range(pipeline):
        for rank in range(tensor):
            state = {"args": arguments(version, tensor, pipeline, bert)}
            if version > 0:
                state["checkpoint_version"] = float(version)
            state["iteration"] = 100
            state["model"] = state_of_rank(model, version, (tensor, pipeline), rank, stage)
            if version == 3:
                moments = {0: {"step": 100, "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}}
                state["optimizer"] = {"optimizer": {"state": moments, "param_groups": [{"lr": 1.5e-4, "params": [0]}]},
                                      "fp32_from_fp16_params": [[torch.nn.Parameter(torch.zeros(4))]]}
                state["opt_param_scheduler"] = {"max_lr": 1.5e-4, "num_steps": 6400}
                state["rng_state"] = random_state()
            if version == 0:
                state["optimizer"] = {"loss_scaler": loss_scaler(), "optimizer_state_dict": {"state": {}, "param_groups": []}}
            # torch 1.6 changed its format, between the versions 0 and 1.
            save(state, folder, release, rank, stage if pipeline > 1 else None, old_format=version == 0)


def rounded(values):
    return [float(f"{value:.8g}") for value in values]


def write_json(name, fixture):
    with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(fixture, file)
        file.write("\n")


def convert(converter, name, config):
    release = LEGACY[name][3]
    state = torch.load(os.path.join(FOLDER, name, "release" if release else "iter_0000100", "mp_rank_00",
                                    "model_optim_rng.pt"), map_location="cpu", weights_only=False)
    return converter.convert_megatron_checkpoint(None, state, config)


def transformers_of_gpt(name):
    # What the script's main function chooses for bias_gelu_fusion.
    config = GPT2Config(activation_function="gelu_fast", layer_norm_epsilon=EPS, attn_implementation="eager")
    state = convert(convert_megatron_gpt2_checkpoint, name, config)
    model = GPT2LMHeadModel(config)
    missing, _ = model.load_state_dict(state, strict=False)
    assert not missing, missing
    with torch.no_grad():
        logits = model.eval().to(torch.float64)(torch.tensor([TOKENS])).logits[0, :, :VOCABULARY]
    return {"tokens": TOKENS, "logits": [rounded(row) for row in logits.tolist()]}


def bert_inputs():
    length = len(TOKENS) - 2
    return length, [int(i > 3) for i in range(len(TOKENS))], [int(i < length) for i in range(len(TOKENS))]


def transformers_of_bert(name):
    # The script does not read the epsilon, which Megatron-LM has in its arguments.
    config = MegatronBertConfig(layer_norm_eps=EPS)
    state = convert(convert_megatron_bert_checkpoint, name, config)
    model = MegatronBertForPreTraining(config)
    missing, _ = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"cls.predictions.decoder.bias", "bert.embeddings.position_ids"}, missing
    length, types, mask = bert_inputs()
    with torch.no_grad():
        out = model.eval().to(torch.float64)(input_ids=torch.tensor([TOKENS]), token_type_ids=torch.tensor([types]),
                                             attention_mask=torch.tensor([mask]))
    return {"tokens": TOKENS, "types": types, "length": length,
            "logits": [rounded(row) for row in out.prediction_logits[0, :length, :VOCABULARY].tolist()],
            "classes": rounded(out.seq_relationship_logits[0].tolist())}


# ---- megatron-core ----


def core_arguments(name, tensor):
    llama = name == "core_llama"
    return argparse.Namespace(
        num_layers=LAYERS, encoder_num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS,
        ffn_hidden_size=FFN, kv_channels=HIDDEN // HEADS, group_query_attention=llama, num_query_groups=2 if llama else 1,
        seq_length=CONTEXT, max_position_embeddings=CONTEXT, norm_epsilon=EPS, make_vocab_size_divisible_by=DIVISIBLE,
        padded_vocab_size=padded(tensor), tokenizer_type="NullTokenizer", vocab_size=VOCABULARY - 1,
        position_embedding_type="rope" if llama else "learned_absolute", rotary_percent=1.0, rotary_base=5000,
        rotary_interleaved=False, use_rope_scaling=False, normalization="RMSNorm" if llama else "LayerNorm",
        swiglu=llama, add_bias_linear=not llama, add_qkv_bias=not llama, bias_gelu_fusion=name == "core_gpt",
        untie_embeddings_and_output_weights=llama, bert_binary_head=True, qk_layernorm=False, squared_relu=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=1, expert_model_parallel_size=1,
        num_experts=None, params_dtype=torch.float32, transformer_impl="local", ckpt_format="torch")


def core_rank(rank, name, tensor, port):
    core_model.start_rank(rank, tensor, port)
    args = core_arguments(name, tensor)
    torch.manual_seed(sum(map(ord, name)))
    model = core_model.build(args, name == "core_bert")
    for key, parameter in model.named_parameters():
        # The same numbers on all ranks where they hold the same parameter, others where each has its part.
        cut = getattr(parameter, "tensor_model_parallel", False)
        generator = torch.Generator().manual_seed(sum(map(ord, key)) + (1000 * rank if cut else 0))
        spread = 0.3 if parameter.dim() == 1 else 0.25
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * spread)
    if name == "core_bert":
        # A bias that is padded, but not with numbers.
        model.output_layer.bias.data[VOCABULARY:] = 0
    if name == "core_bert":
        length, types, mask = bert_inputs()
        logits, classes = core_model.bert_logits(model, TOKENS, types, mask)
        fixture = {"tokens": TOKENS, "types": types, "length": length,
                   "logits": [rounded(row) for row in logits[:length, :VOCABULARY].tolist()],
                   "classes": rounded(classes.tolist())}
    else:
        logits = core_model.gpt_logits(model, TOKENS)[:, :VOCABULARY]
        fixture = {"tokens": TOKENS, "logits": [rounded(row) for row in logits.tolist()]}
    save({"args": args, "checkpoint_version": 3.0, "iteration": 100, "model": model.state_dict_for_save_checkpoint()},
         os.path.join(FOLDER, name), False, rank)
    if rank == 0:
        write_json(name, fixture)
    torch.distributed.destroy_process_group()


def make_core(name):
    shutil.rmtree(os.path.join(FOLDER, name), ignore_errors=True)
    tensor = 2 if name == "core_llama" else 1
    torch.multiprocessing.spawn(core_rank, (name, tensor, 29600 + len(name)), nprocs=tensor)


def main():
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    wanted = sys.argv[1:] or [*LEGACY, *CORE]
    for name in wanted:
        (make_legacy if name in LEGACY else make_core)(name)
    for kind, model in (("gpt", transformers_of_gpt), ("bert", transformers_of_bert)):
        # transformers converts single files only.
        whole = [name for name in wanted if name.startswith(kind) and LEGACY[name][1:3] == (1, 1)]
        for name in whole:
            fixture = model(name)
            if name == whole[0]:
                write_json(kind, fixture)
                first = fixture
            assert fixture == first, f"{name} differs from {whole[0]}"
    size = sum(os.path.getsize(os.path.join(folder, file)) for folder, _, files in os.walk(FOLDER) for file in files)
    print(f"{len(wanted)} checkpoints, {size} bytes in all")


if __name__ == "__main__":
    main()
