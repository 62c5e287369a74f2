"""Compilers that crash, hang or refuse: each costs its own config, and the next one compiles."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from deadlines import ends_in_time

from kernels.registry import FAMILIES
from tilewright.errors import DeviceUnavailable
from tilewright.launch.host import host_arch
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Outcome
from tuner.workers.builder import Builder, Compiled, CompileLimit, compile_request

HOST = DeviceSpec("host", host_arch(), "a CPU", sm_count=1, memory_bytes=2**33, l2_bytes=2**23)
_SHARED = {"smem_per_block": 232448, "smem_per_sm": 233472}
GPU = DeviceSpec("cuda", "sm_90", "NVIDIA H200", 132, 150_000_000_000, 60 * 2**20, **_SHARED)
PROBLEM = GemmProblem(64, 64, 64, dtype=DType.FLOAT32)
HALF = GemmProblem(512, 512, 512)

FAULTY_CC = """#!/bin/sh
for word in "$@"; do [ "$word" = --version ] && exec {cc} "$@"; done
if mkdir {folder}/done 2>/dev/null; then
    echo $$ > {folder}/pid
    {fault}
fi
exec {cc} "$@"
"""


@pytest.fixture
def faulty_cc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a ``cc`` first on the path that misbehaves once and is the real one from then on."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(fault: str) -> None:
        script = folder / "cc"
        script.write_text(FAULTY_CC.format(cc=shutil.which("cc"), folder=folder, fault=fault))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(1, tmp_path / "cache")
    yield made
    made.close()


def configs() -> list[Config]:
    return FAMILIES["host"].heuristic_configs(PROBLEM, HOST)


def compiled(builder: Builder, config: Config) -> Compiled:
    return builder.submit("host", config, PROBLEM, HOST).result(timeout=60)


def assert_good(builder: Builder) -> None:
    result = compiled(builder, configs()[0])
    assert result.outcome is Outcome.OK, result.message
    assert result.artifact is not None
    assert result.artifact.plan.format == "elf"
    assert result.seconds > 0


def test_compile_and_take_from_the_cache(faulty_cc: Callable[[str], None], builder: Builder) -> None:
    faulty_cc("sleep 2")
    first = compiled(builder, configs()[0])
    again = compiled(builder, configs()[0])
    assert first.artifact == again.artifact is not None
    assert again.seconds < 2.0 <= first.seconds


def test_a_crash_is_a_compile_error(faulty_cc: Callable[[str], None], builder: Builder) -> None:
    faulty_cc("kill -SEGV $PPID; sleep 60")
    result = compiled(builder, configs()[0])
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "SIGSEGV" in result.message
    assert result.artifact is None
    start = time.monotonic()
    assert_good(builder)
    assert time.monotonic() - start < 5.0


def test_a_compilation_that_is_killed_from_outside_runs_again(
    faulty_cc: Callable[[str], None], builder: Builder
) -> None:
    faulty_cc("kill -KILL $PPID; sleep 60")
    assert_good(builder)


def test_a_compilation_that_is_killed_each_time_is_a_compile_error(
    faulty_cc: Callable[[str], None], builder: Builder, tmp_path: Path
) -> None:
    faulty_cc(f"rmdir {tmp_path}/bin/done; kill -KILL $PPID; sleep 60")
    result = compiled(builder, configs()[0])
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "SIGKILL" in result.message


def test_a_hang_is_a_timeout(faulty_cc: Callable[[str], None], tmp_path: Path) -> None:
    faulty_cc("exec sleep 1000")
    with contextlib.closing(Builder(1, tmp_path / "cache", CompileLimit(first=6.0))) as builder:

        def hang() -> list[float]:
            result = compiled(builder, configs()[0])
            assert result.outcome is Outcome.TIMEOUT
            assert "no answer within 6 s" in result.message
            compiler = int((tmp_path / "bin" / "pid").read_text())
            assert _ends(compiler), "the hanging compiler outlives its worker"
            assert_good(builder)
            shutil.rmtree(tmp_path / "bin" / "done")
            shutil.rmtree(tmp_path / "cache")
            return [result.seconds]

        ends_in_time(6.0, hang)


MEMORY = 300 * 2**20
EATS_MEMORY = "\n".join(
    ("#define A0 1,", *(f"#define A{i} {f'A{i - 1} ' * 10}" for i in range(1, 9)), "int a[] = {A8};")
)


@pytest.mark.long
def test_a_compiler_that_eats_memory_is_refused_it(faulty_cc: Callable[[str], None], tmp_path: Path) -> None:
    source = tmp_path / "eats.c"
    source.write_text(EATS_MEMORY)
    faulty_cc(f"exec {shutil.which('cc')} -c -o /dev/null {source}")
    with contextlib.closing(Builder(1, tmp_path / "cache", memory_bytes=MEMORY)) as builder:
        result = compiled(builder, configs()[0])
        assert result.outcome is Outcome.COMPILE_ERROR
        assert "memory" in result.message
        assert_good(builder)


@pytest.mark.long
def test_nvrtc_is_refused_memory_as_well() -> None:
    """It lives in the process that compiles, which goes on."""
    program = f"""
