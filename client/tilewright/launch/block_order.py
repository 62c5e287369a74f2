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
"""(blocks, blocks of a cluster) -> the multiprocessor of each block of a launch onto an idle GPU.

Raises LaunchError where there are no such clusters."""


def neighbours(where: Where, units: int) -> list[int]:
    """All multiprocessors that clusters were seen on, those of a GPC together, larger GPCs first.

    Args:
        units: how many the device has.
    """
    seen: list[set[int]] = []
    for size in _SIZES:
        try:
            placed = where(units // size * size, size)
        except LaunchError:
            continue
        for first in range(0, len(placed), size):
            _join(seen, placed[first : first + size])
    return [unit for gpc in sorted(seen, key=lambda one: (-len(one), min(one))) for unit in sorted(gpc)]


def block_order(where: Where, along: Sequence[int], blocks: int, cluster: int) -> list[int] | None:
    """The place of each cluster in the list of work, 0 .. clusters - 1; None where launches differ.

    Args:
        along: as :func:`neighbours` has them.
        blocks, cluster: of the launch, and of a cluster.
    """
    rank = {unit: place for place, unit in enumerate(along)}
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


def _join(groups: list[set[int]], members: Iterable[int]) -> None:
    together = set(members)
    for group in [group for group in groups if group & together]:
        groups.remove(group)
        together |= group
    groups.append(together)
