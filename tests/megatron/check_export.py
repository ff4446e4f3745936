"""Exports a checkpoint in every way for Megatron-LM, and loads what was exported: megatron-core's own modules take the
layout `core` (strictly, as one and as two tensor ranks), transformers' conversion takes the layout `legacy`. Their logits
are those of the same checkpoint exported for transformers.

    PYTHON tests/megatron/check_export.py --tercio bin/tercio --checkpoint DIR

PYTHON is that of tests/megatron/make_fixtures.py; tests/e2e/megatron_test.py runs it where TERCIO_MEGATRON_PYTHON names it.
Ends with 1 and a message on a difference.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile

import torch
import torch.multiprocessing
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MegatronBertConfig, MegatronBertForPreTraining
from transformers.models.megatron_bert import convert_megatron_bert_checkpoint
from transformers.models.megatron_gpt2 import convert_megatron_gpt2_checkpoint

import core_model

BOUND = 1e-5


def export(options, directory, *more):
    subprocess.run([options.tercio, "checkpoint", "export", options.checkpoint, "--output", directory, *more], check=True,
                   stdout=subprocess.DEVNULL)
    return directory


def load(directory, rank):
    """Nothing of the file is executed: the namespace of the arguments is the only class that is allowed."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(os.path.join(directory, "release", f"mp_rank_{rank:02d}", "model_optim_rng.pt"),
                          weights_only=True)


def check(what, ours, theirs):
    difference = ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()
    print(f"{what}: relative difference {difference:.2g}")
    if not difference < BOUND:
        sys.exit(f"{what} differs")


class Inputs:
    def __init__(self, context, vocabulary):
        generator = random.Random(3)
        self.tokens = [generator.randrange(vocabulary) for _ in range(context)]
        self.types = [int(i > context // 2) for i in range(context)]
        self.mask = [int(i < context - 1) for i in range(context)]


def of_bert(model, inputs):
    with torch.no_grad():
        out = model(input_ids=torch.tensor([inputs.tokens]), token_type_ids=torch.tensor([inputs.types]),
                    attention_mask=torch.tensor([inputs.mask]))
    return out.prediction_logits[0], out.seq_relationship_logits[0]


def core_rank(rank, directory, tensor, port, bert, inputs, expected):
    core_model.start_rank(rank, tensor, port)
    state = load(directory, rank)
    model = core_model.build(state["args"], bert)
    model.load_state_dict(state["model"], strict=True)
    if bert:
        logits, classes = core_model.bert_logits(model, inputs.tokens, inputs.types, inputs.mask)
    else:
        logits = core_model.gpt_logits(model, inputs.tokens)
    if rank == 0:
        what = f"megatron-core, {tensor} tensor ranks"
        logits = logits[:, :expected[0].shape[1]]
        if bert:
            check(what + ", classes", classes, expected[1])
            logits = logits[:sum(inputs.mask)]
        check(what, logits, expected[0][:len(logits)])
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercio", required=True)
    parser.add_argument("--checkpoint", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        reference = export(options, path("hf"), "--format", "hf")
        legacy = load(export(options, path("legacy"), "--format", "megatron"), 0)
        bert = "lm_head" in legacy["model"]
        if bert:
            model = MegatronBertForPreTraining.from_pretrained(reference).eval()
        else:
            model = AutoModelForCausalLM.from_pretrained(reference, attn_implementation="eager").eval()
        inputs = Inputs(model.config.max_position_embeddings, model.config.vocab_size)
        if bert:
            expected = of_bert(model, inputs)
            config = MegatronBertConfig(layer_norm_eps=legacy["args"].norm_epsilon)
            state = convert_megatron_bert_checkpoint.convert_megatron_checkpoint(None, legacy, config)
            converted = MegatronBertForPreTraining(config).eval()
            converted.load_state_dict(state, strict=False)
            logits, classes = of_bert(converted, inputs)
            check("transformers' conversion", logits[:, :expected[0].shape[1]], expected[0])
            check("transformers' conversion, classes", classes, expected[1])
        else:
            with torch.no_grad():
                expected = (model(torch.tensor([inputs.tokens])).logits[0],)
        if not bert and legacy["args"].normalization == "LayerNorm":
            config = GPT2Config(activation_function="gelu_fast", layer_norm_epsilon=legacy["args"].norm_epsilon,
                                attn_implementation="eager")
            state = convert_megatron_gpt2_checkpoint.convert_megatron_checkpoint(None, legacy, config)
            converted = GPT2LMHeadModel(config).eval()
            converted.load_state_dict(state, strict=False)
            with torch.no_grad():
                logits = converted(torch.tensor([inputs.tokens])).logits[0]
            check("transformers' conversion", logits[:, :expected[0].shape[1]], expected[0])
        for tensor in (1, 2):
            directory = export(options, path(f"core-{tensor}"), "--format", "megatron", "--layout", "core", "--tensor",
                               str(tensor))
            torch.multiprocessing.spawn(core_rank, (directory, tensor, 29700 + tensor, bert, inputs, expected),
                                        nprocs=tensor)


if __name__ == "__main__":
    main()
