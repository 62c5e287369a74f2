"""Kernels that start while the one before them ends, and what they fetch meanwhile."""

from __future__ import annotations

import dataclasses

import pytest
from device_samples import HOPPER

from kernels.gemv.family import GEMV
from kernels.gemv_tma.family import GEMV_TMA
from kernels.mma_sync.family import MMA_SYNC
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem

AMPERE = dataclasses.replace(HOPPER, arch="sm_80", name="A100", sm_count=108, smem_per_block=163 << 10)
DECODE, SQUARE = GemmProblem(16, 6144, 4096), GemmProblem(2048, 2048, 2048)


@pytest.mark.parametrize("family", [MMA_SYNC, GEMV], ids=lambda one: one.name)
def test_only_hopper_starts_kernels_early(family) -> None:
    for device in (HOPPER, AMPERE):
        plans = [family.plan(config, DECODE, device) for config in family.heuristic_configs(DECODE, device)]
        assert {plan.programmatic for plan in plans} == {device is HOPPER}


@pytest.mark.parametrize(
    ("family", "problem"),
    [(WGMMA, SQUARE), (WGMMA_WS, SQUARE), (GEMV_TMA, DECODE)],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_kernels_of_hopper_start_early(family, problem) -> None:
    plans = [family.plan(config, problem, HOPPER) for config in family.heuristic_configs(problem, HOPPER)]
    assert {plan.programmatic for plan in plans} == {True}


def test_weights_are_fetched_early_where_they_are_read_once() -> None:
    assert {dict(one.knobs)["prefetch"] for one in WGMMA_WS.heuristic_configs(DECODE, HOPPER)} == {4}
    assert {dict(one.knobs)["prefetch"] for one in WGMMA_WS.heuristic_configs(SQUARE, HOPPER)} == {0}
    assert 2 in {dict(one.knobs)["prefetch"] for one in GEMV.heuristic_configs(DECODE, HOPPER)}
    assert {dict(one.knobs)["prefetch"] for one in GEMV_TMA.heuristic_configs(DECODE, HOPPER)} == {2, 4}
    small = GemmProblem(16, 512, 1024)
    for family in (WGMMA_WS, GEMV_TMA, GEMV):
        assert {dict(one.knobs)["prefetch"] for one in family.heuristic_configs(small, HOPPER)} == {0}


@pytest.mark.parametrize("knobs", [{"prefetch": 2}, {"release": "loaded"}], ids=str)
def test_gemv_kernels_do_not_overlap_before_hopper(knobs) -> None:
    config = next(one for one in GEMV.heuristic_configs(DECODE, AMPERE))
    early = Config.of("gemv", {**dict(config.knobs), **knobs})
    assert GEMV.why_invalid(early, DECODE, AMPERE) == "kernels overlap on sm_90 alone"
    assert GEMV.why_invalid(early, DECODE, HOPPER) is None


def test_rows_of_odd_bytes_are_not_fetched_early() -> None:
    odd = GemmProblem(16, 6144, 4099)
    config = next(one for one in GEMV.heuristic_configs(odd, HOPPER))
    early = Config.of("gemv", {**dict(config.knobs), "prefetch": 2})
    assert "rows of whole 16 bytes" in (GEMV.why_invalid(early, odd, HOPPER) or "")
    assert {dict(one.knobs)["prefetch"] for one in WGMMA_WS.heuristic_configs(odd, HOPPER)} == {0}


LATER = {"prefetch": 0, "cta_order": "free", "reverse_k": 0, "sector_aligned_store": 0}


def test_a_config_from_before_a_knob_is_completed() -> None:
    now = WGMMA_WS.heuristic_configs(DECODE, HOPPER)[0]
    before = Config.of("wgmma_ws", {k: v for k, v in now.knobs if k not in LATER})
    assert "exactly the knobs" in (WGMMA_WS.why_invalid(before, DECODE, HOPPER) or "")
    completed = WGMMA_WS.completed(before)
    assert dict(completed.knobs) == dict(now.knobs) | LATER
    assert WGMMA_WS.why_invalid(completed, DECODE, HOPPER) is None
    assert WGMMA_WS.completed(now) == now


HINTS = [
    ({"hint_a": "normal", "hint_b": "evict_first", "hint_d": "normal"}, "stream_b"),
    ({"hint_a": "evict_first", "hint_b": "evict_first"}, "stream_ab"),
    ({"hint_a": "normal", "hint_b": "normal", "hint_d": "evict_first"}, "stream_d"),
    ({"hint_a": "evict_last", "hint_b": "normal", "hint_d": "evict_first"}, "keep_a"),
    ({"hint_a": "normal", "hint_b": "evict_last"}, "keep_b"),
]


@pytest.mark.parametrize(("hints", "expected"), HINTS, ids=str)
def test_a_hint_for_each_operand_becomes_one_for_all(hints: dict[str, str], expected: str) -> None:
    """Knobs that are no longer, whatever they were, go; no config of today lets both operands stay."""
    now = WGMMA_WS.heuristic_configs(DECODE, HOPPER)[0]
    gone = {"l2_promotion": 256, "load_interval": 1024, "even_waves": 1}
    of_today = {k: v for k, v in now.knobs if k != "l2_hints"}
    assert WGMMA_WS.completed(Config.of("wgmma_ws", of_today | gone | hints))["l2_hints"] == expected
    both = Config.of("wgmma_ws", of_today | {"hint_a": "evict_last", "hint_b": "evict_last"})
    assert WGMMA_WS.completed(both) == both
