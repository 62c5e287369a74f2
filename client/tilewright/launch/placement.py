"""Where the GPU places the blocks of a kernel, found by launches that tell, and kept for the process.

It takes some milliseconds for the first kernel of an idle device, less than one for each further shape of
launch; on a busy one binding waits up to ``_PATIENCE_S`` and goes on without.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright import forks
from tilewright.artifact import MOST_CLUSTERS, LaunchPlan
from tilewright.backoff import Backoff
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.block_order import Busy, Where, block_order, units_by_gpc
from tilewright.launch.step import Step, clustered
from tilewright.problem import GemmProblem

_MULTIPROCESSORS, _SMEM_OF_MULTIPROCESSOR = 16, 81  # CUdevice_attribute
_PATIENCE_S = 0.1
_LARGEST_CLUSTER = 16

Order = ctypes.c_uint8 * MOST_CLUSTERS
AS_NUMBERED = Order(*range(MOST_CLUSTERS))
Kernels = Callable[[str], ctypes.c_void_p]
"""Kernels of a cubin by their symbol."""


class Placements:
    """What launches told of the devices of this process; for any thread.

    Attributes:
        refused: kernels bound so far whose blocks run as numbered, because the device gave no order.
    """

    def __init__(self) -> None:
        self.forget()
        forks.watch(self)

    def forget(self) -> None:
        """Ask again."""
        self.refused = 0
        self._lock = threading.Lock()
        # By device, what depends on the launch by its shape as well.
        self._by_gpc: dict[int, list[int]] = {}
        self._orders: dict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]] = {}
        self._backoffs: defaultdict[tuple[int, ...], Backoff] = defaultdict(Backoff)

    def after_fork(self) -> None:
        """A child has none of its parent's contexts."""
        self.forget()

    def order(
        self, kernels: Kernels, entry: str, plan: LaunchPlan, problem: GemmProblem
    ) -> ctypes.Array[ctypes.c_uint8]:
        """The place of each cluster of a launch in the list of work: blocks of a GPC take neighbouring work.

        As clusters are numbered where the device does not place them alike twice, or is busy; the next kernel
        that is bound asks again, after many refusals in a row not before a pause.

        Args:
            kernels, entry: where to find the kernel of :class:`tilewright.artifact.BlockOrder`.

        Raises:
            PreconditionFailed: the launch has more clusters than an order holds.
            LaunchError: the context is broken.
        """
        device = driver.ensure_context()
        blocks, cluster = plan.grid.blocks(problem)[0], math.prod(plan.cluster)
        if blocks // cluster > MOST_CLUSTERS:
            raise PreconditionFailed(
                f"{plan.entry} has {blocks // cluster} clusters, an order holds {MOST_CLUSTERS}"
            )
        key = (device, blocks, cluster, *plan.block, plan.dynamic_smem)
        known = self._orders.get(key)
        return known if known is not None else self._find(key, kernels, entry, plan)

    def _find(
        self, key: tuple[int, ...], kernels: Kernels, entry: str, plan: LaunchPlan
    ) -> ctypes.Array[ctypes.c_uint8]:
        device, blocks, cluster = key[:3]
        with self._lock:
            backoff = self._backoffs[key]
            if key not in self._orders and not backoff.open:
                places = self._ask(kernels, entry, plan, (device, blocks, cluster))
                if places is None:
                    backoff.failed()
                else:
                    backoff.succeeded()
                    self._orders[key] = Order(*places)
            found = self._orders.get(key, AS_NUMBERED)
            self.refused += found is AS_NUMBERED
            return found

    def _ask(
        self, kernels: Kernels, entry: str, plan: LaunchPlan, launch: tuple[int, int, int]
    ) -> list[int] | None:
        device, blocks, cluster = launch
        try:
            with _asking(kernels, entry, plan, device) as where:
                if device not in self._by_gpc:
                    units = driver.device_attribute(device, _MULTIPROCESSORS)
                    found = units_by_gpc(where, units)
                    if found is None:
                        return None
                    self._by_gpc[device] = found
                return block_order(where, self._by_gpc[device], blocks, cluster)
        except LaunchError as error:
            if error.sticky:
                raise
            return None


@contextmanager
def _asking(kernels: Kernels, entry: str, plan: LaunchPlan, device: int) -> Iterator[Where]:
    # NOTE: more than half of the shared memory, so that no multiprocessor takes two blocks.
    smem = max(plan.dynamic_smem, driver.device_attribute(device, _SMEM_OF_MULTIPROCESSOR) // 2 + 1)
    most = _LARGEST_CLUSTER * MOST_CLUSTERS
    with (
        driver.outside_capture(),
        driver.private_stream() as stream,
        driver.stream_memory(4 * most, 0, stream.value or 0) as address,
    ):
        function = kernels(entry)
        for attribute, value in (
            (driver.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE, smem),
            (driver.FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTERS, 1),
        ):
            driver.check(driver.libcuda().cuFuncSetAttribute(function, attribute, value), f"prepare {entry}")
        end = time.monotonic() + _PATIENCE_S

        def where(blocks: int, cluster: int) -> list[int]:
            shape = ((blocks, 1, 1), plan.block, smem)
            Step(function, entry, [ctypes.c_void_p(address)], shape, clustered(cluster))(stream.value or 0)
            while not driver.is_over(stream):
                if time.monotonic() > end:
                    raise Busy(f"no room for {entry} within {_PATIENCE_S} s")
            return driver.read_words(address, blocks, stream)

        yield where


PLACEMENTS = Placements()
