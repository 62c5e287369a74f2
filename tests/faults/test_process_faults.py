"""A supervised process: crashes, hangs, noise and its parent's death, all of them real."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import ends_in_time

from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError
from tuner.workers.child import Child
from tuner.workers.frames import Channel
from tuner.workers.process import (
    WorkerBusy,
    WorkerDied,
    WorkerNotStarted,
    WorkerProcess,
    WorkerTimeout,
    python,
)

SERVER = """
import ctypes, os, sys, time
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError
from tuner.workers.frames import Frame
from tuner.workers.server import serve

class Server:
    def greeting(self):
        return {"pid": os.getpid()}
    def handle(self, request):
        op = request.header["op"]
        if op == "segfault": ctypes.string_at(0)
        if op == "abort": os.abort()
        if op == "hang": time.sleep(1000)
        if op == "leave": os._exit(7)
        if op == "nameless": os.kill(os.getpid(), 40)
        if op == "garbage": os.write(int(sys.argv[1].split(",")[1]), b"not a frame at all")
        if op == "print": print("noise " * 10000, flush=True)
        if op == "bug": return {}["missing"]
        if op == "object": return Frame({"kind": "ok", "object": object()})
        if op == "invalid": raise InvalidProblem("m must be positive")
        if op == "sticky": raise LaunchError("illegal address", code=700, sticky=True)
        time.sleep(request.header.get("seconds", 0))
        return Frame({"kind": "ok", "pid": os.getpid()}, request.payloads)

def start():
    if len(sys.argv) > 2:
        raise DeviceUnavailable("install a driver")
    return Server()

