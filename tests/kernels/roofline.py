"""Bytes and FLOPs of each kernel in a step of GPT-2 124M, against an H100's roofline, and the occupancy of our own kernels. Computed from
shapes and from the assembler's figures: nothing here is a measurement. Pure."""

import re
from dataclasses import dataclass

import occupancy

# NVIDIA's data sheet of the H100 SXM: dense bf16 products, fp32 outside of tensor cores, memory.
_TENSOR, _FP32, _MEMORY = 989e12, 67e12, 3.35e12

# The model, and a step of one micro-batch on one GPU in bf16.
LAYERS, C, HEADS, T, SEQUENCES = 12, 768, 12, 1024, 64
VOCABULARY, PADDED = 50257, 50272
N = SEQUENCES * T
PARAMETERS = PADDED * C + T * C + LAYERS * (12 * C * C + 13 * C) + 2 * C
B = 2
CHUNKS = 8  # of the head
STATE = N * C  # elements of an activation
NORMS = 2 * LAYERS + 1
# Counted in the sources for an element; an exponential as 8, a fused multiply-add as 2.
_NORM, _NORM_GRADIENT, _LOSS, _ADAMW = 8, 16, 36, 16


@dataclass(frozen=True)
class Work:
    name: str
    launches: int
    bytes: float
    flops: float
    tensor: bool = False  # on tensor cores

    @property
    def seconds(self):
        """The least that an H100 can take: its memory or its units, whichever is slower."""
        return max(self.bytes / _MEMORY, self.flops / (_TENSOR if self.tensor else _FP32))


def _product(m, n, k, out_bytes=B):
    return B * (m * k + n * k) + out_bytes * m * n


def _layer_products():
    """(forward, gradients of inputs, gradients of weights): bytes of a layer. GELU keeps its input, and its gradient reads it."""
    shapes = [(3 * C, C), (C, C), (4 * C, C), (C, 4 * C)]
    forward = sum(_product(N, n, k) for n, k in shapes) + B * 4 * STATE
    inputs = sum(_product(N, k, n) for n, k in shapes) + B * 4 * STATE
    weights = sum(_product(n, k, N, out_bytes=4) for n, k in shapes)
    return forward, inputs, weights


