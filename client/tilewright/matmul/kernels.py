"""``LocalKernels``: the kernels of a service in this process, a config set for each device class in use."""

from __future__ import annotations

import math
import threading
import time

from tilewright import forks
from tilewright.config_sets.counters import LaunchCounter
from tilewright.config_sets.miss_reports import MissReports
from tilewright.config_sets.options import StartOptions
from tilewright.config_sets.refresher import ConfigSetRefresher
from tilewright.http.fetch import Fetcher
from tilewright.launch import local_device
from tilewright.matmul.matmul import Choice, LocalMatmul
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import GemmProblem

_NO_SET = LookupResult("vendor", "no config set yet", miss=True)


class LocalKernels:
    """Config sets by device class, and ``matmul`` with their kernels. Safe to share between threads.

    Attributes:
        matmul: see :class:`tilewright.matmul.matmul.LocalMatmul`.

    Args:
        fetcher: to the service.
        options: options of the config sets.
    """

    def __init__(self, fetcher: Fetcher, options: StartOptions) -> None:
        self.matmul = LocalMatmul(self.choose, options.kernel_bytes, options.overlap)
        self._fetcher, self._options = fetcher, options
        self._refreshers: dict[str, ConfigSetRefresher] = {}
        self._is_closed = False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Make a new lock in a forked child: a lost thread may hold the old one."""
        self._lock = threading.RLock()  # NOTE: a signal handler or a finalizer may multiply during the start

    def refresher(self, device: int, most_s: float = math.inf) -> ConfigSetRefresher:
        """The refresher of a device's class; its first use starts it and blocks at most ``start_timeout`` and
        ``most_s`` seconds.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        name = local_device.device_class(device).id
        with self._lock:
            found = self._refreshers.get(name)
            if found is None:
                new = self._new(name, device)
                found = self._refreshers.setdefault(name, new)
                if found is new:
                    found.start(most_s)
            elif found.forked:
                found.resume()
        return found

    def lookup(self, problem: GemmProblem, device: int) -> LookupResult:
        """The result of looking up a problem on a device.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        catalog = self.refresher(device).catalog
        return catalog.lookup(problem, self._options.limits) if catalog else _NO_SET

    def choose(self, problem: GemmProblem, device: int) -> Choice:
        """The kernel that :class:`LocalMatmul` runs for a problem, with the reason of the choice."""
        refresher, found = self.refresher(device), self.lookup(problem, device)
        if found.kind == "vendor" or found.entry is None:
            return Choice(None, found.reason, found.miss)
        artifact = refresher.artifact(found.entry.artifact)
        if artifact is None:
            return Choice(None, "its kernel is not here", found.miss)
        return Choice(artifact, found.kind, found.miss)

    def refresh(self, timeout: float) -> bool:
        """Look for a newer set of every class in use, one after the other, within ``timeout`` seconds; of the
        default device's class if none is.

        Raises:
            DeviceUnavailable: there is no default device.
        """
        until = time.monotonic() + float(timeout)  # which may be of another type of numbers
        if not self._refreshers and not self._is_closed:
            self.refresher(local_device.default_device(), until - time.monotonic())
        refreshers = list(self._refreshers.values())
        done = [refresher.refresh(until - time.monotonic()) for refresher in refreshers]
        return bool(done) and all(done)

    def request_refresh(self) -> None:
        """Look for newer sets soon; return at once."""
        for refresher in list(self._refreshers.values()):
            refresher.request_refresh()

    def close(self) -> None:
        """Stop looking for newer sets; ``matmul`` continues with the kernels it has, or
        with those of the cache if it had not begun."""
        self._is_closed = True
        for refresher in list(self._refreshers.values()):
            refresher.close()

    def _new(self, name: str, device: int) -> ConfigSetRefresher:
        reports = MissReports(self._fetcher, name, lambda: self._missed(device))
        new = ConfigSetRefresher(self._fetcher, name, self._options, self.matmul.forget, reports.send)
        if self._is_closed:  # take what the cache has, and never ask the service
            new.close()
        return new

    def _missed(self, device: int) -> list[LaunchCounter]:
        return [counter for counter in self.matmul.misses() if counter.device == device]
