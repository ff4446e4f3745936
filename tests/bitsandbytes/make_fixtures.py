"""Writes the fixtures of quantized_base_test.cc: what bitsandbytes makes of a matrix. Run by hand, once:

    python3 -m venv ~/bnb-venv && ~/bnb-venv/bin/pip install torch numpy bitsandbytes
    ~/bnb-venv/bin/python tests/bitsandbytes/make_fixtures.py

fixtures/{nf4,int8}.bin, little-endian, one after the other: rows and columns (int64); the matrix, row by row (float); its codes (bytes, two in
one for NF4); the largest magnitude of each block of 64 (float); codes of these scales (bytes); their mean and the largest magnitude of each
group of 256 (float); the values that the codes and the quantised scales stand for, as floats, and rounded to bfloat16 (16 bits).

NF4 is quantize_4bit(compress_statistics=True) and int8 quantize_blockwise(blocksize=64), whose scales are quantised here as those of NF4.
Codes of 8 bits, also those of scales, are made by bitsandbytes' kernel in PyTorch, whose rule its CUDA kernel has too, but for exact ties.
Its library for CPUs finds them in a table of 65,536 entries instead: about one code of 800 is that of the neighbour.
"""

import os

import numpy
import torch

import bitsandbytes.functional as bnb

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
ROWS, COLUMNS, BLOCK, GROUP = 12, 1408, 64, 256


def eight_bits(values, block):
    """Codes and scales of the kernel that every device without one of its own takes."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    return torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(keys, values, bnb.create_dynamic_map(), block)


def midpoints(table):
    return (table[:-1] + table[1:]) / 2


def matrix(table):
    """Random rows, and blocks in which a mistake would show: zeros, one number, bounds between codes and the floats beside them, small and
    large numbers, a negative largest one."""
    torch.manual_seed(20261128)
    values = torch.randn(ROWS, COLUMNS) * 0.02
    blocks = values.view(-1, BLOCK)
    blocks[0] = 0
    blocks[1] = 0
    blocks[1, 7] = -0.25
    bounds = midpoints(table).numpy()
    around = numpy.concatenate([bounds, numpy.nextafter(bounds, numpy.float32(2)), numpy.nextafter(bounds, numpy.float32(-2))])
    for i in range(0, len(around), BLOCK - 1):
        part = torch.from_numpy(around[i:i + BLOCK - 1])
        at = 2 + i // (BLOCK - 1)
        blocks[at] = 0
        blocks[at, :len(part)] = part
        blocks[at, BLOCK - 1] = 1 if at % 2 else -1
    blocks[40] *= 1e-30
    blocks[41] *= 1e6
    blocks[42, 3] = -3
    return values


def write(name, values, codes, scales):
    mean = torch.tensor(float(numpy.float32(scales.double().sum().item() / scales.numel())), dtype=torch.float32)
    relative = scales - mean
    scale_codes, largest = eight_bits(relative, GROUP)
    table = bnb.get_4bit_type("nf4", "cpu") if name == "nf4" else bnb.create_dynamic_map()
    decoded = bnb.create_dynamic_map()[scale_codes.long()] * largest.repeat_interleave(GROUP)[:scales.numel()] + mean
    if name == "nf4":
        dequantized = torch.ops.bitsandbytes.dequantize_4bit(codes, decoded, BLOCK, "nf4", list(values.shape), torch.float32)
    else:
        dequantized = torch.ops.bitsandbytes.dequantize_blockwise(codes, decoded, table, BLOCK, torch.float32)
    half = dequantized.to(torch.bfloat16).view(torch.int16)
    with open(os.path.join(FOLDER, name + ".bin"), "wb") as out:
        out.write(numpy.array(values.shape, dtype="<i8").tobytes())
        for part in (values, codes, scales, scale_codes, mean, largest, dequantized, half):
            out.write(part.contiguous().numpy().tobytes())
    return mean


def main():
    os.makedirs(FOLDER, exist_ok=True)
    values = matrix(bnb.get_4bit_type("nf4", "cpu"))
    codes, state = bnb.quantize_4bit(values, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
    scales = values.view(-1, BLOCK).abs().max(dim=1)[0]
    mean = write("nf4", values, codes, scales)
    # What bitsandbytes itself takes from the scales, which it adds in fp32.
    assert abs(state.offset - mean) <= 1e-7 * mean, (state.offset, mean)
    values = matrix(bnb.create_dynamic_map())
    write("int8", values, *eight_bits(values, BLOCK))


if __name__ == "__main__":
    main()
