"""Two services of one machine: one works on a device, and the other takes over when that one ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import Databases, migrate, opened
from engine_lab import FakeBench, job, submit, wait_for

from service.engine import device_queue, engine
from service.engine.engine import LocalEngine
from service.engine.health import Trouble
from service.settings import Settings
from tilewright.errors import DeviceUnavailable
from tilewright.schema.job import JobStatus
from tuner.store.database import Store
from tuner.workers.device_lock import DeviceLock

HOLD = """
import sys, time
from pathlib import Path
from tuner.workers.device_lock import DeviceLock
print(DeviceLock(Path(sys.argv[1]), "gpu").acquire(), flush=True)
time.sleep(60)
"""


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first, second, other = (DeviceLock(tmp_path / "locks", name) for name in ("gpu", "gpu", "host"))
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    assert other.acquire()
    assert second.holder() == str(os.getpid())
    first.release()
    assert second.acquire()
    assert not first.acquire()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    lock = DeviceLock(tmp_path, "gpu")
    assert not lock.acquire()
    assert lock.holder() == str(holder.pid)
    holder.kill()
    holder.wait()
    assert lock.acquire()


def test_what_a_holder_starts_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path, "gpu")
    assert lock.acquire()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        lock.release()
        assert DeviceLock(tmp_path, "gpu").acquire()
        child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_users_share_a_lock_although_one_of_them_made_its_file() -> None:
    folder = Path(f"/dev/shm/tilewright-test-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o1777)
    ask = HOLD.replace("time.sleep(60)", "")
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    try:
        lock = DeviceLock(folder, "gpu")
        assert lock.acquire()
        assert stat.S_IMODE(next(folder.iterdir()).stat().st_mode) == 0o666
        command = [*nobody, sys.executable, "-c", ask, str(folder)]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"
        lock.release()
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"True\n"
        assert lock.holder() != str(os.getpid())
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeviceUnavailable, match="set TILEWRIGHT_LOCK_DIR to a folder"):
        DeviceLock(tmp_path / "file", "gpu").acquire()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.truncate(path, 2**40)])
def test_what_another_user_left_in_the_place_of_a_lock_is_not_read_without_end(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    lock, path = DeviceLock(tmp_path, "gpu"), tmp_path / "tilewright-device-gpu.lock"
    if make is not os.mkfifo:
        path.touch()
    make(path)
    found = list[str]()
    asking = threading.Thread(target=lambda: found.append(lock.holder()), daemon=True)
    asking.start()
    asking.join(5.0)
    assert found == ["unknown"]


def test_a_file_that_another_name_leads_to_as_well_is_no_lock_and_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    os.link(tmp_path / "mine", tmp_path / "tilewright-device-gpu.lock")
    with pytest.raises(DeviceUnavailable, match=r"tilewright-device-gpu.lock is no lock of its own; remove"):
        DeviceLock(tmp_path, "gpu").acquire()
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_file_system_without_locks_is_a_clear_error_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS is without its lock service; the device asks again and again."""

    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = DeviceLock(tmp_path, "gpu")
    with pytest.raises(DeviceUnavailable, match="No locks available; set TILEWRIGHT_LOCK_DIR"):
        lock.acquire()
    held = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert tmp_path / "tilewright-device-gpu.lock" not in held


@pytest.fixture
def pair(
    sqlite_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[Store, LocalEngine]]]:
    """Two services on one device, each with a database of its own."""
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    settings = Settings(
        devices=("host",), cache_dir=tmp_path, compile_processes=1, stop_s=0.2, lock_dir=tmp_path
    )
    with opened(sqlite_databases.copy(migrate)) as one, opened(sqlite_databases.copy(migrate)) as two:
        made = [(store, LocalEngine(store, settings)) for store in (one, two)]
        yield made
        for _, engine in made:
            engine.stop()


def test_two_services_tune_a_device_in_turn(
    pair: list[tuple[Store, LocalEngine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most = [], 0
    go_on = threading.Event()

    def tune(_request: Any, job_id: str, *_: Any) -> None:
        nonlocal most
        at_work.append(job_id)
        most = max(most, len(at_work))
        go_on.wait(20)
        at_work.remove(job_id)

    monkeypatch.setattr(device_queue, "tune", tune)
    (first_store, first), (second_store, second) = pair
    ids = submit(first_store), submit(second_store)
    first.start()
    wait_for(lambda: at_work == [ids[0]])
    second.start()
    wait_for(lambda: second.health()["host"].trouble is Trouble.IN_USE)
    health = second.health()["host"]
    assert (health.ok, health.reason) == (True, f"in use by another service (pid {os.getpid()})")
    waiting = job(second_store, ids[1])
    assert (waiting.status, second.why_waiting(waiting)) == (JobStatus.QUEUED, health.reason)
    assert first.why_waiting(job(first_store, ids[0])) is None
    first.begin_stop()
    go_on.set()
    first.stop()
    wait_for(lambda: job(second_store, ids[1]).status.final)
    assert most == 1
    assert second.health()["host"].trouble is None


GPU_LOCK = "tilewright-device-00112233445566778899aabbccddeeff.lock"


class SameGpu(FakeBench):
    """One GPU, which each service numbers by the GPUs that it sees."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.identity = "00112233445566778899aabbccddeeff"


def test_the_lock_of_a_gpu_is_that_of_its_uuid_whatever_number_it_has(
    sqlite_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_queue, "Bench", SameGpu)
    monkeypatch.setattr(engine, "list_devices", lambda: ["cuda:0", "cuda:1", "host"])
    with opened(sqlite_databases.copy(migrate)) as store, contextlib.ExitStack() as engines:
        troubles: list[Callable[[], Trouble | None]] = []
        for name in ("cuda:0", "cuda:1"):
            settings = Settings(
                devices=(name,), cache_dir=tmp_path, compile_processes=1, stop_s=0.2, lock_dir=tmp_path
            )
            made = LocalEngine(store, settings)
            engines.callback(made.stop)
            made.start()
            troubles.append(lambda made=made, name=name: made.health()[name].trouble)  # type: ignore[misc]
            wait_for(lambda: [path.name for path in tmp_path.glob("*.lock")] == [GPU_LOCK])
        wait_for(lambda: troubles[1]() is Trouble.IN_USE)
        assert troubles[0]() is None
    assert [path.name for path in tmp_path.glob("*.lock")] == [GPU_LOCK]
