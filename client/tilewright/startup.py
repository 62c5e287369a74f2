"""The kernels of a service at hand in this process: what :class:`tilewright.Client` starts with."""

from __future__ import annotations

import threading
import time

from tilewright import forks, here
from tilewright.bound import Tally
from tilewright.catalog import Pick
from tilewright.fetch import Fetcher
from tilewright.keeper import SetKeeper
from tilewright.local import Choice, LocalMatmul
from tilewright.miss_reports import MissReports
from tilewright.options import StartOptions
from tilewright.problem import GemmProblem

_NO_SET = Pick("vendor", "no config set yet", miss=True)


class LocalKernels:
    """Config sets by device class, and ``matmul`` with their kernels. Safe to share between threads.

    Attributes:
        matmul: see :class:`tilewright.local.LocalMatmul`.

    Args:
        fetcher: to the service.
        options: how to come by the kernels.
    """

    def __init__(self, fetcher: Fetcher, options: StartOptions) -> None:
        self.matmul = LocalMatmul(self.choose)
        self._fetcher, self._options = fetcher, options
        self._keepers: dict[str, SetKeeper] = {}
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """A lock that no lost thread holds."""
        self._lock = threading.Lock()

    def keeper(self, device: int) -> SetKeeper:
        """The keeper of a device's class, started; blocks at most the start-up timeout, and once.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        name = here.device_class(device).id
        with self._lock:
            found = self._keepers.get(name)
            if found is None:
                reports = MissReports(self._fetcher, name, lambda: self._missed(device))
                found = SetKeeper(self._fetcher, name, self._options, self.matmul.forget, reports.send)
                self._keepers[name] = found
                found.start()
        return found

    def pick(self, problem: GemmProblem, device: int) -> Pick:
        """What answers for a problem on a device: :class:`tilewright.catalog.Pick`.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        catalog = self.keeper(device).catalog
        return catalog.pick(problem, self._options.policy) if catalog else _NO_SET

    def choose(self, problem: GemmProblem, device: int) -> Choice:
        """The same with its kernel: what :class:`LocalMatmul` asks."""
        keeper, pick = self.keeper(device), self.pick(problem, device)
        if pick.kind == "vendor" or pick.entry is None:
            return Choice(None, pick.reason, pick.miss)
        artifact = keeper.artifact(pick.entry.artifact)
        if artifact is None:
            return Choice(None, "its kernel is not here", pick.miss)
        return Choice(artifact, pick.kind, pick.miss)

    def refresh(self, timeout: float) -> bool:
        """Look at the service for every class in use, one after the other, within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        keepers = list(self._keepers.values())
        done = [keeper.refresh(until - time.monotonic()) for keeper in keepers]
        return bool(done) and all(done)

    def rouse(self) -> None:
        """Look at the service soon: there may be something new."""
        for keeper in list(self._keepers.values()):
            keeper.rouse()

    def close(self) -> None:
        """Stop looking at the service; ``matmul`` goes on with what is here."""
        for keeper in list(self._keepers.values()):
            keeper.close()

    def _missed(self, device: int) -> list[Tally]:
        return [tally for tally in self.matmul.misses() if tally.device == device]
