"""Writes the fixtures of checkpoint/torch/torch_file_test.cc: small files of torch.save. Run by hand, once:

    python3 -m venv ~/torch-venv && ~/torch-venv/bin/pip install torch numpy
    ~/torch-venv/bin/python tests/torch/make_fixtures.py

fixtures/archive.pt, stream.pt, protocol4.pt   the same tensors: as torch saves them, in the form before archives, and by
                                              another protocol of pickles
fixtures/weights.json                         name -> dtype, shape, elements as the bytes that they have, contiguous
fixtures/training.pt, training_stream.pt       what Megatron-LM keeps beside its weights: arguments, enums, random states
fixtures/whole_model.pt                        a pickled module, which is refused
"""

import argparse
import collections
import enum
import json
import os
import random
import sys
import types

import numpy
import torch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def weights():
    torch.manual_seed(7)
    tensors = collections.OrderedDict((name, (torch.randn(2, 3) * 9).to(dtype)) for dtype, name in DTYPES.items())
    base = torch.randn(4, 6)
    tensors["transposed"] = base.t()
    tensors["rows"] = base[1:3]
    tensors["columns"] = base[:, 2:4]
    tensors["repeated"] = base[0].expand(3, 6)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 5)
    tensors["deep"] = torch.randn(2, 1, 3).to(torch.float16)
    tensors["parameter"] = torch.nn.Parameter(torch.randn(3))
    tensors["tied"] = tensors["F32"]
    return tensors


def expected(tensor):
    dense = tensor.detach().contiguous()
    size = dense.element_size()
    content = bytes(dense.view(-1).view(torch.uint8).tolist()) if dense.numel() else b""
    return {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "contiguous": tensor.is_contiguous(),
            "elements": [content[at:at + size].hex() for at in range(0, len(content), size)]}


def module_of_enums():
    """A class whose module is called as in Megatron-LM."""
    module = types.ModuleType("megatron.model.enums")
    module.AttnMaskType = enum.Enum("AttnMaskType", {"padding": 1, "causal": 2}, module="megatron.model.enums")
    for name in ("megatron", "megatron.model"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module
    return module


def training():
    enums = module_of_enums()
    random.seed(1)
    numpy.random.seed(1)
    arguments = argparse.Namespace(num_layers=2, hidden_size=3, lr=0.0015, params_dtype=torch.float16, save=None,
                                   mask_type=enums.AttnMaskType.causal, data_path=["1.0", "corpus"], fp16=True)
    return {"args": arguments, "checkpoint_version": 3.0, "iteration": 12, "floating_point_operations": 3 * 10**21,
            "model": {"language_model": collections.OrderedDict(weight=torch.randn(2, 3))},
            "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
                           "torch_rng_state": torch.get_rng_state(), "rng_tracker_states": {}}]}


def main():
    os.makedirs(FOLDER, exist_ok=True)
    path = lambda name: os.path.join(FOLDER, name)
    tensors = weights()
    torch.save(tensors, path("archive.pt"))
    torch.save(tensors, path("stream.pt"), _use_new_zipfile_serialization=False)
    torch.save(tensors, path("protocol4.pt"), pickle_protocol=4)
    with open(path("weights.json"), "w", encoding="utf-8") as file:
        lines = [f"{json.dumps(name)}: {json.dumps(expected(tensor))}" for name, tensor in tensors.items()]
        file.write("{" + ",\n ".join(lines) + "}\n")
    torch.save(training(), path("training.pt"))
    torch.save(training(), path("training_stream.pt"), _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 1), path("whole_model.pt"))
    for name in sorted(os.listdir(FOLDER)):
        print(name, os.path.getsize(path(name)))


if __name__ == "__main__":
    main()