def works():
    forward, inputs, weights = (LAYERS * value for value in _layer_products())
    flops = LAYERS * 24 * N * C * C
    attention = LAYERS * 2 * N * T * C  # both products, of the keys that a query sees
    logits = N * PADDED
    # dS in 16 bits is written and read (docs/kernels.md, Attention).
    scores = LAYERS * SEQUENCES * HEADS * T * T * B * 2
    return [
        Work("products of layers, forward", 4 * LAYERS, forward, flops, True),
        Work("their gradients of inputs", 4 * LAYERS, inputs, flops, True),
        Work("their gradients of weights", 4 * LAYERS, weights, flops, True),
        Work("products of the head, forward and both gradients", 3 * CHUNKS,
             CHUNKS * (2 * _product(N // CHUNKS, PADDED, C) + _product(PADDED, C, N // CHUNKS, out_bytes=4)), 6 * logits * C, True),
        Work("attention by cuDNN", LAYERS, LAYERS * 4 * B * STATE, attention, True),
        Work("its gradients", LAYERS, LAYERS * 8 * B * STATE + scores, 2.5 * attention, True),
        Work("cross-entropy, with gradients", CHUNKS, 2 * B * logits, _LOSS * logits),
        Work("sums of losses", CHUNKS, 4 * N, N),
        Work("first norm", 1, 2 * B * STATE, _NORM * STATE),
        Work("residual and norm", NORMS - 1, (NORMS - 1) * 4 * B * STATE, (NORMS - 1) * (_NORM + 2) * STATE),
        Work("gradients of norms", NORMS, ((NORMS - 1) * 4 + 3) * B * STATE + NORMS * 16 * 512 * C, NORMS * _NORM_GRADIENT * STATE),
        Work("sums of their parts", NORMS, NORMS * 8 * 512 * C, NORMS * 2 * 512 * C),
        Work("bias gradients that no product has", 2 * LAYERS, 2 * LAYERS * B * STATE, 2 * LAYERS * STATE),
        Work("embedding and positions", 2, 4 * B * STATE, STATE),
        Work("gradient of the embedding, if half of the tokens differ", 1, B * STATE + 8 * C * N / 2, STATE),
        Work("gradient of positions", 1, B * STATE + 8 * T * C, STATE),
        Work("norm of the gradient", 1, 4 * PARAMETERS, 2 * PARAMETERS),
        Work("AdamW and the rounded copy", 4, 30 * PARAMETERS, _ADAMW * PARAMETERS),
    ]


# Our own kernels as such a step launches them: name in figures.tsv, threads of a block, dynamic shared memory.
_LAUNCHED = [
    ("norm.cu", "NormKernel<true, true, false, __nv_bfloat16>", 96, 4 * C),
    ("norm.cu", "NormBackwardInRegistersKernel<true, 2, 1, 256, __nv_bfloat16>", 96, 0),
    ("add_parts.cu", "AddPartsKernel", 256, 1024),
    ("loss.cu", "WholeLossKernel<true, __nv_bfloat16>", 256, -(-VOCABULARY // 8) * 16),
    ("loss.cu", "AddLossesKernel", 256, 0),
    ("embedding.cu", "SumByIndexKernel<true, false, float, __nv_bfloat16>", 128, 0),
    ("embedding.cu", "RowsKernel<true, AddPositions<__nv_bfloat16> >", 256, 0),
    ("optimizer.cu", "UpdateKernel<__nv_bfloat16>", 256, 0),
]


def _work_table():
    lines = ["| kernel | launches | GB | GFLOP | bound by | ms at the least |", "|---|---|---|---|---|---|"]
    for work in works():
        unit = "memory" if work.bytes / _MEMORY >= work.seconds else "tensor cores" if work.tensor else "fp32 units"
        lines.append(f"| {work.name} | {work.launches} | {work.bytes / 1e9:.2f} | {work.flops / 1e9:,.1f} | {unit} | {1e3 * work.seconds:.2f} |")
    total = sum(work.seconds for work in works())
    lines.append(f"| sum | {sum(work.launches for work in works())} | {sum(w.bytes for w in works()) / 1e9:.2f} | "
                 f"{sum(w.flops for w in works()) / 1e9:,.1f} | | {1e3 * total:.2f} |")
    return lines


def _spoken(kernel):
    """RowsKernel<true, AddPositions<__nv_bfloat16> >: RowsKernel of AddPositions."""
    operation = re.match(r"RowsKernel<true, (\w+)", kernel)
    return f"RowsKernel<{operation[1]}>" if operation else kernel.split("<")[0]


def _occupancy_table(rows):
    lines = ["| kernel (bf16, rows at multiples of 16 bytes) | threads | registers | shared bytes | blocks of an SM | share of its warps |",
             "|---|---|---|---|---|---|"]
    known = {(file, kernel): (registers, shared) for file, kernel, arch, registers, _, _, shared in rows if arch == 90}
    for file, kernel, threads, dynamic in _LAUNCHED:
        registers, declared = known[file, kernel]
        shared = declared + dynamic
        blocks = occupancy.blocks_of_multiprocessor(threads, registers, shared)
        share = occupancy.occupancy(threads, registers, shared)
        lines.append(f"| `{_spoken(kernel)}` of `{file}` | {threads} | {registers} | {shared} | {blocks} | {100 * share:.0f} % |")
    return lines


def tables(rows):
    """Markdown; `rows` of figures.tsv."""
    return "\n".join([
        f"A step of GPT-2 124M, {SEQUENCES} sequences of {T} tokens in one micro-batch, bf16, one H100 SXM, **computed, not measured**: what each",
        "kernel must move and compute, and the time that 3.35 TB/s of memory, 989 TFLOP/s of tensor cores (dense, bf16) or 67 TFLOP/s of fp32 units",
        "take for it at the least. No kernel reaches these; launches by libraries are counted as one for each call.", "",
        *_work_table(), "",
        "How many blocks of our own kernels an SM of an H100 holds, **computed** from the registers and shared memory that the assembler says for",
        "sm_90 (`tests/kernels/figures.tsv`) by the formula of NVIDIA's `cuda_occupancy.h` (`tests/kernels/occupancy.py`).", "",
        *_occupancy_table(rows), ""])
