"""Kernels that access memory before griddepcontrol.wait are refused, wherever the compiler put the access."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_samples import HOPPER
from mutants import plant
from sweeps import every

from kernels.base.family import Family
from kernels.base.spec import CompileError
from kernels.compiler.build import build
from kernels.compiler.nvrtc import compile_text
from kernels.compiler.overlap import why_unordered
from kernels.registry import FAMILIES
from tilewright import Config, GemmProblem

TARGETS = ["sm_90a", "sm_100", "sm_120"]
TO_SHARED = '[%0], [%1], 16, [%2];" :: "r"(to), "l"(a), "r"(arrives) : "memory");'
TENSOR = '[%0], [%1, {%3}], [%2];" :: "r"(to), "l"(a), "r"(arrives), "r"(0) : "memory");'
EARLY = {
    "LD": 'asm volatile("ld.f32 %0, [%1];" : "=f"(x) : "l"(a) : "memory"); d[2] = x;',
    "LDG": "d[2] = x = *a;",
    "ST": 'asm volatile("st.f32 [%0], %1;" :: "l"(d), "f"(x) : "memory");',
    "STG": "*d = x;",
    "ATOM": 'asm volatile("atom.exch.b32 %0, [%1], %0;" : "+f"(x) : "l"(d) : "memory");',
    "ATOMG": "x = atomicAdd(d, 1.0f);",
    "ATOMG (exchange)": "x = atomicExch(d, 1.0f);",
    "ATOMG (compare)": "x = atomicCAS(reinterpret_cast<unsigned*>(d), 1u, 2u);",
    "REDG": "atomicAdd(d, 1.0f);",
    "REDG (integers)": "atomicAdd(reinterpret_cast<unsigned*>(d) + threadIdx.x, 1u);",
    "LDGSTS": 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(a) : "memory");',
    "UBLKCP": 'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ' + TO_SHARED,
    "UBLKRED": 'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 '
    '[%0], [%1], 16;" :: "l"(d), "r"(to) : "memory");',
    "UTMALDG": 'asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes '
    + TENSOR,
    "UTMASTG": 'asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group '
    '[%0, {%2}], [%1];" :: "l"(a), "r"(to), "r"(0) : "memory");',
    "UTMAREDG": 'asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group '
    '[%0, {%2}], [%1];" :: "l"(a), "r"(to), "r"(0) : "memory");',
}
PREFETCH = 'asm volatile("cp.async.bulk.prefetch.L2.global [%0], 16;" :: "l"(a) : "memory");'
BEFORE = r"one accesses memory before griddepcontrol\.wait"
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
KERNEL = """
extern "C" __global__ void one(const float* a, float* d, float x) {
    __shared__ __align__(128) float s[32];
    __shared__ unsigned long long bar;
    const unsigned to = __cvta_generic_to_shared(s), arrives = __cvta_generic_to_shared(&bar);
    BODY
    d[1] = x;
}
"""


def compiled(body: str, target: str = "sm_90a") -> bytes:
    return compile_text(KERNEL.replace("BODY", body), target, entry="one").binary


@pytest.mark.parametrize(("access", "target"), every(4, itertools.product(EARLY, TARGETS)))
def test_an_access_before_the_wait_is_found(access: str, target: str) -> None:
    instruction = access.partition(" ")[0]
    with pytest.raises(CompileError, match=rf"one accesses memory before .*wait \({instruction}\)"):
        compiled(EARLY[access] + WAIT, target)
    compiled(WAIT + EARLY[access], target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_prefetch_may_come_first(target: str) -> None:
    compiled(PREFETCH + WAIT, target)


# Both branches wait. The code of one stands behind that of the other: an access of it stands behind a wait.
BRANCHES = """
    if (threadIdx.x < 32) {
        FIRST
        for (int i = 0; i < x; ++i) d[i] = a[i];
    } else {
        __syncthreads();
        SECOND
        for (int i = 7; i < x; ++i) d[i] += a[i];
    }
