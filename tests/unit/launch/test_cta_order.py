"""CTA orders by GPC, on a chip with a floorplan like that of an H200."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tilewright import GemmProblem, LaunchPlan
from tilewright.artifact import CtaOrder, Grid, Serves
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import cta_order, driver
from tilewright.launch.cta_order import Busy, CtaOrders, Probe, cluster_order, sms_by_gpc

# SMs come in pairs, numbered across GPCs: pair 0 is of GPC 0, pair 1 of GPC 1, ..
GPCS = 8
PAIRS = {0: 8, 1: 8, 2: 8, 3: 9, 4: 8, 5: 8, 6: 9, 7: 8}
_TAKEN = [(gpc, turn) for turn in range(9) for gpc in range(GPCS) if turn < PAIRS[gpc]]
OF_PAIR = [gpc for gpc, _ in _TAKEN]
SM_COUNT = 2 * len(OF_PAIR)


def chip(busy: Callable[[], bool] = lambda: False) -> Callable[[int, int], Sequence[int]]:
    """Places clusters as the driver of an idle GPU does: in the order of the pairs, each within one GPC."""

    def probe(ctas: int, cluster: int) -> list[int]:
        if cluster > 16:
            raise LaunchError("too large", code=912)
        free: dict[int, list[int]] = {}
        for pair, gpc in enumerate(OF_PAIR):
            free.setdefault(gpc, []).extend((2 * pair, 2 * pair + 1))
        placed: list[int] = []
        wanted = list(range(GPCS))
        while len(placed) < ctas:
            room = [gpc for gpc in wanted if len(free[gpc]) >= cluster]
            if not room:  # these run when others have ended
                placed += placed[: ctas - len(placed)]
                break
            for gpc in room[: (ctas - len(placed)) // cluster]:
                placed += [free[gpc].pop(0) for _ in range(cluster)]
        if busy():
            random.shuffle(placed)
        return placed[:ctas]

    return probe


def by_gpc(probe: Probe | None = None) -> list[int]:
    found = sms_by_gpc(probe or chip(), SM_COUNT)
    assert found is not None
    return found


def gpc_of(sm: int) -> int:
    return OF_PAIR[sm // 2]


def test_units_of_a_gpc_lie_together_the_larger_gpcs_first() -> None:
    sms = by_gpc()
    assert sorted(sms) == list(range(SM_COUNT))
    met = [gpc_of(sm) for sm in sms]
    assert list(dict.fromkeys(met)) == [3, 6, 0, 1, 2, 4, 5, 7]
    assert len([1 for one, two in itertools.pairwise(met) if one != two]) == GPCS - 1


def test_two_probes_that_differ_give_none() -> None:
    calls = iter([True, *[False] * 100])
    assert sms_by_gpc(chip(busy=lambda: next(calls)), SM_COUNT) is None


def test_sms_that_are_never_seen_give_none() -> None:
    assert sms_by_gpc(lambda ctas, _: [0, 1] * (ctas // 2), SM_COUNT) is None


@pytest.mark.parametrize("error", [Busy("full"), LaunchError("lost", code=700, sticky=True)], ids=str)
def test_a_gpu_without_room_or_context_is_asked_no_more(error: LaunchError) -> None:
    asked = 0

    def probe(*_: int) -> list[int]:
        nonlocal asked
        asked += 1
        raise error

    with pytest.raises(LaunchError, match=str(error)):
        sms_by_gpc(probe, SM_COUNT)
    assert asked == 1


def test_sizes_that_the_gpu_refuses_are_passed_over() -> None:
    def probe(ctas: int, cluster: int) -> Sequence[int]:
        if cluster > 8:
            raise LaunchError("too large", code=912)
        return chip()(ctas, cluster)

    assert by_gpc(probe) == by_gpc()


@pytest.mark.parametrize("ctas", [2, 64, SM_COUNT - 2, SM_COUNT])
def test_blocks_of_a_gpc_take_neighbouring_work(ctas: int) -> None:
    probe = chip()
    places = cluster_order(probe, by_gpc(probe), ctas, 2)
    assert places is not None
    assert sorted(places) == list(range(ctas // 2))
    heads = probe(ctas, 2)[::2]
    met = [gpc_of(heads[places.index(place)]) for place in range(len(places))]
    assert len([1 for one, two in itertools.pairwise(met) if one != two]) == len(set(met)) - 1


def test_a_busy_gpu_gives_no_order() -> None:
    sms = by_gpc()
    assert cluster_order(chip(busy=lambda: True), sms, 64, 1) is None


def test_a_gpu_that_is_busy_once_is_asked_again() -> None:
    calls = iter([True, *[False] * 10])
    sms = by_gpc()
    expected = cluster_order(chip(), sms, 64, 2)
    assert cluster_order(chip(busy=lambda: next(calls)), sms, 64, 2) == expected


def test_two_blocks_on_one_sm_give_no_order() -> None:
    sms = by_gpc()
    assert cluster_order(lambda ctas, _: [0] * ctas, sms, 8, 2) is None


def test_a_sm_never_seen_gives_no_order() -> None:
    assert cluster_order(chip(), by_gpc()[:10], SM_COUNT, 2) is None


PLAN = LaunchPlan(
    format="cubin",
    target="sm_90a",
    entry="gemm",
    block=(384, 1, 1),
    grid=Grid(128, 128, max_blocks=SM_COUNT, cluster_m=2),
    args=(CtaOrder("probe"),),
    serves=Serves.of(GemmProblem(8, 8, 8)),
    cluster=(2, 1, 1),
)
LARGE, SMALL = GemmProblem(8192, 8192, 64), GemmProblem(256, 512, 64)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the driver would say; ``asked`` counts how often it was."""
    state: dict[str, Any] = {"device": 0, "probe": chip(), "asked": 0, "orders": CtaOrders()}

    @contextlib.contextmanager
    def probing(*_: Any) -> Iterator[Any]:
        state["asked"] += 1
        yield state["probe"]

    monkeypatch.setattr(driver, "ensure_context", lambda: state["device"])
    monkeypatch.setattr(driver, "device_attribute", lambda *_: SM_COUNT)
    monkeypatch.setattr(cta_order, "_probing", probing)
    return state


