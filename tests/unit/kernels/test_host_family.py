"""The space of family ``host``, and that its rules are those of the C source."""

from __future__ import annotations

import dataclasses
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from host_samples import DEVICE, LARGE, config_of
from sweeps import every

from kernels.base.spec import CompileError
from kernels.compiler import cc
from kernels.compiler.build import build
from kernels.compiler.cc import compile_c
from kernels.host.family import HOST
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.search.points import valid_points

ONE = dataclasses.replace(DEVICE, sm_count=1)
V4 = dataclasses.replace(DEVICE, arch="x86_64_v4")
CUBE = GemmProblem(1024, 1024, 1024, "float32")


def _compiles(config: Config, problem: GemmProblem) -> bool:
    try:
        compile_c(HOST.build_spec(config, problem, ONE))
    except CompileError:
        return False
    return True


def _random_configs(count: int) -> list[Config]:
    """Legal values of every knob, which may break rules together."""
    chance = random.Random(7)
    configs = []
    for _ in range(count):
        knobs = {knob.name: chance.choice(knob.legal) for knob in HOST.knobs}
        configs.append(Config.of("host", knobs | {"threads": 1}))
    return configs


ILLEGAL = [
    {"mr": 0}, {"mr": 17}, {"nv": 0}, {"nv": 5}, {"mc": 0}, {"mc": 24}, {"mc": 1040}, {"nc": 8}, {"nc": 4112},
    {"kc": 0}, {"kc": 1040}, {"kc": 100}, {"unroll": 0}, {"unroll": 3}, {"unroll": 16}, {"prefetch": 2},
    {"prefetch": 32}, {"snake": 2}, {"swizzle": 0}, {"swizzle": 3}, {"swizzle": 16}, {"mr": 1, "nv": 1},
    {"mr": 16, "nv": 4}, {"mc": 1024, "kc": 1024}, {"nc": 4096, "kc": 1024},
]  # fmt: skip


@pytest.mark.parametrize("drawn", [6, pytest.param(18, marks=pytest.mark.long)])
@pytest.mark.parametrize(("dtype", "illegal"), [("float32", ILLEGAL), ("float64", ILLEGAL[-4:])])
def test_valid_in_python_if_and_only_if_it_compiles(
    dtype: str, illegal: list[dict[str, int]], drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NOTE: the source refuses a config before anything is optimised, which takes most of the time.
    monkeypatch.setattr(cc, "_FLAGS", ("-O0", *cc._FLAGS[1:]))
    problem = dataclasses.replace(LARGE, dtype=dtype, out_dtype=None, acc_dtype=None)
    legal = [
        *_random_configs(drawn),
        config_of(),
        config_of(stream="a", unroll=8),
        config_of(prefetch=0, snake=0),
    ]
    configs = legal + [config_of(**changes) for changes in illegal]
    valid = [HOST.why_invalid(config, problem, ONE) is None for config in configs]
    assert sum(valid) >= 3
    assert valid[: len(legal)].count(False) >= 3
    assert not any(valid[len(legal) :])
    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda config: _compiles(config, problem), configs))
    assert [str(c) for c, ok, did in zip(configs, valid, compiled, strict=True) if ok != did] == []