"""


@pytest.mark.parametrize("target", TARGETS)
def test_every_path_must_wait(target: str) -> None:
    both = BRANCHES.replace("FIRST", WAIT).replace("SECOND", WAIT)
    compiled(both, target)
    for missing in ("FIRST", "SECOND"):
        one = BRANCHES.replace(missing, "").replace("FIRST", WAIT).replace("SECOND", WAIT)
        with pytest.raises(CompileError, match=BEFORE):
            compiled(one, target)
    late = BRANCHES.replace("FIRST", f"d[5] = a[5]; {WAIT}").replace("SECOND", WAIT)
    with pytest.raises(CompileError, match=BEFORE):
        compiled(late, target)


def test_some_threads_may_wait_for_all() -> None:
    """Others read what those loaded, after a barrier; a wait in a branch alone orders nothing."""
    loads = f"if (threadIdx.x == 0) {{ {WAIT} s[0] = *a; }} __syncthreads(); x = s[0];"
    with pytest.raises(CompileError, match=r"before griddepcontrol.wait \(STG\)"):
        compiled(loads)
    compiled(loads + WAIT)


@pytest.mark.parametrize("target", TARGETS)
def test_loops_and_met_threads_are_followed(target: str) -> None:
    loop = "\n#pragma unroll 1\nfor (int i = 0; i < x; ++i) { if (s[i] > x) s[i] = x * i; __syncwarp(); }\n"
    compiled(loop + WAIT + loop, target)
    with pytest.raises(CompileError, match=BEFORE):
        compiled(loop.replace("s[i] = x", "s[i] = *a + x") + WAIT, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_load_that_trusts_in_constant_memory_is_refused(target: str) -> None:
    """Wherever it stands: the kernel before may write the data while this one has started."""
    load = 'asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(a));'
    with pytest.raises(CompileError, match=r"one (loads by ld.global.nc|accesses memory before)"):
        compiled(WAIT + load, target)
    cached = "".join(
        f'asm volatile("ld.global.{kind}.f32 %0, [%1];" : "=f"(x) : "l"(a)); d[3] = x;'
        for kind in ("ca", "cg", "cs", "cv", "relaxed.gpu", "acquire.gpu", "L1::no_allocate")
    )
    compiled(WAIT + cached, target)


def test_a_kernel_without_a_wait_may_not_overlap() -> None:
    alone = compiled(EARLY["LDG"])
    assert why_unordered(alone) is None
    assert why_unordered(alone, ["other"]) is None
    assert why_unordered(alone, ["one"]) == "one accesses memory before griddepcontrol.wait (LDG)"


NN, SQUARE = GemmProblem(16, 6144, 4096, layout="nn"), GemmProblem(1024, 1024, 1024)
BIAS, ODD = GemmProblem(1024, 1024, 1024, has_bias=True), GemmProblem(256, 512, 333)
NT, DEEP = GemmProblem(16, 6144, 4096), GemmProblem(512, 512, 16384)
AWAIT, RELEASE = "await_previous_kernel();", "if constexpr (!cfg::gpc_order) release_next_kernel();\n"
# What was wrong once, or may become so: family, problem, source, a change and what must be said.
PLANTED = {
    "gemv reads weights by ld.global.nc": (
        "gemv", NN, "common/ptx/load_store.cuh",
        "@p ld.global.L1::no_allocate", "@p ld.global.nc.L1::no_allocate", "^gemv/kernel.cu",
    ),
    "gemv does not wait": ("gemv", NN, "gemv/kernel.cu", AWAIT, "", r"gemv accesses .*\(LDG\)"),
    "gemv_tma does not wait": ("gemv_tma", NT, "gemv_tma/kernel.cu", AWAIT, "", "gemv_tma accesses"),
    "mma_sync does not wait": (
        "mma_sync", SQUARE, "mma_sync/kernel.cu",
        f"acc.clear();\n    {AWAIT}", "acc.clear();", "mma_sync accesses",
    ),
    "the copy of mma_sync does not wait": (
        "mma_sync", ODD, "mma_sync/kernel.cu",
        f"{AWAIT}\n    repack_row<true>", "repack_row<true>", "repack_rows_of_k accesses",
    ),
    "mma_sync declares that nothing writes the bias": (
        "mma_sync", BIAS, "common/config.cuh",
        "const Out *bias", "const Out *__restrict__ bias", "mma_sync loads by ld.global.nc",
    ),
    "wgmma loads before it waits": (
        "wgmma", SQUARE, "wgmma/kernel.cu",
        f"    {AWAIT}\n    if (warp == 0",
        f"    if (warp == 0 && elect_lane()) loop.load_tile(0, 0);\n    {AWAIT}\n    if (warp == 0",
        r"wgmma_gemm .*\(UTMALDG\)",
    ),
    "the consumers of wgmma_ws do not wait": (
        "wgmma_ws", BIAS, "wgmma_ws/kernel.cu",
        f"await_barriers();\n        {AWAIT}", "await_barriers();", "wgmma_ws_gemm accesses",
    ),
    "the producer of wgmma_ws does not wait": (
        "wgmma_ws", SQUARE, "wgmma_ws/kernel.cu",
        f"{AWAIT}\n            produce(", "produce(", r"wgmma_ws_gemm .*\(UTMALDG\)",
    ),
    "the repack of wgmma_ws does not wait": (
        "wgmma_ws", ODD, "wgmma_ws/kernel.cu", f"{RELEASE}    {AWAIT}", RELEASE, "repack_rows accesses",
    ),
    "the reduction of wgmma_ws does not wait": (
        "wgmma_ws", DEEP, "wgmma_ws/split_k.cuh", AWAIT, "", "reduce_partials accesses",
    ),
}  # fmt: skip

# Knobs of configs that launch the kernel with the fault.
WITH_KERNEL: dict[str, dict[str, Any]] = {
    "the copy of mma_sync does not wait": {"repack": 1},
    "the reduction of wgmma_ws does not wait": {"reduction": "kernel"},
}


@pytest.mark.parametrize("fault", every(9, PLANTED))
def test_no_build_passes_a_kernel_with_a_planted_fault(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, problem, source, before, after, message = PLANTED[fault]
    family = FAMILIES[name]
    wanted = WITH_KERNEL.get(fault, {}).items()
    config = next(
        one for one in family.heuristic_configs(problem, HOPPER) if wanted <= dict(one.knobs).items()
    )
    assert family.why_invalid(config, problem, HOPPER) is None
    build(family, config, problem, HOPPER)
    plant(monkeypatch, tmp_path, source, before, after)
    with pytest.raises(CompileError, match=message):
        build(family, config, problem, HOPPER)


OVERLAPPING = ("gemv", "gemv_tma", "mma_sync", "wgmma", "wgmma_ws")
SAMPLED = [
    dataclasses.replace(problem, layout=layout, **more)
    for problem in (NT, GemmProblem(6144, 16, 4096), SQUARE, DEEP, ODD)
    for layout in ("nt", "nn", "tn", "tt")
    for more in ({}, {"has_c": True, "has_bias": True})
]


def configs_near(
    family: Family[Any], pick: Config, problem: GemmProblem, draw: random.Random
) -> Iterator[Config]:
    """Valid configs that differ from a pick in up to three knobs."""
    while True:
        changed = {knob.name: draw.choice(knob.values) for knob in draw.sample(family.knobs, 3)}
        config = Config.of(family.name, {**dict(pick.knobs), **changed})
        if family.why_invalid(config, problem, HOPPER) is None:
            yield config


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_sampled_configs_of_every_family_that_overlaps(name: str, seed: int) -> None:
    """A build raises where a kernel accesses memory too early, so that each other test that builds one of
    these families asks the same."""
    family, draw = FAMILIES[name], random.Random(f"{name} {seed}")
    supported = [problem for problem in SAMPLED if family.why_unsupported(problem, HOPPER) is None]
    first: list[Config] = []
    while not first:  # wgmma_ws has none for a D of few columns
        problem = draw.choice(supported)
        first = family.heuristic_configs(problem, HOPPER)[:8]
    pick = draw.choice(first)
    for config in (pick, next(configs_near(family, pick, problem, draw))):
        assert build(family, config, problem, HOPPER).plan.programmatic, config


def test_no_other_family_overlaps() -> None:
    for name, family in FAMILIES.items():
        if name not in OVERLAPPING and family.why_unsupported(SQUARE, HOPPER) is None:
            assert not family.plan(family.heuristic_configs(SQUARE, HOPPER)[0], SQUARE, HOPPER).programmatic