serve(sys.argv[1].removeprefix("--pipes="), start)
"""


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(python("-c", SERVER)) as process:
        yield process


def gone(pid: int, within_s: float = 3.0) -> bool:
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_payloads_travel_and_the_process_is_kept(worker: WorkerProcess) -> None:
    payload = os.urandom(3 * 2**20)
    first = worker.call({"op": "echo"}, [payload, b""], timeout_s=10)
    assert first.payloads == (payload, b"")
    assert first.header["pid"] == worker.greeting()["pid"] == worker.pid
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] == worker.pid
    assert worker.restarts == 0


@pytest.mark.parametrize(
    ("op", "cause"),
    [
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("nameless", "signal 40"),
        ("leave", "exit code 7"),
    ],
)
def test_death_is_named_and_survived(worker: WorkerProcess, op: str, cause: str) -> None:
    old = worker.greeting()["pid"]
    with pytest.raises(WorkerDied) as caught:
        worker.call({"op": op}, timeout_s=10)
    assert caught.value.cause == cause
    assert cause in str(caught.value)
    start = time.monotonic()
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] != old
    assert time.monotonic() - start < 3.0
    assert worker.restarts == 1


def test_a_crash_shows_where_in_the_log_alone(
    worker: WorkerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WorkerDied, match="SIGSEGV") as caught:
        worker.call({"op": "segfault"}, timeout_s=10)
    assert "Fatal Python error: Segmentation fault" in caplog.text
    assert "server.py" in caplog.text
    assert "/" not in str(caught.value)


def test_a_hang_is_killed(worker: WorkerProcess) -> None:
    def hang() -> list[float]:
        old = worker.greeting()["pid"]
        start = time.monotonic()
        with pytest.raises(WorkerTimeout, match=r"no answer within 0\.3 s"):
            worker.call({"op": "hang"}, timeout_s=0.3)
        took = time.monotonic() - start
        assert gone(old)
        assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] != old
        return [took]

    ends_in_time(0.3, hang)


def test_a_stopped_process_cannot_block_a_large_request(worker: WorkerProcess) -> None:
    os.kill(worker.greeting()["pid"], signal.SIGSTOP)
    with pytest.raises(WorkerTimeout):
        worker.call({"op": "echo"}, [bytes(8 * 2**20)], timeout_s=0.3)
    assert worker.call({"op": "echo"}, timeout_s=10).payloads == ()


def test_garbage_ends_the_process(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerDied, match="a frame starts with"):
        worker.call({"op": "garbage"}, timeout_s=10)
    assert worker.call({"op": "echo"}, timeout_s=10).payloads == ()


def test_prints_neither_block_nor_corrupt(worker: WorkerProcess, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        assert worker.call({"op": "print"}, timeout_s=10).header["kind"] == "ok"
    with pytest.raises(WorkerDied):
        worker.call({"op": "leave"}, timeout_s=10)
    assert "noise" in caplog.text
    assert len(caplog.text) < 5_000


def test_refusals_keep_their_class(worker: WorkerProcess) -> None:
    with pytest.raises(InvalidProblem, match="m must be positive"):
        worker.call({"op": "invalid"}, timeout_s=10)
    assert worker.restarts == 0


def test_a_lost_context_ends_the_process(worker: WorkerProcess) -> None:
    old = worker.greeting()["pid"]
    with pytest.raises(LaunchError) as caught:
        worker.call({"op": "sticky"}, timeout_s=10)
    assert caught.value.sticky
    assert caught.value.code == 700
    assert gone(old)
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] != old


def test_a_bug_is_not_hidden(worker: WorkerProcess) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'missing'"):
        worker.call({"op": "bug"}, timeout_s=10)
    with pytest.raises(RuntimeError, match="object is not JSON serializable"):
        worker.call({"op": "object"}, timeout_s=10)
    assert worker.restarts == 0


def test_a_death_between_calls_costs_none(worker: WorkerProcess) -> None:
    old = worker.greeting()["pid"]
    os.kill(old, signal.SIGKILL)
    assert gone(old)
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] != old
    assert worker.restarts == 1


def test_an_interrupted_call_leaves_no_stale_reply(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    worker.greeting()
    with monkeypatch.context() as patch:
        patch.setattr("tuner.workers.frames.Channel.receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worker.call({"op": "echo"}, [b"old"], timeout_s=10)
    assert worker.call({"op": "echo"}, [b"new"], timeout_s=10).payloads == (b"new",)


def test_a_start_that_fails_says_why_each_time() -> None:
    with WorkerProcess([*python("-c", SERVER.replace("len(sys.argv) > 2", "True"))]) as process:
        for _ in range(2):
            with pytest.raises(DeviceUnavailable, match="install a driver"):
                process.greeting()


@pytest.mark.parametrize(
    ("signal_name", "deaths", "starts"), [("SIGKILL", 2, 3), ("SIGKILL", 9, 3), ("SIGABRT", 9, 1)]
)
def test_a_start_that_others_kill_is_repeated(
    tmp_path: Path, signal_name: str, deaths: int, starts: int
) -> None:
    dies = f"""