import resource
from kernels.base.spec import CompileError
from kernels.compiler.nvrtc import compile_text
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
entry = 'extern "C" __global__ void k(int* p) {{ *p = 0; }}'
try:
    compile_text({EATS_MEMORY!r}.replace("int a", "__device__ int a") + entry, "sm_90", entry="k")
except CompileError as error:
    assert "memory" in str(error), error
compile_text(entry, "sm_90", entry="k")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_refusal_carries_the_log(faulty_cc: Callable[[str], None], builder: Builder) -> None:
    faulty_cc("echo 'error: the constant must be even' >&2; exit 1")
    result = compiled(builder, configs()[0])
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "error: the constant must be even" in result.message
    assert_good(builder)


def test_no_compiler_is_said_and_not_a_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, builder: Builder
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceUnavailable, match="no C compiler"):
        compiled(builder, configs()[0])


def test_a_bug_is_not_a_trial(builder: Builder) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'nobody'"):
        builder.submit("nobody", configs()[0], PROBLEM, HOST).result(timeout=60)
    assert_good(builder)


def test_a_kernel_that_spills_is_invalid(builder: Builder) -> None:
    family = FAMILIES["mma_sync"]
    knobs = dict(family.heuristic_configs(HALF, GPU)[0].knobs)
    # 128 accumulators a thread (a 64 x 64 warp tile), where four CTAs of 128 threads leave 128 registers.
    knobs |= {"tile_m": 128, "tile_n": 128, "warps_m": 2, "warps_n": 2, "warps_k": 1, "min_ctas_per_sm": 4}
    config = Config.of("mma_sync", knobs)
    result = builder.submit("mma_sync", config, HALF, GPU).result(timeout=60)
    assert result.outcome is Outcome.INVALID, result.message
    assert "spills" in result.message
    assert result.artifact is None


def test_first_in_first_out_and_cancelled_are_skipped(builder: Builder) -> None:
    order: list[int] = []
    futures = [builder.submit("host", config, PROBLEM, HOST) for config in configs()[:1] * 5]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    assert futures[3].cancel()
    assert [futures[number].result(timeout=60).outcome for number in (0, 1, 2, 4)] == [Outcome.OK] * 4
    assert order == [3, 0, 1, 2, 4]


def test_close_does_not_wait_for_a_hang(faulty_cc: Callable[[str], None], tmp_path: Path) -> None:
    faulty_cc("exec sleep 1000")
    builder = Builder(1, tmp_path / "cache")
    hung, queued = (builder.submit("host", config, PROBLEM, HOST) for config in configs()[:1] * 2)
    while not (tmp_path / "bin" / "pid").exists():
        time.sleep(0.01)
    start = time.monotonic()
    builder.close()
    assert time.monotonic() - start < 5.0
    with pytest.raises(RuntimeError, match="closed"):  # it is not the config's fault
        hung.result(timeout=1)
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        builder.submit("host", configs()[0], PROBLEM, HOST)


