"""The virtual clock of a simulated fleet, on which one thread runs at a time."""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

Body = Callable[[], None]


class _Device:
    """A thread, and where it is on the virtual clock."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.time = 0.0
        self.cpu = 0.0
        self.turn = threading.Semaphore(0)

    def count_cpu(self) -> None:
        """Add the CPU time of the calling thread, which is this one's, since the last count."""
        cpu = time.thread_time()
        self.time, self.cpu = self.time + cpu - self.cpu, cpu


class VirtualClock:
    """A clock for any number of devices on few cores: the device with the earliest virtual time runs alone,
    until another device is earlier.

    A device spends the seconds that it passes to :meth:`spend`, and the CPU time that its thread really
    takes. The database has one core, which executes one transaction after the other. A transaction waits
    while the core is occupied, then occupies it for the CPU time that its server process really takes
    (SQLite: its thread).

    Attributes:
        busy_s, waited_s: seconds in which the database worked, and that devices waited for it.
        transactions: how many there were.
        cpu_s: CPU time that the devices' threads took.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._behind: list[tuple[float, int, _Device]] = []
        self._ended = threading.Event()
        self._free_at = 0.0
        self.busy_s = self.waited_s = self.cpu_s = 0.0
        self.transactions = 0

    @property
    def now(self) -> float:
        """Virtual seconds of the calling device."""
        self._mine.count_cpu()
        return self._mine.time

    def spend(self, seconds: float) -> None:
        """Advance the calling device, and let others catch up."""
        mine = self._mine
        mine.count_cpu()
        mine.time += seconds
        heapq.heappush(self._behind, (mine.time, mine.number, mine))
        self._pass_on()
        mine.turn.acquire()

    def run(self, bodies: Sequence[Body]) -> float:
        """Run all bodies in turns; the virtual seconds of the last one. Raises what a body raised."""
        devices = [_Device(number) for number in range(len(bodies))]
        self._behind = [(0.0, one.number, one) for one in devices]

        def work(device: _Device, body: Body) -> None:
            device.turn.acquire()
            self._local.device, device.cpu = device, time.thread_time()
            try:
                body()
            finally:
                device.count_cpu()
                self.cpu_s += device.cpu
                self._pass_on()

        with ThreadPoolExecutor(len(bodies)) as threads:
            ended = [threads.submit(work, *one) for one in zip(devices, bodies, strict=True)]
            self._pass_on()
            for one in ended:
                one.result()
        return max(one.time for one in devices)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Callable[[Session], None]]:
        """Execute the block when the database is free, and occupy it for the CPU time it takes there. The
        block calls the given function once its session is open."""
        self.spend(0.0)  # those that are behind come first
        mine, server = self._mine, _Server()
        began, waited_s = mine.time, max(0.0, self._free_at - mine.time)
        try:
            yield server.serve
        finally:
            mine.count_cpu()
            used_s = server.used_s if server.process else mine.time - began
            mine.time += waited_s + server.used_s
            self._free_at = max(self._free_at, began) + used_s
            self.busy_s, self.waited_s = self.busy_s + used_s, self.waited_s + waited_s
            self.transactions += 1

    @property
    def _mine(self) -> _Device:
        device: _Device = self._local.device
        return device

    def _pass_on(self) -> None:
        if self._behind:
            heapq.heappop(self._behind)[2].turn.release()


class _Server:
    """The process of PostgreSQL on this machine that serves a transaction, and its CPU time."""

    def __init__(self) -> None:
        self.process = 0  # SQLite: it has none
        self._before_s = 0.0

    def serve(self, session: Session) -> None:
        """Serve a session."""
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            driver: Any = connection.connection.dbapi_connection
            self.process = int(driver.info.backend_pid)
            self._before_s = self._cpu_s()

    @property
    def used_s(self) -> float:
        """CPU seconds since :meth:`serve`; 0 for SQLite."""
        return self._cpu_s() - self._before_s if self.process else 0.0

    def _cpu_s(self) -> float:
        return int(Path(f"/proc/{self.process}/schedstat").read_text().split()[0]) / 1e9
