"""Who else uses a GPU, by NVML: told to a job, and counted against a race, without a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from device_samples import HOPPER
from fake_nvml import UUID, FakeNvml
from store_samples import HOST

from tilewright.schema.codec import encode
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.measure import interference
from tuner.measure.race import RaceRules, RaceSamples
from tuner.workers import bench as benches
from tuner.workers.bench import Bench
from tuner.workers.frames import Frame

OWN, OTHER, THIRD = 100, 4711, 4712
GIB = 2**30
SAMPLES = RaceSamples(("k",), ((1.0,),), "", {}, None, None, "test")


class FakeProcess:
    """A device's process that races at once."""

    pid: int | None = OWN

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec

    def greeting(self) -> dict[str, Any]:
        return {"spec": self._spec.to_dict(), "driver": "test", "identity": UUID}

    def call(self, *_: Any, **__: Any) -> Frame:
        return Frame({"kind": "ok", "state": "done", "samples": encode(SAMPLES)})


def bench_of(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, spec: DeviceSpec = HOPPER) -> Bench:
    nvml.install(monkeypatch)
    monkeypatch.setattr(benches, "WorkerProcess", lambda *_: FakeProcess(spec))
    return Bench("cuda:0")


def race(bench: Bench) -> tuple[str, ...]:
    return bench.race([], GemmProblem(64, 64, 64), RaceRules(1, 0), 1.0).interference


@pytest.mark.parametrize(
    ("nvml", "neighbours", "interference"),
    [
        (FakeNvml(memory={OWN: GIB}, used=[90]), (), ()),  # what this process does is no interference
        (
            FakeNvml(memory={OWN: GIB, OTHER: 3 * GIB}),
            ("process 4711 holds 3.0 GiB of the GPU's memory",),
            (),
        ),
        (
            FakeNvml(memory={OWN: GIB, OTHER: None}, busy={OTHER: 40, OWN: 99}),
            ("process 4711 holds memory of the GPU",),
            ("other processes used 40% of the GPU",),
        ),
        (
            FakeNvml(memory={OWN: GIB}, drawing={OTHER: GIB}, busy={OTHER: 30, THIRD: 90}),  # THIRD has gone
            ("process 4711 holds 1.0 GiB of the GPU's memory",),
            ("other processes used 30% of the GPU",),
        ),
        (FakeNvml(memory={OWN: GIB, OTHER: GIB}, busy={OTHER: 5}), ("process 4711 holds 1.0 GiB",), ()),
        (
            FakeNvml(memory={OWN: GIB, OTHER: GIB}, refuses={"nvmlDeviceGetProcessUtilization"}),
            ("process 4711 holds 1.0 GiB",),
            (),
        ),
        (FakeNvml(memory={OWN: GIB, OTHER: GIB}), ("process 4711 holds 1.0 GiB",), ()),
        (FakeNvml(refuses={"nvmlDeviceGetHandleByUUID"}), (), ()),  # a part of a GPU
    ],
    ids=[
        "alone",
        "it rests",
        "it works",
        "it draws",
        "5 %",
        "only the whole is known",
        "none used it",
        "no GPU of NVML's",
    ],
)
def test_a_bench_tells_of_other_processes(
    monkeypatch: pytest.MonkeyPatch,
    nvml: FakeNvml,
    neighbours: tuple[str, ...],
    interference: tuple[str, ...],
) -> None:
    bench = bench_of(monkeypatch, nvml)
    told = bench.neighbours()
    assert [one.startswith(start) for one, start in zip(told, neighbours, strict=True)] == [True] * len(told)
    assert bench.interference() == interference
    assert race(bench) == (), "the device's process counts it itself"


@pytest.mark.parametrize(
    ("used", "refuses", "interference"),
    [
        ([50], {"nvmlDeviceGetProcessUtilization"}, "other processes used 50% of the GPU"),
        (
            [0],
            {"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetUtilizationRates"},
            "how much other processes use the GPU is unknown",
        ),
    ],
)
def test_use_that_nvml_does_not_tell_counts_as_no_idle_gpu(
    monkeypatch: pytest.MonkeyPatch, used: list[int], refuses: set[str], interference: str
) -> None:
    nvml = FakeNvml(memory={OWN: GIB, OTHER: GIB}, used=used, refuses=refuses)
    bench = bench_of(monkeypatch, nvml)
    module = sys.modules["tuner.devices.nvml"]
    monkeypatch.setattr(module, "_SAMPLED_S", 0.05)
    assert bench.interference() == (interference,)
    assert race(bench) == (interference,)


