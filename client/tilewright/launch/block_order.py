"""Which work each cluster of blocks takes, so that the blocks of a GPC work side by side.

Multiprocessors of one GPC that ask for the same lines at the same time are served by one request to the L2. A
launch onto an idle GPU puts its clusters on the same multiprocessors each time, but neighbours mostly on
different GPCs. The driver does not tell which multiprocessors form a GPC; a cluster never runs on two, so
clusters of several sizes show it. What is found here is an order of the work: a wrong one is slower, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.errors import LaunchError

_SIZES = (16, 14, 12, 10, 8, 6, 4, 2)  # blocks of a cluster
_TRIES = 3

Where = Callable[[int, int], Sequence[int]]
"""(blocks, blocks of a cluster) -> the multiprocessor of each block of a launch.

Raises Busy where the GPU has no room for now, another LaunchError where it has no such clusters."""


class Busy(LaunchError):
    """The GPU had no room for a launch within the time it was given."""


def units_by_gpc(where: Where, units: int) -> list[int] | None:
    """All multiprocessors, those of a GPC together, larger GPCs first; None where two looks differ or do not
    show all, as on a busy GPU.

    Args:
        units: how many the device has.

    Raises:
        Busy: the GPU had no room.
        LaunchError: the context is broken.
    """
    first, second = _gpcs(where, units), _gpcs(where, units)
    found = [unit for gpc in first for unit in gpc]
    return found if first == second and len(found) == units else None


def block_order(where: Where, by_gpc: Sequence[int], blocks: int, cluster: int) -> list[int] | None:
    """The place of each cluster in the list of work, 0 .. clusters - 1; None where launches differ.

    Args:
        by_gpc: as :func:`units_by_gpc` has them.
        blocks, cluster: of the launch, and of a cluster.
    """
    rank = {unit: place for place, unit in enumerate(by_gpc)}
    for _ in range(_TRIES):
        placed, again = list(where(blocks, cluster)), list(where(blocks, cluster))
        heads = placed[::cluster]
        if placed == again and len(set(placed)) == blocks and rank.keys() >= set(heads):
            order = sorted(range(len(heads)), key=lambda index: rank[heads[index]])
            places = [0] * len(heads)
            for place, index in enumerate(order):
                places[index] = place
            return places
    return None


def _gpcs(where: Where, units: int) -> list[list[int]]:
    seen: list[set[int]] = []
    for size in _SIZES:
        try:
            placed = where(units // size * size, size)
        except LaunchError as error:
            if error.sticky or isinstance(error, Busy):
                raise
            continue  # no GPC is so large, or clusters are not
        for first in range(0, len(placed), size):
            _join(seen, placed[first : first + size])
    return [sorted(gpc) for gpc in sorted(seen, key=lambda one: (-len(one), min(one)))]


def _join(groups: list[set[int]], members: Iterable[int]) -> None:
    together = set(members)
    for group in [group for group in groups if group & together]:
        groups.remove(group)
        together |= group
    groups.append(together)