def test_the_searched_space_is_of_a_size_to_search() -> None:
    points = list(map(tuple, valid_points(HOST, CUBE, V4).tolist()))
    assert 1000 <= len(points) <= 10000
    assert len(set(points)) == len(points)
    for point in points[:: len(points) // 50]:
        assert HOST.why_invalid(HOST.at(point), CUBE, V4) is None


EXTENTS = [(1, 1, 1), (3, 5000, 17), (64, 4096, 4096), (1024, 1024, 1024)]
ARCHS = ["x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4", "aarch64"]


@pytest.mark.parametrize(
    ("extents", "sm_count", "arch"), every(7, itertools.product(EXTENTS, [1, 2, 6, 64], ARCHS))
)
def test_heuristic_configs_of_every_device(arch: str, sm_count: int, extents: tuple[int, int, int]) -> None:
    device = dataclasses.replace(DEVICE, arch=arch, sm_count=sm_count, l2_bytes=32 << 20)
    for dtype in ("float32", "float64"):
        problem = GemmProblem(*extents, dtype)
        configs = HOST.heuristic_configs(problem, device)
        searched = {HOST.at(point) for point in valid_points(HOST, problem, device)}
        assert configs
        assert len(set(configs)) == len(configs)
        assert set(configs) <= searched


def test_a_large_problem_is_picked_for_all_threads() -> None:
    assert {
        config["threads"] for config in HOST.heuristic_configs(CUBE, dataclasses.replace(V4, sm_count=16))
    } == {16}


def test_budgets_pinned_by_hand() -> None:
    # registers of v4: 32. 14 x 2 + 2 + 1 = 31 fit, 15 x 2 + 2 + 1 = 33 do not; 5 x 3 = 15 < 32 / 2.
    for mr, nv, fits in ((14, 2, True), (15, 2, False), (5, 3, False)):
        config = config_of(mr=mr, nv=nv)
        assert (HOST.why_invalid(config, LARGE, dataclasses.replace(V4, sm_count=1)) is None) is fits
    # mc 16 -> 2 panels of 12 rows = 24; nc 32 -> one panel of 2 x 16 floats = 32; kc 16:
    # A 24 x 16 x 4 = 1536 bytes, B 32 x 16 x 4 = 2048; three threads and 64 bytes of alignment.
    plan = HOST.plan(config_of(mr=12, nv=2, threads=3), CUBE, V4)
    assert (plan.grid.tile_m, plan.grid.tile_n) == (24, 32)
    assert plan.workspace_bytes(CUBE) == 64 + 3 * (1536 + 2048)
    assert plan.block == (3, 1, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": 3}, "halved"),
        ({"threads": 64, "mc": 512, "nc": 1024}, "idle"),
        ({"threads": 1}, "operations each"),
        ({"swizzle": 8, "mc": 256, "threads": 64, "nc": 32}, "swizzle"),
        ({"snake": 1, "mc": 256, "nc": 64, "threads": 64, "mr": 8}, "two cache tiles"),
    ],
)
def test_rules_that_follow_from_device_and_problem(changes: dict[str, int], words: str) -> None:
    config = config_of(mr=8, nv=2, kc=256) if "mr" not in changes else config_of(nv=2, kc=256)
    config = Config.of("host", {**dict(config.knobs), "swizzle": 1, **changes})
    reason = HOST.why_invalid(config, CUBE, dataclasses.replace(V4, sm_count=64))
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("sm_count", [7, 16, 96])
@pytest.mark.parametrize("extents", [(64, 64, 300_000), (64, 300, 10_000_000)])
def test_fewer_threads_compute_what_has_too_few_tiles_for_all(
    extents: tuple[int, int, int], sm_count: int
) -> None:
    device = dataclasses.replace(V4, sm_count=sm_count)
    assert len(valid_points(HOST, GemmProblem(*extents, dtype="float32"), device))


def test_tiles_far_beyond_the_problem_are_refused() -> None:
    config = config_of(mr=8, mc=512, swizzle=1)
    reason = HOST.why_invalid(config, GemmProblem(100, 4096, 64, "float32"), V4)
    assert reason == "mc=512 is more than twice the problem's 100: a smaller one does the same"


@pytest.mark.parametrize(
    ("problem", "device", "words"),
    [
        (GemmProblem(8, 8, 8, "float16"), DEVICE, "not float16"),
        (CUBE, dataclasses.replace(DEVICE, kind="cuda", arch="sm_90"), "not on a cuda device"),
        (CUBE, dataclasses.replace(DEVICE, arch="riscv64"), "this one is riscv64"),
    ],
)
def test_what_it_does_not_support(problem: GemmProblem, device: DeviceSpec, words: str) -> None:
    reason = HOST.why_unsupported(problem, device)
    assert reason is not None
    assert words in reason
    assert list(valid_points(HOST, problem, device)) == []
    assert HOST.heuristic_configs(problem, device) == []


def test_builds_are_reproducible() -> None:
    first, second = (build(HOST, config_of(), CUBE, DEVICE) for _ in range(2))
    assert first.digest == second.digest
    assert first.plan.target == DEVICE.arch
    assert build(HOST, config_of(unroll=8), CUBE, DEVICE).digest != first.digest