@pytest.mark.parametrize(
    ("nvml", "neighbours", "interference"),
    [
        (FakeNvml(), (), ()),
        (FakeNvml(used=[95, 60, 3]), (), ()),  # what this process did before counts for a while
        (FakeNvml(used=[95, 60, 50]), (), ("other processes used 50% of the GPU",)),
        (FakeNvml(memory={7: GIB}), (), ()),
        (
            FakeNvml(memory={7: GIB, 8: GIB, 9: GIB}, used=[50]),
            ("2 other processes hold memory of the GPU",),
            ("other processes used 50% of the GPU",),
        ),
        (FakeNvml(refuses={"nvmlDeviceGetUtilizationRates"}), (), ()),
    ],
    ids=["idle", "it was this one", "not this one", "alone", "three", "unknown"],
)
def test_where_process_ids_are_hidden_the_idle_gpu_tells(
    monkeypatch: pytest.MonkeyPatch,
    nvml: FakeNvml,
    neighbours: tuple[str, ...],
    interference: tuple[str, ...],
) -> None:
    bench = bench_of(monkeypatch, nvml)
    module = sys.modules["tuner.devices.nvml"]
    monkeypatch.setattr(module, "_SAMPLED_S", 0.05)
    monkeypatch.setattr(module, "_PAUSE_S", 0.02)
    assert bench.neighbours() == neighbours
    looks = list(nvml.used)
    assert bench.interference() == interference
    nvml.used = looks
    assert race(bench) == interference, "it cannot be counted during the race, so it is looked at after it"


def test_who_was_alone_is_not_looked_for_again_soon_unless_the_race_settles_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    nvml = FakeNvml()
    bench = bench_of(monkeypatch, nvml)
    while_idle = bench._interference_while_idle
    monkeypatch.setattr(bench, "_interference_while_idle", lambda: looks.append(1) or while_idle())
    assert bench.interference() == () == bench.interference()
    assert len(looks) == 1
    for rules in (RaceRules(8, 0, quick=True), RaceRules(8, 0, vendor=False, dropping=True)):
        assert bench._interference_after(rules) == ()
        assert len(looks) == 1
    bench._interference_after(RaceRules(8, 0, dropping=True))  # a final chooses the winner
    bench._interference_after(RaceRules(8, 0))
    assert len(looks) == 3
    bench._alone_at -= 60.0
    bench._interference_after(RaceRules(8, 0, quick=True))
    assert len(looks) == 4


def test_a_host_has_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch, FakeNvml(memory={OTHER: GIB}, used=[100]), HOST)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (bench.neighbours(), bench.interference(), race(bench)) == ((), (), ())


class Clock:
    """The clock of a module, which goes on when the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("nvml", "lost"),
    [
        (FakeNvml(memory={OWN: GIB}), {"slowed": 0.0, "gpu": 0.0}),
        (FakeNvml(memory={OWN: GIB}, reasons=0x4), {"slowed": 0.0, "gpu": 0.0}),  # the power cap
        (FakeNvml(memory={OWN: GIB}, reasons=0x24), {"slowed": 3.0, "gpu": 0.0}),  # and temperature
        (FakeNvml(memory={OWN: GIB}, reasons=0x8), {"slowed": 0.0, "gpu": 0.0}),  # also while clocks change
        (FakeNvml(memory={OWN: GIB}, reasons=0x88), {"slowed": 3.0, "gpu": 0.0}),  # a power brake
        (FakeNvml(memory={OWN: GIB, OTHER: GIB}, busy={OTHER: 50}), {"slowed": 0.0, "gpu": 1.5}),
        (FakeNvml(reasons=0x40), {"slowed": 3.0}),
        (
            FakeNvml(memory={OWN: GIB}, refuses={"nvmlDeviceGetCurrentClocksEventReasons"}),
            {"slowed": 0.0, "gpu": 0.0},
        ),
    ],
)
def test_what_others_and_temperature_take_adds_up(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, lost: dict[str, float]
) -> None:
    module: Any = nvml.install(monkeypatch)
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    seconds = module.LostSeconds("gpu")
    clock.now_s += 1.0
    seconds.look(OWN)
    clock.now_s += 2.0
    assert seconds.look(OWN) == lost


def test_a_race_on_a_hot_gpu_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(memory={OWN: GIB})
    module: Any = nvml.install(monkeypatch)
    clock, device = Clock(), SimpleNamespace(others=None)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(interference, "time", clock)
    lost = module.LostSeconds("gpu")
    device.others = lambda: lost.look(OWN)
    watched: Any = interference.Interference(device)  # type: ignore[arg-type]
    for hot in (False, False, True):
        with watched.watched():
            nvml.reasons = 0x20 if hot else 0x4
            clock.now_s += 1.0
    assert watched.reasons() == ("temperature or a power brake slowed the GPU for 33% of its time",)
