"""What a process holds - memory, descriptors, threads - and how fast that grows."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tuner.measure.stats import CONFIDENCE, Interval

_PROC = Path("/proc")
_MEMORY = {"rss_mb": ("Rss",), "pss_mb": ("Pss",), "uss_mb": ("Private_Clean", "Private_Dirty")}


def holdings(pids: Sequence[int]) -> dict[str, float]:
    """Memory in MB, open descriptors and threads of these processes in sum; one that ended holds nothing."""
    total = dict.fromkeys((*_MEMORY, "fds", "threads", "processes"), 0.0)
    for pid in pids:
        with contextlib.suppress(OSError):
            for name, amount in _holdings(_PROC / str(pid)).items():
                total[name] += amount
    return {name: round(amount, 3) for name, amount in total.items()}


def _holdings(process: Path) -> dict[str, float]:
    pairs = (line.split()[:2] for line in (process / "smaps_rollup").read_text().splitlines()[1:])
    memory = {name.rstrip(":"): int(kib) for name, kib in pairs}
    found = {name: sum(memory[part] for part in parts) * 1024 / 1e6 for name, parts in _MEMORY.items()}
    counts = {
        "fds": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }
    return {**found, **counts, "processes": 1}


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    children = defaultdict[int, list[int]](list)
    for one in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (one / "stat").read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(one.name))
    found = list(children[pid])
    for child in found:
        found += children[child]
    return found


def file_bytes(*paths: Path) -> int:
    """Bytes of these files and of all files in these folders; what is not there, or goes meanwhile, is 0."""
    total = 0
    for path in itertools.chain.from_iterable((path, *path.rglob("*")) for path in paths):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def slope(times: Sequence[float], values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of the slopes between any two points (Theil-Sen) and its interval after Sen.

    The interval holds for scatter that is independent from point to point. Equal values count as such: it is
    0 to 0 for a count that hardly ever changes.

    Raises:
        ValueError: there are fewer than two points.
    """
    count = len(values)
    pairs = itertools.combinations(zip(times, values, strict=True), 2)
    slopes = sorted((b - a) / (after - before) for (before, a), (after, b) in pairs)
    if not slopes:
        raise ValueError(f"a slope needs two or more points, got {count}")
    scatter = math.sqrt((_pairs(count) - sum(_pairs(values.count(value)) for value in set(values))) / 18)
    reach = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * scatter
    low = max(0, math.floor((len(slopes) - reach) / 2))
    return Interval(statistics.median(slopes), slopes[low], slopes[-1 - low], confidence)


def _pairs(count: int) -> int:
    """18 times the variance of Kendall's S of so many points without ties."""
    return count * (count - 1) * (2 * count + 5)