def order(gpus: dict[str, Any], problem: GemmProblem, plan: LaunchPlan = PLAN) -> list[int]:
    return list(gpus["orders"].order(ctypes.c_void_p, "probe", plan, problem))


def test_the_gpu_is_asked_once_for_each_shape_of_launch_and_device(gpus: dict[str, Any]) -> None:
    large = order(gpus, LARGE)
    assert sorted(large[: SM_COUNT // 2]) == list(range(SM_COUNT // 2)) != large[: SM_COUNT // 2]
    assert order(gpus, LARGE) == large
    assert gpus["asked"] == 1
    assert sorted(order(gpus, SMALL)[:4]) == list(range(4))
    assert gpus["asked"] == 2
    gpus["device"] = 1
    assert order(gpus, LARGE) == large
    assert gpus["asked"] == 3


def test_a_busy_gpu_runs_as_numbered_and_is_asked_again_after_a_pause(
    gpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus["probe"] = chip(busy=lambda: True)
    assert order(gpus, SMALL) == list(range(256))
    gpus["probe"] = chip()
    assert order(gpus, SMALL) != list(range(256))
    gpus["probe"] = chip(busy=lambda: True)
    for _ in range(20):
        assert order(gpus, LARGE) == list(range(256))
    assert gpus["asked"] == 2 + 5
    assert gpus["orders"].refused == 1 + 20
    # Other shapes of launch are asked for all the same.
    gpus["probe"] = chip()
    assert order(gpus, GemmProblem(512, 512, 64)) != list(range(256))
    later = time.monotonic() + 100.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert order(gpus, LARGE) != list(range(256))


def test_a_child_asks_for_itself(gpus: dict[str, Any]) -> None:
    order(gpus, LARGE)
    gpus["orders"].after_fork()
    order(gpus, LARGE)
    assert gpus["asked"] == 2


@pytest.mark.parametrize("sticky", [False, True])
def test_a_driver_that_refuses(gpus: dict[str, Any], sticky: bool) -> None:
    def probe(*_: int) -> list[int]:
        raise LaunchError("no", code=1, sticky=sticky)

    gpus["probe"] = probe
    if not sticky:
        assert order(gpus, LARGE) == list(range(256))
    else:
        with pytest.raises(LaunchError, match="no"):
            order(gpus, LARGE)


def test_more_clusters_than_an_order_holds_are_refused(gpus: dict[str, Any]) -> None:
    plan = dataclasses.replace(PLAN, grid=dataclasses.replace(PLAN.grid, max_blocks=514))
    with pytest.raises(PreconditionFailed, match="257 clusters; a CTA order holds at most 256"):
        order(gpus, LARGE, plan)
    assert gpus["asked"] == 0


class Library:
    """Stands in for libcuda: runs the kernel on the chip above, and notes what is left open."""

    def __init__(self, ready_after: int = 2) -> None:
        self.ready_after = ready_after
        self.polls = 0
        self.open: list[str] = []
        self.modes: list[int] = []
        self.words: list[int] = []

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.modes.append(mode._obj.value)
        mode._obj.value = 0
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        self.open.append("stream")
        stream._obj.value = 77
        assert flags == 1
        return 0

    def cuStreamDestroy_v2(self, _stream: Any) -> int:
        self.open.remove("stream")
        return 0

    def cuMemAllocAsync(self, address: Any, size: Any, _stream: Any) -> int:
        self.open.append("memory")
        address._obj.value = size.value
        return 0

    def cuMemFreeAsync(self, *_: Any) -> int:
        self.open.remove("memory")
        return 0

    def cuFuncSetAttribute(self, *_: Any) -> int:
        return 0

    def cuLaunchKernelEx(self, config: Any, *_: Any) -> int:
        asked = config._obj
        clusters = [attribute.value[0] for attribute in asked.attributes[: asked.attribute_count]]
        self.words = list(chip()(asked.grid[0], *(clusters or [1])))
        self.polls = 0
        return 0

    def cuStreamQuery(self, _stream: Any) -> int:
        self.polls += 1
        return 0 if self.polls >= self.ready_after else 600

    def cuMemcpyDtoHAsync_v2(self, to: Any, _from: Any, size: Any, stream: Any) -> int:
        assert stream.value == 77
        self.polls = self.ready_after
        to[: size.value // 4] = self.words[: size.value // 4]
        return 0


@pytest.mark.parametrize("ready_after", [1, 3, 10**9])
def test_asking_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, ready_after: int) -> None:
    """A launch that finds no room is given up; stream and memory go when the GPU is through with them."""
    library = Library(ready_after)
    monkeypatch.setattr(driver, "libcuda", lambda: library)
    monkeypatch.setattr(driver, "ensure_context", lambda: 0)
    monkeypatch.setattr(driver, "device_attribute", lambda *_: SM_COUNT)
    monkeypatch.setattr(cta_order, "_PATIENCE_S", 0.2)
    found = list(CtaOrders().order(lambda _: ctypes.c_void_p(5), "probe", PLAN, LARGE))
    assert (found == list(range(256))) == (ready_after > 3)
    assert library.open == []
    assert library.modes == [2, 0]  # relaxed, and as it was
