"""Whether a service under mixed load for hours keeps its memory, descriptors and threads.

    python -m benchmarks.service.soak --minutes 100 --out benchmarks/results/soak-2cores.json

Starts ``tilewright serve`` on a SQLite database with ``--trials`` trials and asks it ``--rate`` requests a
second of every kind: lookups, config sets after a winner changed, misses, exports, pages, small GEMMs,
requests that are broken. Beside them visitors follow a job's events for a while, or hang up in the middle of
a request or an answer, and every minute a small job runs on the host; every third is cancelled.

What the service holds is read every five seconds, its children apart. A row has the least of a minute, so
that what a request holds for its duration does not count; the file is written after each row. ``slopes`` are
Theil-Sen over the rows after the warm-up, by the hour. Exit status 1: descriptors, threads or child processes
grew, memory grew by more than 1 MB an hour for certain, or a request got another status than it must get.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.growth import descendants, file_bytes, holdings, slope
from benchmarks.common.results import commit, machine_facts, now, write_json
from benchmarks.common.serving import Serving, serving
from benchmarks.service.lookup_fill import fill
from benchmarks.service.mixed_load import Asked, Load
from tuner.measure.stats import CONFIDENCE

PERIOD_S = 5.0
MB_AN_HOUR = 1.0
TRIALS_A_JOB = 100
_MEMORY, _COUNTS = ("rss_mb", "pss_mb", "uss_mb"), ("fds", "threads")
_OF_CHILDREN = ("rss_mb", *_COUNTS, "processes")
_ENDED = "the service ended"
_SHOWN = ("minute", "rss_mb", *_COUNTS, "cpu", "requests", "unexpected", "lookup_ms")
Held = dict[str, float]


class Watch:
    """What a service held, minute by minute."""

    def __init__(self, server: Serving, folder: Path, asked: Asked) -> None:
        self.rows: list[dict[str, Any]] = []
        self._server, self._folder, self._asked = server, folder, asked
        self._began, self._spent = time.monotonic(), server.cpu_seconds()

    def row(self, seconds: float) -> None:
        """Watch for so long and add a row."""
        until, held, children = time.monotonic() + seconds, list[Held](), list[Held]()
        while not held or time.monotonic() < until:
            held.append(holdings([self._server.pid]))
            children.append(holdings(descendants(self._server.pid)))
            time.sleep(max(0.0, min(PERIOD_S, until - time.monotonic())))
        spent, ended = self._server.cpu_seconds(), time.monotonic()
        self.rows.append(
            {
                "minute": round((ended - self._began) / 60, 2),
                **_least(held),
                "most": {name: max(one[name] for one in held) for name in _COUNTS},
                "children": _least(children),
                "database_bytes": file_bytes(*self._folder.glob("soak.db*")),
                "cache_bytes": file_bytes(self._folder / "cache"),
                "cpu": round((spent - self._spent) / seconds, 3),
                **self._asked.since_last(),
            }
        )
        self._spent = spent

    def slopes(self, warm_up: float) -> dict[str, Any]:
        """What the service's holdings grew by in an hour, after so many minutes; nothing before two rows."""
        rows = [row for row in self.rows if row["minute"] > warm_up]
        if len(rows) < 2:
            return {}
        of_children = [{"minute": row["minute"], **row["children"]} for row in rows]
        return {**_slopes(rows, (*_MEMORY, *_COUNTS)), "children": _slopes(of_children, _OF_CHILDREN)}


def _least(held: list[Held]) -> Held:
    return {name: min(one[name] for one in held) for name in held[0]}


def _slopes(rows: list[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    hours = [row["minute"] / 60 for row in rows]
    found = {name: slope(hours, [row[name] for row in rows]) for name in names}
    return {
        name: {"per_hour": round(one.value, 3), "interval": [round(one.low, 3), round(one.high, 3)]}
        for name, one in found.items()
    }


def faults(rows: list[dict[str, Any]], slopes: dict[str, Any]) -> list[str]:
    """What a service must not do and did."""
    unexpected = rows[-1]["unexpected"]
    found = [f"{unexpected} answers were unexpected"] if unexpected else []
    if not rows[-1]["processes"]:
        return [*found, _ENDED]
    if not slopes:
        return found
    held = {**{name: slopes[name] for name in _COUNTS}, "child processes": slopes["children"]["processes"]}
    found += [f"{name} grow" for name, one in held.items() if one["interval"][0] > 0]
    if slopes["rss_mb"]["interval"][0] > MB_AN_HOUR:
        found.append(f"memory grows by more than {MB_AN_HOUR} MB an hour")
    return found


def soak(folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What was found so far, row by row; the service keeps its files in the folder."""
    url, asked = f"sqlite:///{folder}/soak.db", Asked()
    filled = fill(url, arguments.trials, TRIALS_A_JOB)
    environment = {
        "TILEWRIGHT_CACHE_DIR": f"{folder}/cache",
        "TILEWRIGHT_LOCK_DIR": str(folder),
        "TILEWRIGHT_LOG_LEVEL": "warning",
    }
    with (
        serving(url, "--device", "host", log=arguments.log, **environment) as server,
        Load(server.url, url, filled, asked, arguments.rate),
    ):
        watch = Watch(server, folder, asked)
        for _ in range(round(60 * arguments.minutes / arguments.row)):
            watch.row(arguments.row)
            slopes = watch.slopes(arguments.warm_up)
            found = faults(watch.rows, slopes)
            yield {
                "faults": found,
                "slopes": slopes,
                "unexpected": asked.unexpected,
                "asked": asked.totals(),
                "rows": watch.rows,
            }
            if _ENDED in found:
                return


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=15.0, help="minutes whose rows do not count")
    parser.add_argument("--row", type=float, default=60.0, help="seconds of a row")
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second of all callers")
    parser.add_argument("--trials", type=int, default=50_000, help="in the database at the start")
    parser.add_argument("--log", action="store_true", help="show the service's warnings")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = {name: getattr(arguments, name) for name in ("minutes", "warm_up", "row", "rate", "trials")}
    facts = {
        "date": now(),
        "commit": commit(),
        "machine": machine_facts(),
        **chosen,
        "confidence": CONFIDENCE,
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for found in soak(Path(folder), arguments):
            if arguments.out:
                write_json(arguments.out, facts | found)
            sys.stderr.write(", ".join(f"{name} {found['rows'][-1][name]}" for name in _SHOWN) + "\n")
    shown = {name: found[name] for name in ("slopes", "unexpected", "faults")}
    sys.stdout.write(f"{json.dumps(shown, indent=1)}\n")
    raise SystemExit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
