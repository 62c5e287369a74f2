"""Two processes on one GPU: what the second one does there is noticed, told, and settles nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from api_server import finish, start

from kernels.compiler.build import build
from kernels.simt.family import SIMT
from tilewright import Client, GemmProblem
from tuner.measure.race import RaceRules
from tuner.workers.bench import Bench, list_devices

pytestmark = pytest.mark.alone
PROBLEM = GemmProblem(512, 512, 512, dtype="float32", layout="nn")
NEIGHBOUR = """
import sys, time
import cupy
a = cupy.random.rand(4096, 4096, dtype=cupy.float32)
cupy.cuda.Device().synchronize()
print("there", flush=True)
sys.stdin.readline()
print("at work", flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    for _ in range(4):
        a @ a
    cupy.cuda.Device().synchronize()
"""


@contextlib.contextmanager
def a_neighbour(*, at_work: bool) -> Iterator[int]:
    """The process id of another process on the GPU, which ends by itself after two minutes."""
    command = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        if at_work:
            process.stdin.write("work\n")
            process.stdin.flush()
            assert process.stdout.readline() == "at work\n"
            time.sleep(2.0)  # NVML looks at a GPU once a second at worst
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench(list_devices()[0])
    yield made
    made.close()


def race(bench: Bench) -> tuple[str, ...]:
    kernel = build(SIMT, SIMT.heuristic_configs(PROBLEM, bench.spec)[0], PROBLEM, bench.spec)
    return bench.race([kernel], PROBLEM, RaceRules(32, 0), 60.0).interference


def test_alone_there_is_no_interference(bench: Bench) -> None:
    assert race(bench) == ()
    assert bench.interference() == ()


def test_a_process_that_rests_is_told_and_disturbs_nothing(bench: Bench) -> None:
    before = bench.neighbours()
    with a_neighbour(at_work=False):
        time.sleep(1.5)  # until NVML has forgotten how it started
        told = bench.neighbours()
        assert bench.interference() == ()
        assert race(bench) == ()
    assert told != before, "NVML lists no process here: say so in docs/measurement.md"


def test_a_process_at_work_disturbs_a_race(bench: Bench) -> None:
    with a_neighbour(at_work=True):
        (told,) = bench.interference()
        assert told.startswith("other processes used ")
        assert any(one.startswith("other processes used ") for one in race(bench))
    deadline = time.monotonic() + 10.0
    while bench.interference():
        assert time.monotonic() < deadline, "it has ended, but still counts"


def test_a_job_beside_a_process_at_work_waits_and_settles_nothing(tmp_path) -> None:
    server = start(tmp_path, devices=list_devices()[0], quiet_wait_s=4)
    try:
        with Client(server.url, timeout=60.0) as client, a_neighbour(at_work=True):
            job = client.tune(PROBLEM, max_trials=2, families=("simt",), wait=False)
            reasons, ends = set(), time.monotonic() + 4.0
            while time.monotonic() < ends:
                reasons.add(client.job(job.id).waiting or "")
                time.sleep(0.2)
            ended = client.wait(job.id)
    finally:
        finish(server)
    assert job.neighbours, "POST /tune names the process"
    assert any("waiting for it" in reason for reason in reasons), reasons
    assert ended.best is not None
    assert (ended.best.verdict, ended.best.use_vendor) == ("disturbed", True)
    assert "other processes used" in ended.best.timing.disturbed
