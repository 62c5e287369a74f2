"""CTA orders: the first work tile of each cluster of CTAs, so that a GPC computes neighbouring tiles.

SMs of one GPC that load the same lines at the same time are served by one request to the L2. A launch onto an
idle GPU puts its clusters on the same SMs each time, but neighbouring clusters mostly on different GPCs. The
driver does not report which SMs form a GPC, but a cluster never spans two, so probe launches with clusters of
several sizes show it. The result is an order of the work: a wrong order is slower, never incorrect.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tilewright import forks
from tilewright.artifact import MOST_CLUSTERS, LaunchPlan
from tilewright.backoff import Backoff
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.slots import Step, clustered
from tilewright.schema.problem import GemmProblem

_CLUSTER_SIZES = (16, 14, 12, 10, 8, 6, 4, 2)  # CTAs
_TRIES = 3

Probe = Callable[[int, int], Sequence[int]]
"""(CTAs, CTAs of a cluster) -> the SM of each CTA of a launch.

Raises Busy if the GPU has no room for now, another LaunchError if it has no such clusters."""


class Busy(LaunchError):
    """The GPU had no room for a launch within the time limit."""


def sms_by_gpc(probe: Probe, sm_count: int) -> list[int] | None:
    """All SMs, grouped by GPC, larger GPCs first; None if two probes differ or miss an SM, as on a busy GPU.

    Raises:
        Busy: the GPU had no room.
        LaunchError: the context is broken.
    """
    first, second = _gpcs(probe, sm_count), _gpcs(probe, sm_count)
    found = [sm for gpc in first for sm in gpc]
    return found if first == second and len(found) == sm_count else None


def cluster_order(probe: Probe, by_gpc: Sequence[int], ctas: int, cluster: int) -> list[int] | None:
    """The work tile of each cluster, 0 .. clusters - 1; None if launches differ.

    Args:
        by_gpc: the result of :func:`sms_by_gpc`.
        ctas, cluster: CTAs of the launch and of a cluster.
    """
    rank = {sm: place for place, sm in enumerate(by_gpc)}
    for _ in range(_TRIES):
        placed, again = list(probe(ctas, cluster)), list(probe(ctas, cluster))
        heads = placed[::cluster]
        if placed == again and len(set(placed)) == ctas and rank.keys() >= set(heads):
            order = sorted(range(len(heads)), key=lambda index: rank[heads[index]])
            places = [0] * len(heads)
            for place, index in enumerate(order):
                places[index] = place
            return places
    return None


def _gpcs(probe: Probe, sm_count: int) -> list[list[int]]:
    seen: list[set[int]] = []
    for size in _CLUSTER_SIZES:
        try:
            placed = probe(sm_count // size * size, size)
        except LaunchError as error:
            if error.sticky or isinstance(error, Busy):
                raise
            continue  # no GPC is this large, or the device does not support such clusters
        for first in range(0, len(placed), size):
            _join(seen, placed[first : first + size])
    return [sorted(gpc) for gpc in sorted(seen, key=lambda one: (-len(one), min(one)))]


def _join(groups: list[set[int]], members: Iterable[int]) -> None:
    together = set(members)
    for group in [group for group in groups if group & together]:
        groups.remove(group)
        together |= group
    groups.append(together)


_SM_COUNT, _SMEM_PER_SM = 16, 81  # CUdevice_attribute
_PATIENCE_S = 0.1
_LARGEST_CLUSTER = 16

Order = ctypes.c_uint8 * MOST_CLUSTERS
AS_NUMBERED = Order(*range(MOST_CLUSTERS))
Kernels = Callable[[str], ctypes.c_void_p]
"""Kernels of a cubin by their symbol."""


class CtaOrders:
    """The CTA orders of this process's devices, probed once for each shape of launch; thread-safe.

    Attributes:
        refused: number of kernels whose clusters run as numbered, because the probes gave no order.
    """

    def __init__(self) -> None:
        self.forget()
        forks.watch(self)

    def forget(self) -> None:
        """Drop all orders, so that the next launch probes again."""
        self.refused = 0
        self._lock = threading.Lock()
        self._by_gpc: dict[int, list[int]] = {}  # by device; orders also by the shape of the launch
        self._orders: dict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]] = {}
        self._backoffs: defaultdict[tuple[int, ...], Backoff] = defaultdict(Backoff)

    def after_fork(self) -> None:
        """Drop the orders: a child has no CUDA context of its parent."""
        self.forget()

    def order(
        self, kernels: Kernels, entry: str, plan: LaunchPlan, problem: GemmProblem
    ) -> ctypes.Array[ctypes.c_uint8]:
        """The work tile of each cluster of a launch: CTAs of a GPC take neighbouring work tiles.

        Clusters run as numbered if the device is busy or two launches differ. The next kernel that is bound
        probes again, after many failures in a row only after a pause.

        Args:
            kernels, entry: the probe kernel of :class:`tilewright.artifact.CtaOrder`.

        Raises:
            PreconditionFailed: the launch has more clusters than an order holds.
            LaunchError: the context is broken.
        """
        device = driver.ensure_context()
        ctas, cluster = plan.grid.ctas(problem)[0], math.prod(plan.cluster)
        if ctas // cluster > MOST_CLUSTERS:
            raise PreconditionFailed(
                f"{plan.entry} has {ctas // cluster} clusters; a CTA order holds at most {MOST_CLUSTERS}"
            )
        key = (device, ctas, cluster, *plan.block, plan.dynamic_smem)
        known = self._orders.get(key)
        return known if known is not None else self._find(key, kernels, entry, plan)

    def _find(
        self, key: tuple[int, ...], kernels: Kernels, entry: str, plan: LaunchPlan
    ) -> ctypes.Array[ctypes.c_uint8]:
        device, ctas, cluster = key[:3]
        with self._lock:
            backoff = self._backoffs[key]
            if key not in self._orders and not backoff.open:
                places = self._probe(kernels, entry, plan, (device, ctas, cluster))
                if places is None:
                    backoff.failed()
                else:
                    backoff.succeeded()
                    self._orders[key] = Order(*places)
            found = self._orders.get(key, AS_NUMBERED)
            self.refused += found is AS_NUMBERED
            return found

    def _probe(
        self, kernels: Kernels, entry: str, plan: LaunchPlan, launch: tuple[int, int, int]
    ) -> list[int] | None:
        device, ctas, cluster = launch
        try:
            with _probing(kernels, entry, plan, device) as probe:
                if device not in self._by_gpc:
                    found = sms_by_gpc(probe, driver.device_attribute(device, _SM_COUNT))
                    if found is None:
                        return None
                    self._by_gpc[device] = found
                return cluster_order(probe, self._by_gpc[device], ctas, cluster)
        except LaunchError as error:
            if error.sticky:
                raise
            return None


@contextmanager
def _probing(kernels: Kernels, entry: str, plan: LaunchPlan, device: int) -> Iterator[Probe]:
    # NOTE: more than half of the shared memory, so that no SM takes two CTAs.
    smem = max(plan.dynamic_smem, driver.device_attribute(device, _SMEM_PER_SM) // 2 + 1)
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

        def probe(ctas: int, cluster: int) -> list[int]:
            shape = ((ctas, 1, 1), plan.block, smem)
            Step(function, entry, [ctypes.c_void_p(address)], shape, clustered(cluster))(stream.value or 0)
            while not driver.is_over(stream):
                if time.monotonic() > end:
                    raise Busy(f"no room for {entry} within {_PATIENCE_S} s")
            return driver.read_words(address, ctas, stream)

        yield probe


CTA_ORDERS = CtaOrders()