class SlowQueue(queue.SimpleQueue[Any]):
    """Takes a job once a test says so."""

    def __init__(self) -> None:
        self.asked, self.take = threading.Event(), threading.Event()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self.asked.set()
        assert self.take.wait(10)
        super().put(item, block, timeout)


def test_what_is_queued_during_a_close_is_cancelled(tmp_path: Path) -> None:
    builder, found = Builder(0, tmp_path), list[Future[Compiled]]()
    builder._queue = slow = SlowQueue()
    submit = threading.Thread(
        target=lambda: found.append(builder.submit("host", configs()[0], PROBLEM, HOST))
    )
    close = threading.Thread(target=builder.close)
    submit.start()
    assert slow.asked.wait(10)
    close.start()
    close.join(0.2)
    slow.take.set()
    submit.join(10)
    close.join(10)
    assert found[0].cancelled()


class KnownBuilder(Builder):
    """Compilations that take ``seconds``; keeps the limit of each."""

    seconds = 0.01

    def compile(self, process: object, request: object, limit_s: float) -> Compiled:  # noqa: ARG002
        self.limits = [*getattr(self, "limits", ()), limit_s]
        return Compiled(None, Outcome.INVALID, "", self.seconds)


def test_artifacts_from_the_cache_do_not_lower_the_limit(tmp_path: Path) -> None:
    with contextlib.closing(KnownBuilder(1, tmp_path)) as builder:
        for seconds in [0.01] * 11 + [0.5] * 11:
            builder.seconds = seconds
            compiled(builder, configs()[0])
        assert builder.limits == [30.0] * 21 + [10.0]


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        ([], 30.0),
        ([1.0] * 9, 30.0),
        ([0.3] * 10, 10.0),  # 8 * 0.3 = 2.4 is below the least
        ([2.0] * 10, 16.0),  # 8 * 2
        ([1.0] * 95 + [60.0] * 5, 10.0),  # 5 % of outliers do not move the 90th percentile
        ([20.0] * 10, 120.0),  # 8 * 20 = 160 is above the most
    ],
)
def test_limit_follows_the_compilations(seconds: list[float], limit: float) -> None:
    assert CompileLimit().after(seconds) == pytest.approx(limit)


@pytest.mark.long
@pytest.mark.parametrize("end", ["timeout", "crash"])
def test_a_killed_compilation_leaves_no_files(
    faulty_cc: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    monkeypatch.setattr("tempfile.tempdir", None)
    faulty_cc(
        'touch "$TMPDIR/cc1.s"; ' + ("exec sleep 1000" if end == "timeout" else "kill -SEGV $PPID; exit")
    )
    with contextlib.closing(Builder(1, tmp_path / "cache", CompileLimit(first=3.0))) as builder:
        assert compiled(builder, configs()[0]).artifact is None
        assert (tmp_path / "bin" / "pid").exists()
        assert list(files.iterdir()) == []
        assert_good(builder)
    assert list(files.iterdir()) == []


PARENT = """
import json, sys
from pathlib import Path
from tuner.workers.builder import compile_in, compile_process
compile_in(compile_process(Path(sys.argv[1]), 2**30), json.loads(sys.argv[2]), 100.0)
"""


def test_kill_9_of_the_parent_leaves_no_compiler_and_no_files(
    faulty_cc: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    old = files / "tilewright-1-left"
    old.mkdir()
    os.utime(old, (0, 0))
    faulty_cc('sleep 1000 & echo $! > "$TMPDIR/part"; mv "$TMPDIR/part" "$TMPDIR/cc1.s"; wait; exit')
    request = json.dumps(compile_request("host", configs()[0], PROBLEM, HOST))
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "cache"), request]) as parent:
        while not (running := list(files.glob("*/cc1.s"))):
            assert parent.poll() is None
            time.sleep(0.01)
        child = int(running[0].read_text())
        parent.kill()
    assert _ends(child), "what the compiler started outlives the service"
    assert list(files.iterdir()) == []


def _ends(pid: int) -> bool:
    """Whether a process that was killed is gone, or waits to be collected, within 5 s."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(50):
        try:
            if status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False
