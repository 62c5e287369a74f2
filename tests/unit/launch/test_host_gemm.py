"""Results of the C kernel against float64, over shapes around every edge of its tiles."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import mmap
import os
import warnings
from typing import Any

import numpy as np
import pytest
from host_samples import DEVICE, Case, artifact_of, config_of
from sweeps import every

from kernels.host.family import HOST
from tilewright.launch.host import can_run, host_arch
from tilewright.schema.problem import GemmProblem

CONFIG = config_of()


def _edges(*sizes: int) -> list[int]:
    return sorted({1, 2, *(size + step for size in sizes for step in (-1, 0, 1))})


@pytest.mark.parametrize(
    ("dtype", "layout"), every(3, itertools.product(["float32", "float64"], ["nn", "nt", "tn", "tt"]))
)
def test_every_edge_of_every_tile(layout: str, dtype: str) -> None:
    sample = GemmProblem(64, 64, 64, dtype, layout)
    grid = HOST.plan(CONFIG, sample, DEVICE).grid
    mr, kc = int(CONFIG["mr"]), int(CONFIG["kc"])
    for m, n in itertools.product(_edges(mr, grid.tile_m), _edges(grid.tile_n)):
        k = 1 + (m * 7 + n) % (2 * kc + 3)  # crosses the edges of kc with the other two
        case = Case(GemmProblem(m, n, k, dtype, layout), pad=(m + n) % 3)
        case.run(CONFIG)
        case.check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_passes_over_k(dtype: str) -> None:
    for k in (1, 2, 15, 16, 17, 31, 32, 33, 97, 211):
        case = Case(GemmProblem(37, 53, k, dtype, "nt"), alpha=-0.75, pad=3)
        case.run(CONFIG)
        case.check()


@pytest.mark.parametrize(
    ("activation", "dtype"), every(2, itertools.product(["none", "relu", "gelu"], ["float32", "float64"]))
)
def test_epilogues(activation: str, dtype: str) -> None:
    for m, n, k in ((1, 1, 1), (13, 67, 16), (50, 71, 40)):
        problem = GemmProblem(m, n, k, dtype, activation=activation, has_bias=True, has_c=True)
        case = Case(problem, pad=1, alpha=0.5, beta=-1.5)
        case.run(CONFIG)
        case.check()


@pytest.mark.parametrize(("swizzle", "snake", "stream"), [(1, 0, "a"), (4, 1, "b"), (2, 0, "b"), (8, 1, "a")])
def test_threads_and_traversals_cover_the_batch(swizzle: int, snake: int, stream: str) -> None:
    config = config_of(threads=3, swizzle=swizzle, snake=snake, stream=stream, prefetch=0)
    for batch, m, n in ((1, 101, 131), (3, 61, 64), (5, 7, 200)):
        case = Case(GemmProblem(m, n, 45, "float32", "tn", batch=batch), pad=2)
        case.run(config)
        case.check()


@pytest.mark.parametrize(
    ("arch", "dtype"),
    every(2, itertools.product(["x86_64", "x86_64_v2", "x86_64_v3"], ["float32", "float64"])),
)
def test_lower_levels_of_this_cpu(arch: str, dtype: str) -> None:
    if not can_run(arch, host_arch()):
        pytest.skip(f"this CPU is {host_arch()}")
    case = Case(GemmProblem(45, 77, 35, dtype, "tt", activation="gelu", has_bias=True))
    case.run(config_of(mr=6, nv=2), dataclasses.replace(DEVICE, arch=arch))
    case.check()


def test_more_threads_than_tiles() -> None:
    case = Case(GemmProblem(5, 5, 5, "float32"))
    case.run(config_of(threads=7))
    case.check()


def test_result_may_replace_c() -> None:
    problem = GemmProblem(40, 40, 50, "float64", has_c=True)
    apart, together = Case(problem, beta=2.0), Case(problem, beta=2.0)
    together.d = together.c
    apart.run(CONFIG)
    together.run(CONFIG)
    assert np.array_equal(apart.d, together.d)


def test_beta_zero_does_not_read_c() -> None:
    case = Case(GemmProblem(20, 20, 20, "float32", has_c=True))
    case.c[:] = np.nan
    case.run(CONFIG)
    assert np.isfinite(case.d).all()


def _guarded(values: Any) -> Any:
    """A copy whose last byte is the last one before a page that may not be touched."""
    room = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + room), mmap.PAGESIZE, 0) == 0
    copy = np.frombuffer(memory, values.dtype, values.size, room - values.nbytes).reshape(values.shape)
    copy[:] = values
    return copy


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_nothing_beyond_the_operands_is_touched(layout: str) -> None:
    problem = GemmProblem(29, 37, 23, "float32", layout, has_bias=True, has_c=True)
    case = Case(problem, beta=1.0)
    for name in ("a", "b", "c", "d", "bias"):
        setattr(case, name, _guarded(getattr(case, name)))
    artifact_of(CONFIG, dataclasses.replace(problem, m=64, n=64, k=64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside idle worker threads
        child = os.fork()
    if child == 0:
        case.run(CONFIG)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a signal: it read past an operand"


@pytest.mark.parametrize(("dtype", "alpha"), [("float32", -1e38), ("float64", 1e308)])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_a_large_alpha_overflows_only_if_the_product_does(dtype: str, alpha: float, beta: float) -> None:
    """The passes over k contribute 17 alpha and -16 alpha."""
    case = Case(GemmProblem(20, 40, 32, dtype, "nn", has_bias=True, has_c=True), alpha=alpha, beta=beta)
    case.a[:] = np.repeat([1, -1], 16)
    case.b[:] = 1
    case.b[:, 0] = 2
    case.run(CONFIG)
    np.testing.assert_allclose(case.d, alpha, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "small"), [("float32", 1e-36), ("float64", 1e-304)])
def test_a_large_alpha_keeps_what_is_added_to_the_product(dtype: str, small: float) -> None:
    problem = GemmProblem(20, 40, 32, dtype, "nn", has_bias=True, has_c=True)
    case = Case(problem, alpha=1 / small, beta=2.0)
    case.a *= small
    case.run(CONFIG)
    case.check()


@pytest.mark.parametrize("k", [8, 32])
def test_a_large_alpha_leaves_a_small_beta_as_it_is(k: int) -> None:
    case = Case(GemmProblem(20, 40, k, "float32", "nn", has_c=True), alpha=1e30, beta=1e-20)
    case.a[:] = 0
    case.c[:] = 1e20
    case.run(CONFIG)
    np.testing.assert_allclose(case.d, 1.0, rtol=1e-6)


def test_small_integers_are_exact() -> None:
    case = Case(GemmProblem(70, 90, 130, "float32"))
    case.a[:] = np.round(case.a * 3)
    case.b[:] = np.round(case.b * 3)
    case.run(CONFIG)
    assert np.array_equal(case.d, case.a @ case.b.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("activation", "dtype"), every(2, itertools.product(["relu", "gelu"], ["float32", "float64"]))
)
def test_activations_at_the_ends(activation: str, dtype: str) -> None:
    problem = GemmProblem(1, 7, 1, dtype, activation=activation)
    case = Case(problem)
    case.a[:] = 1
    case.b[0, :, 0] = [-1e6, -30, -0.0, 0, 30, 1e6, np.nan]
    case.run(CONFIG)
    expected = [0, 0, 0, 0, 30, 1e6, np.nan]
    np.testing.assert_allclose(case.d[0, 0], np.array(expected, dtype), atol=1e-30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_of_large_negative_numbers_is_zero(dtype: str) -> None:
    """x / (1 + e^-2u) with a finite bound of e^-2u would be -5 for the largest of them."""
    largest = float(np.finfo(dtype).max)
    case = Case(GemmProblem(1, 8, 1, dtype, activation="gelu"))
    case.a[:] = 1
    case.b[0, :, 0] = [-10, -50, -1e15, -1e30, -largest / 4, -largest, largest, np.inf]
    case.run(CONFIG)
    np.testing.assert_allclose(case.d[0, 0], np.array([0] * 6 + [largest, np.inf], dtype), atol=1e-20)
