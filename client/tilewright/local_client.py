"""The client's methods that run in this process: kernels at hand, looked up and launched."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Self, TypedDict

from tilewright import here
from tilewright.catalog import Pick, Policy
from tilewright.local import LocalMatmul
from tilewright.options import StartOptions
from tilewright.problem import GemmProblem
from tilewright.prune import Bounds
from tilewright.startup import LocalKernels


class LocalOptions(TypedDict, total=False):
    """How a client comes by its kernels, see :class:`tilewright.options.StartOptions`, and which of them may
    run, see :class:`tilewright.catalog.Policy`."""

    start_timeout: float
    refresh_s: float
    offline: bool
    pin: str | None
    cache_dir: Path | None
    cache_bytes: int
    cache_days: float
    max_regret: float | None
    deterministic: bool


def start_options(options: LocalOptions) -> StartOptions:
    """The options as they are used.

    Raises:
        InvalidProblem: the pin is no digest of a config set, or the cache's bounds cannot be kept.
    """
    bounds = Bounds()
    policy = Policy(options.get("max_regret", 0.1), options.get("deterministic", False))
    return StartOptions(
        timeout=options.get("start_timeout", 2.0),
        refresh_s=options.get("refresh_s", 300.0),
        offline=options.get("offline", False),
        pin=options.get("pin"),
        cache_dir=options.get("cache_dir"),
        cache=Bounds(options.get("cache_bytes", bounds.size), options.get("cache_days", bounds.days)),
        policy=policy,
    )


class LocalMethods:
    """What :class:`tilewright.Client` adds to these: the kernels.

    Attributes:
        matmul: ``matmul(a, b, out=None, bias=None, activation=None, alpha=1, beta=0)`` on the arrays' own
            device, see :class:`tilewright.local.LocalMatmul`.
    """

    _local: LocalKernels
    matmul: LocalMatmul

    def start(self, device: int | None = None) -> Self:
        """Have the kernels of a device at hand: from the cache at once, else from the service.

        Blocks at most ``start_timeout`` seconds, and never raises for a service that is down: what has no
        kernel runs with the vendor library until the service answers. Without a call the first
        :meth:`matmul` does the same.

        Args:
            device: ordinal of a GPU, -1 for the CPU; the current GPU, or the CPU where there is none,
                unless given.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        self._local.keeper(here.default_device() if device is None else device)
        return self

    def lookup(self, problem: GemmProblem, device: int | None = None) -> Pick:
        """What :meth:`matmul` would run for a problem, without asking the service.

        Raises:
            DeviceUnavailable: there is no such device.
        """
        return self._local.pick(problem, here.default_device() if device is None else device)

    def refresh(self, timeout: float = 2.0) -> bool:
        """Look for a newer config set now; False where the service did not answer within ``timeout``
        seconds, or failed so often that it is left alone for a while."""
        return self._local.refresh(timeout)

    @property
    def stats(self) -> collections.Counter[str]:
        """How many products :meth:`matmul` ran as ``tuned: exact``, ``tuned: nearest`` and
        ``vendor: REASON``."""
        return self.matmul.stats
