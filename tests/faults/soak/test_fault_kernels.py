"""A short form of the campaign of broken kernels: each class once, on the host; those of the GPU compile."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import fault_kernels
import pytest
from fault_kernels import GPU_FAULTS, NVRTC_CRASH, RIGHT, Campaign, Fault, gpu_artifact, too_few

from tuner.workers.bench import Bench


@pytest.mark.long
def test_each_class_costs_its_own_trial() -> None:
    with contextlib.closing(Campaign(["host"], 1)) as campaign:
        campaign.run(len(campaign.faults), seconds=120.0)
        assert {name: (found["trials"], found["wrong"]) for name, found in campaign.classes.items()} == {
            fault.name: (1, []) for fault in campaign.faults
        }


@pytest.mark.long
def test_workers_meet_to_look_at_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_kernels, "FREE_S", 0.5)
    with contextlib.closing(Campaign(["host"], 2)) as campaign:
        campaign._used_bytes = lambda: 1 << 30 if campaign.benches[0].restarts > 1 else 0
        campaign._empty = 0
        campaign.run(12, seconds=120.0)
        apart, together = campaign.classes["exit"], campaign.classes["illegal address"]
        assert sum(found["trials"] for found in campaign.classes.values()) == 12
        assert (apart["free_s"], len(together["free_s"])) == ([], 1)
        assert together["wrong"] == ["1024 MiB of memory are in use 0.5 s after the kills"]


@pytest.mark.long
def test_a_right_kernel_that_another_worker_ends_is_run_again() -> None:
    """Once its result says that it was not its own fault."""
    with contextlib.closing(Campaign(["host"], 1)) as campaign:
        right, calls = campaign._right, itertools.count()
        leaves = next(fault for fault in campaign.faults if fault.name == "exit")

        def second_struck(bench: Bench) -> Any:
            return campaign._trial(leaves, bench) if next(calls) == 1 else right(bench)

        campaign._right = second_struck  # type: ignore[method-assign]
        campaign.run(2, seconds=120.0)
        found = campaign.classes.values()
        assert [sum(one[name] for one in found) for name in ("trials", "struck")] == [2, 1]
        assert not any(one["wrong"] for one in found)


@pytest.mark.parametrize("fault", [RIGHT, *GPU_FAULTS], ids=lambda fault: fault.name)
def test_the_kernels_of_a_gpu_compile(fault: Fault) -> None:
    assert gpu_artifact("sm_90", fault).plan.target == "sm_90"


@pytest.mark.long
def test_a_measurement_after_each_broken_kernel_is_compared_with_one_before() -> None:
    with contextlib.closing(Campaign(["host"], 1)) as campaign:
        campaign.measure_again(3)
        assert campaign.inside["trials"] == 3
        assert 0 <= campaign.inside["after a broken kernel"] <= 3


@pytest.mark.parametrize(
    ("with_nothing", "after_fault", "wrong"),
    [
        (60, 60, False),
        (54, 50, False),
        (54, 30, True),  # of 120 0.7 lie inside: chance makes a difference of 5.02 = sqrt(120 * 0.7 * 0.3)
        (54, 38, True),  # 0.767: of 4.63
        (54, 42, False),  # 0.8: of 4.38
        (0, 0, False),
    ],
)
def test_chance_leaves_some_measurements_outside(with_nothing: int, after_fault: int, wrong: bool) -> None:
    assert too_few(with_nothing, after_fault, 60) is wrong


def test_a_crash_of_nvrtc_costs_one_config(tmp_path: Path) -> None:
    with contextlib.closing(Campaign(["host"], 1)) as campaign:
        campaign.crash_compilers(tmp_path, 2)
        found = campaign.classes[NVRTC_CRASH]
        assert (found["trials"], found["wrong"]) == (2, [])
        assert all("SIGSEGV" in said for said in found["said"])