import os, signal
number = len(os.listdir({str(tmp_path)!r}))
open(f"{tmp_path}/{{number}}", "w").close()
if number < {deaths}: os.kill(os.getpid(), signal.{signal_name})
"""
    with WorkerProcess(python("-c", dies + SERVER)) as process:
        fails = pytest.raises(WorkerNotStarted, match=signal_name)
        with fails if deaths >= starts else contextlib.nullcontext():
            process.call({"op": "echo"}, timeout_s=10)
    assert len(os.listdir(tmp_path)) == starts


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_process_that_cannot_be_started_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, pipe, pipes = WorkerProcess([str(tmp_path / "missing")]), os.pipe, list[tuple[int, int]]()

    def one_pipe() -> tuple[int, int]:
        if pipes:
            raise OSError(errno.EMFILE, "too many open files")
        pipes.append(pipe())
        return pipes[0]

    with pytest.raises(FileNotFoundError):
        process.greeting()
    before = open_files()
    with pytest.raises(FileNotFoundError):
        process.greeting()
    assert open_files() == before
    monkeypatch.setattr("os.pipe", one_pipe)
    with pytest.raises(OSError, match="too many"):
        process.greeting()
    assert open_files() == before


def test_a_process_that_cannot_be_killed_keeps_no_pipe_and_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    child, removed = Child.spawn(python("-c", "import time; time.sleep(60)")), list[int]()
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr("tuner.workers.child._REAP_TIMEOUT_S", 0.05)
        patch.setattr("tuner.workers.child.remove_folders", removed.append)
        patch.setattr(Child, "_kill_group", lambda _: None)
        with pytest.raises(DeviceUnavailable, match="cannot be killed"):
            child.kill()
    assert (open_files(), removed) == (before - 2, [child.pid])
    child._kill_group()
    child._reap()


def test_a_short_request_waits_its_turn_or_gives_up(worker: WorkerProcess) -> None:
    worker.greeting()
    header = {"op": "echo", "seconds": 0.6}
    busy = threading.Thread(target=worker.call, args=(header,), kwargs={"timeout_s": 10})
    busy.start()
    while not worker._call_lock._taken:
        time.sleep(0.001)
    with pytest.raises(WorkerBusy):
        worker.call({"op": "echo"}, timeout_s=10, wait_s=0.05)
    assert worker.call({"op": "echo"}, timeout_s=10, wait_s=5).header["kind"] == "ok"
    busy.join()


def test_close_ends_a_call_that_hangs() -> None:
    process = WorkerProcess(python("-c", SERVER))
    pid = process.greeting()["pid"]
    ended: list[BaseException] = []

    def call() -> None:
        try:
            process.call({"op": "hang"}, timeout_s=100)
        except WorkerDied as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.1)
    process.close()
    thread.join(5)
    assert len(ended) == 1
    assert gone(pid)
    with pytest.raises(RuntimeError, match="closed"):
        process.call({"op": "echo"}, timeout_s=1)


class Pause:
    """Stops the thread of a call at a moment, until the process is being closed."""

    def __init__(self) -> None:
        self.reached, self.closing = threading.Event(), threading.Event()

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*given: Any) -> Any:
            found = function(*given)
            self.reached.set()
            assert self.closing.wait(10)
            return found

        return paused


@pytest.mark.parametrize("moment", ["the look at the device", "the start", "the greeting"])
def test_close_ends_a_call_that_has_no_process_yet(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    pause, spawned, ended = Pause(), list[Child](), list[str]()
    process = WorkerProcess(python("-c", SERVER))
    old, spawn = process.greeting()["pid"], Child.spawn
    os.kill(old, signal.SIGKILL)
    assert gone(old)

    def spawn_and_tell(argv: list[str]) -> Child:
        spawned.append(spawn(argv))
        return spawned[0]

    monkeypatch.setattr(Child, "spawn", spawn_and_tell)
    if moment == "the look at the device":
        process._check_back = pause.after(lambda _pid: None)
    elif moment == "the start":
        monkeypatch.setattr(Child, "spawn", pause.after(spawn_and_tell))
    else:
        monkeypatch.setattr(Channel, "receive", pause.after(Channel.receive))

    def call() -> None:
        try:
            process.call({"op": "hang"}, timeout_s=100)
        except (RuntimeError, WorkerDied) as error:
            ended.append(str(error))

    threads = [threading.Thread(target=one) for one in (call, process.close)]
    threads[0].start()
    assert pause.reached.wait(10)
    threads[1].start()
    while not process._closed:
        time.sleep(0.001)
    pause.closing.set()
    for thread in threads:
        thread.join(10)
    assert ended == ["the worker process was closed"]
    assert len(spawned) == (moment != "the look at the device")
    assert all(gone(child.pid) for child in spawned)


def test_a_worker_outlives_the_thread_that_started_it(worker: WorkerProcess) -> None:
    thread = threading.Thread(target=worker.greeting)
    thread.start()
    thread.join()
    started = worker.pid
    time.sleep(0.2)
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] == started
    assert worker.restarts == 0


def test_ctrl_c_does_not_reach_the_worker(worker: WorkerProcess) -> None:
    pid = worker.greeting()["pid"]
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert worker.call({"op": "echo"}, timeout_s=10).header["pid"] == pid


PARENT = f"""
import threading, time
from tuner.workers.process import WorkerProcess, python
process = WorkerProcess(python("-c", {SERVER!r}))
print(process.greeting()["pid"], flush=True)
process.call({{"op": "hang"}}, timeout_s=1000)
"""


def test_kill_9_of_the_parent_leaves_no_orphan() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.2)
        assert not gone(child, 0.1)
        parent.kill()
        parent.wait(5)
        assert gone(child)
