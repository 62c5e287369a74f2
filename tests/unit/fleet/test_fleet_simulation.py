"""The simulated fleet: its clock by arithmetic, and its jobs through the real store."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from toy_family import CUDA_DEVICE, toy_space

from benchmarks.fleet.clock import VirtualClock
from benchmarks.fleet.run import FleetError, FleetOptions, run_fleet
from benchmarks.fleet.simulation import Outcome
from tilewright.schema.job import JobStatus
from tuner.replay.formats import write_space
from tuner.store import jobs, trials
from tuner.store.database import Store


def burn(seconds: float) -> None:
    """Use so much CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_devices_that_sleep_take_the_time_of_the_longest() -> None:
    clock, order = VirtualClock(), list[tuple[str, int]]()

    def device(name: str, seconds: float, times: int) -> None:
        for number in range(times):
            clock.spend(seconds)
            order.append((name, number))

    began = time.monotonic()
    took = clock.run([lambda: device("slow", 100.0, 2), lambda: device("quick", 60.0, 3)])
    assert took == pytest.approx(200.0, abs=1.0)
    assert time.monotonic() - began < 20.0, "nothing sleeps"
    assert order == [("quick", 0), ("slow", 0), ("quick", 1), ("quick", 2), ("slow", 1)]


def test_cpu_time_counts_for_the_device_that_used_it() -> None:
    clock, ends = VirtualClock(), dict[str, float]()

    def device(name: str, cpu_s: float) -> None:
        burn(cpu_s)
        clock.spend(1.0)
        ends[name] = clock.now

    clock.run([lambda: device("busy", 0.3), lambda: device("idle", 0.0)])
    assert 1.3 <= ends["busy"] < 1.45
    assert 1.0 <= ends["idle"] < 1.15


def test_a_transaction_waits_for_those_before_it() -> None:
    """Three devices begin transactions of 0.2 s of CPU time at 0.00, 0.05 and 5 s: one waits 0.15 s."""
    clock, ends = VirtualClock(), list[float]()

    def device(start: float) -> None:
        clock.spend(start)
        with clock.transaction():
            burn(0.2)
        ends.append(clock.now)

    clock.run([lambda: device(0.0), lambda: device(0.05), lambda: device(5.0)])
    assert ends == pytest.approx([0.2, 0.4, 5.2], abs=0.06)
    assert (clock.busy_s, clock.waited_s) == pytest.approx((0.6, 0.15), abs=0.06)
    assert clock.transactions == 3


def test_an_error_of_one_device_is_raised_when_the_others_have_ended() -> None:
    clock, ended = VirtualClock(), threading.Event()

    def good() -> None:
        clock.spend(2.0)
        ended.set()

    def bad() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        clock.run([bad, good])
    assert ended.is_set()


def test_fairness_counts_while_every_caller_waits() -> None:
    """`few` has its last start at 30; until then many got 30 + 10, some 30 and few 20 + 0 of the seconds."""
    worked = [("many", 0.0, 40.0), ("many", 0.0, 10.0), ("many", 50.0, 90.0), ("many", 90.0, 95.0)]
    worked += [("some", 0.0, 30.0)] + [("some", 30.0 + n, 31.0 + n) for n in range(3)]
    worked += [("few", 0.0, 10.0), ("few", 10.0, 20.0), ("few", 20.0, 20.0), ("few", 30.0, 99.0)]
    assert Outcome(worked=worked).fairness == pytest.approx(20 / 40)
    assert Outcome(worked=worked[:-1]).fairness is None


def options(folder: Path, **given: object) -> FleetOptions:
    space = folder / "toy.t4.json.gz"
    write_space(toy_space(noise=0.01), space)
    usual = {"devices": "1 4", "space": (str(space),), "jobs": 8, "trials": 5, "out": folder}
    return FleetOptions(**(usual | given))  # type: ignore[arg-type]


@pytest.mark.long
def test_more_devices_do_more_trials_a_minute_of_the_same_quality(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept.db"
    told = list[str]()
    rows, path = run_fleet(options(tmp_path, database_url=url), told.append)
    assert json.loads(path.read_text())["rows"] == rows
    one, four = rows
    assert (one["devices"], one["trials"], one["jobs"]) == (1, 40, 8)
    assert (four["devices"], four["trials"], four["jobs"]) == (4, 160, 32)
    assert 2.5 < four["speedup"] <= 4.2
    assert one["speedup"] == 1.0
    assert one["quality_low"] <= four["quality"] <= one["quality_high"]
    assert four["fairness"] > 0.5
    assert one["fairness"] is None
    assert told[1].startswith("  4 devices:")
    store = Store.open(url)
    with store.read() as session:
        assert jobs.counts(session) == {JobStatus.SUCCEEDED: 40}
        first = jobs.listing(session, limit=1)[0]
        assert isinstance(first, jobs.JobRecord)
        assert trials.count(session, first.id) == 5
    store.close()


def test_a_database_with_waiting_jobs_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/used.db"
    store = Store.open(url)
    store.migrate()
    asked = options(tmp_path, database_url=url)
    with store.begin() as session:
        space = toy_space()
        jobs.submit(session, jobs.TuneRequest(space.problem, families=("toy",)), CUDA_DEVICE)
    store.close()
    with pytest.raises(FleetError, match=r"1 jobs wait .* use an empty one"):
        run_fleet(asked, lambda _line: None)


def test_spaces_of_one_problem_are_refused(tmp_path: Path) -> None:
    asked = options(tmp_path)
    with pytest.raises(FleetError, match="use others"):
        run_fleet(options(tmp_path, space=asked.space * 2), lambda _line: None)


@pytest.mark.parametrize("devices", ["", "0", "1 two", "-1"])
def test_sizes_that_are_no_numbers_are_refused(devices: str) -> None:
    with pytest.raises(FleetError, match="takes whole numbers, such as"):
        run_fleet(FleetOptions(devices=devices), lambda _line: None)
