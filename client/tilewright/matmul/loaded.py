"""``LoadedKernels``: the kernels that ``matmul`` has loaded, within a bound."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

from tilewright import forks
from tilewright.artifact import Artifact
from tilewright.errors import LaunchError
from tilewright.launch import Kernel, driver, load
from tilewright.matmul.cached_launch import TunedPlan


class _Loaded:
    """A kernel, and the plans with launches of it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.plans = weakref.WeakSet[TunedPlan]()

    @property
    def size(self) -> int:
        return len(self.kernel.artifact.binary)

    @property
    def in_use(self) -> bool:
        return self.kernel.held or len(self.plans) > 0


class LoadedKernels:
    """Kernels by artifact and device. Safe to share between threads.

    Beyond ``most`` bytes of binaries, kernels that no plan uses are unloaded when another one is loaded, the
    longest unused first. A kernel that a CUDA graph may hold stays. ``overlap`` is that of
    :func:`tilewright.launch.load`.
    """

    def __init__(self, most: int, overlap: bool) -> None:
        self._most, self._overlap = most, overlap
        # NOTE: a dict keeps its order, so the first is the least recent.
        self._loaded: dict[tuple[str, int], _Loaded] = {}
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Make a new lock in a forked child: a lost thread may hold the old one."""
        self._lock = threading.RLock()

    @property
    def size(self) -> int:
        """Bytes of the binaries that are loaded."""
        return sum(loaded.size for loaded in self._loaded.values())

    def plan(self, artifact: Artifact, device: int, make: Callable[[Kernel], TunedPlan]) -> TunedPlan:
        """A plan that ``make`` makes of a loaded kernel, which stays loaded as long as the plan lives.

        Raises:
            TilewrightError: the kernel cannot be loaded, or what ``make`` raises.
        """
        key = (artifact.digest, device)
        with self._lock:
            loaded = self._loaded.pop(key, None)
            if loaded is None:
                # NOTE: the stream may be captured into a graph during the first product of a shape.
                with driver.outside_capture() if device >= 0 else contextlib.nullcontext():
                    self._make_room(len(artifact.binary), device)
                    loaded = _Loaded(load(artifact, self._overlap))
            self._loaded[key] = loaded
            plan = make(loaded.kernel)
            loaded.plans.add(plan)
        return plan

    def _make_room(self, size: int, device: int) -> None:
        """Unload kernels of a device, whose context is current, until ``size`` bytes more are in bounds."""
        over = self.size + size - self._most
        idle = [key for key, loaded in self._loaded.items() if key[1] == device and not loaded.in_use]
        for key in idle:
            if over <= 0:
                return
            loaded = self._loaded.pop(key)
            over -= loaded.size
            with contextlib.suppress(LaunchError):  # a device that broke says so at the next launch
                loaded.kernel.close()
