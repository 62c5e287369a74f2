"""Where the GPU places the blocks of a kernel, found by launches that tell, and kept for the process.

It takes some milliseconds for the first kernel of an idle device, less than one for each further shape of
launch; on a busy one binding waits up to ``_PATIENCE_S`` and goes on without.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright import forks
from tilewright.artifact import MOST_CLUSTERS, LaunchPlan
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.block_order import Busy, Where, block_order, units_by_gpc
from tilewright.launch.step import Step, clustered
from tilewright.problem import GemmProblem

_MULTIPROCESSORS, _SMEM_OF_MULTIPROCESSOR = 16, 81  # CUdevice_attribute
_PATIENCE_S = 0.1
_MOST_REFUSALS = 8  # of a device, before it is asked no more
_LARGEST_CLUSTER = 16

Order = ctypes.c_uint8 * MOST_CLUSTERS
AS_NUMBERED = Order(*range(MOST_CLUSTERS))


class Placements:
    """What launches told of the devices of this process; for any thread."""

    def __init__(self) -> None:
        self.forget()
        forks.watch(self)

    def forget(self) -> None:
        """Ask again."""
        self._lock = threading.Lock()
        # By device, orders by the shape of launch as well.
        self._by_gpc: dict[int, list[int]] = {}
        self._orders: dict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]] = {}
        self._refusals: Counter[int] = Counter()
        self._words: driver.SharedWords | None = None

    def after_fork(self) -> None:
        """A child has none of its parent's contexts."""
        self.forget()

    def order(
        self, function: ctypes.c_void_p, entry: str, plan: LaunchPlan, problem: GemmProblem
    ) -> ctypes.Array[ctypes.c_uint8]:
        """The place of each cluster of a launch in the list of work: blocks of a GPC take neighbouring work.

        As clusters are numbered where the device does not place them alike twice, or is busy; the next kernel
        that is bound asks again, a few times.

        Args:
            function, entry: the kernel of :class:`tilewright.artifact.BlockOrder`.

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
        with self._lock:
            if key not in self._orders and self._refusals[device] < _MOST_REFUSALS:
                places = self._ask(function, entry, plan, (device, blocks, cluster))
                if places is None:
                    self._refusals[device] += 1
                else:
                    self._orders[key] = Order(*places)
            return self._orders.get(key, AS_NUMBERED)

    def _ask(
        self, function: ctypes.c_void_p, entry: str, plan: LaunchPlan, launch: tuple[int, int, int]
    ) -> list[int] | None:
        device, blocks, cluster = launch
        try:
            with self._asking(function, entry, plan, device) as where:
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
    def _asking(
        self, function: ctypes.c_void_p, entry: str, plan: LaunchPlan, device: int
    ) -> Iterator[Where]:
        # NOTE: more than half of the shared memory, so that no multiprocessor takes two blocks.
        smem = max(plan.dynamic_smem, driver.device_attribute(device, _SMEM_OF_MULTIPROCESSOR) // 2 + 1)
        for attribute, value in (
            (driver.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE, smem),
            (driver.FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTERS, 1),
        ):
            driver.check(driver.libcuda().cuFuncSetAttribute(function, attribute, value), f"prepare {entry}")
        with driver.outside_capture(), driver.private_stream() as stream:
            words = self._words or driver.shared_words(_LARGEST_CLUSTER * MOST_CLUSTERS)
            self._words = None  # NOTE: a launch that was given up may still write to them
            end = time.monotonic() + _PATIENCE_S

            def where(blocks: int, cluster: int) -> list[int]:
                address = ctypes.c_void_p(ctypes.addressof(words))
                Step(function, entry, [address], ((blocks, 1, 1), plan.block, smem), clustered(cluster))(
                    stream.value or 0
                )
                while not driver.is_over(stream):
                    if time.monotonic() > end:
                        raise Busy(f"no room for {entry} within {_PATIENCE_S} s")
                return words[:blocks]

            yield where
            self._words = words


PLACEMENTS = Placements()
