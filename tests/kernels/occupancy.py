"""How many blocks of a kernel a multiprocessor runs at a time: the formula of NVIDIA's cuda_occupancy.h (in every toolkit), for GPUs without
partitioned caches. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    warps: int
    blocks: int
    registers: int
    shared_bytes: int  # of all its blocks, with what the system keeps of each


# Compute capability 9.0: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
H100 = Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 << 10)

_WARP = 32
_PARTITIONS = 4
_REGISTER_UNIT = 256  # registers are given to a warp in such pieces
_SHARED_UNIT = 128
_SHARED_OF_SYSTEM = 1024  # of each block


def _round_up(value, unit):
    return -(-value // unit) * unit


def blocks_of_multiprocessor(threads, registers, shared_bytes, sm=H100):
    """threads: of a block; registers: of a thread; shared_bytes: of a block, declared and dynamic."""
    warps = -(-threads // _WARP)
    of_warp = _round_up(registers * _WARP, _REGISTER_UNIT)
    # Each partition has its own registers, so that a warp may not fit although there are enough in all.
    by_registers = sm.registers // _PARTITIONS // of_warp * _PARTITIONS // warps if of_warp else sm.blocks
    by_shared = sm.shared_bytes // _round_up(shared_bytes + _SHARED_OF_SYSTEM, _SHARED_UNIT)
    return min(sm.blocks, sm.warps // warps, by_registers, by_shared)


def occupancy(threads, registers, shared_bytes, sm=H100):
    """The share of the warps that a multiprocessor can hold."""
    return blocks_of_multiprocessor(threads, registers, shared_bytes, sm) * -(-threads // _WARP) / sm.warps
