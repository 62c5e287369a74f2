"""Where the GPU places the blocks of a kernel, found by launches that tell; kept for the process.

It takes some milliseconds for the first kernel of a device, less than one for each further shape of launch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.artifact import MOST_CLUSTERS, LaunchPlan
from tilewright.errors import LaunchError
from tilewright.launch import driver
from tilewright.launch.block_order import Where, block_order, neighbours
from tilewright.launch.step import Step, clustered
from tilewright.problem import GemmProblem

_MULTIPROCESSORS = 16  # CUdevice_attribute
_MOST_BLOCKS = 16 * MOST_CLUSTERS

Order = ctypes.c_uint8 * MOST_CLUSTERS
_AS_NUMBERED = Order(*range(MOST_CLUSTERS))

_along: dict[int, list[int]] = {}  # by device
_orders: dict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]] = {}  # by device and shape of launch


def order(
    function: ctypes.c_void_p, entry: str, plan: LaunchPlan, problem: GemmProblem
) -> ctypes.Array[ctypes.c_uint8]:
    """The place of each cluster of a launch in the list of work: blocks of a GPC take neighbouring work.

    As clusters are numbered where the GPU cannot be asked, or does not place them alike twice because it is
    busy; then the next call asks again.

    Args:
        function, entry: the kernel of :class:`tilewright.artifact.BlockOrder`.

    Raises:
        LaunchError: the context is broken.
    """
    device, blocks, cluster = driver.ensure_context(), plan.grid.blocks(problem)[0], math.prod(plan.cluster)
    key = (device, blocks, cluster, *plan.block, plan.dynamic_smem)
    if key not in _orders:
        try:
            with _asking(function, entry, plan) as where:
                places = block_order(where, _neighbours(where, device), blocks, cluster)
        except LaunchError as error:
            if error.sticky:
                raise
            places = None
        if places is None:
            return _AS_NUMBERED
        _orders[key] = Order(*places)
    return _orders[key]


def _neighbours(where: Where, device: int) -> list[int]:
    if device not in _along:
        units = driver.device_attribute(device, _MULTIPROCESSORS)
        along = neighbours(where, units)
        if len(along) < units:
            return along  # a busy GPU does not show all of them
        _along[device] = along
    return _along[device]


@contextmanager
def _asking(function: ctypes.c_void_p, entry: str, plan: LaunchPlan) -> Iterator[Where]:
    for attribute, value in (
        (driver.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE, plan.dynamic_smem),
        (driver.FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTERS, 1),
    ):
        driver.check(driver.libcuda().cuFuncSetAttribute(function, attribute, value), f"prepare {entry}")
    with (
        driver.outside_capture(),
        driver.private_stream() as stream,
        driver.shared_words(_MOST_BLOCKS) as words,
    ):

        def where(blocks: int, cluster: int) -> list[int]:
            shape = ((blocks, 1, 1), plan.block, plan.dynamic_smem)
            address = ctypes.c_void_p(ctypes.addressof(words))
            Step(function, entry, [address], shape, clustered(cluster))(stream.value or 0)
            driver.check(driver.libcuda().cuStreamSynchronize(stream), f"run {entry}")
            return words[:blocks]

        yield where
