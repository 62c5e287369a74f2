"""Base configs and chains of launches for the tests of kernels on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gate
import numpy

from kernels.gemv.config import Knobs as GemvKnobs
from kernels.wgmma_ws.config import Knobs as WgmmaWsKnobs
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem
from tilewright.launch import Kernel
from tuner.devices.base import Device, Tensors
from tuner.measure.operands import bind

GEMV_BASE: dict[str, Any] = dataclasses.asdict(GemvKnobs(steps=1))
WGMMA_WS_BASE: dict[str, Any] = dataclasses.asdict(WgmmaWsKnobs(tile_n=128))
EPILOGUES: list[dict[str, Any]] = [
    {"out_dtype": "float32"},
    {"has_bias": True, "activation": "relu"},
    {"has_c": True, "activation": "gelu", "has_bias": True},
    {"batch": 3},
    {"batch": 2, "has_c": True},
]
SIZE, STEPS = 1024, 24
SQUARE = GemmProblem(SIZE, SIZE, SIZE, layout="nn")


def rotation(device: Device) -> Any:
    """The permutation matrix that moves each column one to the right, the last to the first."""
    return device.xp.asarray(numpy.roll(numpy.eye(SIZE, dtype="float16"), 1, axis=1)[None])


def readings(
    device: Device, reader: Kernel, problem: GemmProblem, few: Any
) -> Iterator[tuple[Any, list[Any]]]:
    """Yields start weights and the products of a kernel after each of ``STEPS`` launches that rotate them.

    Each launch rotates by one column; the kernel multiplies by ``few``, which are B if the weights are A.
    """
    mover = gate.built(device, WGMMA_WS, Config.of("wgmma_ws", WGMMA_WS_BASE), SQUARE)
    weights = [device.xp.zeros((1, SIZE, SIZE), dtype="float16") for _ in range(3)]
    seen = [device.xp.zeros((1, problem.m, problem.n), dtype="float16") for _ in range(STEPS)]
    rotated, few = rotation(device), device.xp.asarray(few)
    newest = [weights[(step + 1) % 3] for step in range(STEPS)]
    moved = [Tensors(weights[step % 3], rotated, newest[step]) for step in range(STEPS)]
    pairs = [(new, few) if problem.m > problem.n else (few, new) for new in newest]
    read = [Tensors(*pair, d) for pair, d in zip(pairs, seen, strict=True)]
    moves, reads = bind(device, mover, SQUARE, moved), bind(device, reader, problem, read)
    replay = device.timer([one for both in zip(moves.launches, reads.launches, strict=True) for one in both])
    for seed in range(10):
        start = numpy.random.default_rng(seed).standard_normal((1, SIZE, SIZE)).astype("float16")
        weights[0][:] = device.xp.asarray(start)
        device.xp.cuda.get_current_stream().synchronize()
        replay()
        yield start, [part.get() for part in seen]
    mover.close()
