"""Whether a service under mixed load for hours keeps its memory, descriptors and threads.

    python -m benchmarks.service.soak --minutes 100 --out benchmarks/results/soak-2cores.json

Starts ``tilewright serve`` on a SQLite database with ``--trials`` trials and asks it some 12 requests a
second of every kind: lookups, config sets after a winner changed, misses, exports, pages, small GEMMs,
requests that are broken. Beside them visitors follow a job's events for a while, or hang up in the middle of
a request or an answer, and every minute a small job runs on the host; every third is cancelled.

What the service holds is read every five seconds, its children apart. A row has the least of a minute, so
that what a request holds for its duration does not count; the file is written after each row. ``slopes`` are
Theil-Sen over the rows after the warm-up, by the hour. Exit status 1: descriptors or threads grew, memory
grew by more than 1 MB an hour for certain, or an answer had another status than its request must get.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common.growth import descendants, file_bytes, holdings, slope
from benchmarks.common.results import commit, machine_facts, now, write_json
from benchmarks.common.serving import Serving, serving
from benchmarks.service.lookup_fill import fill
from benchmarks.service.soak_load import Asked, Load

PERIOD_S, ROW_S = 5.0, 60.0
MB_AN_HOUR = 1.0
_COUNTS = ("fds", "threads")
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
        """What each of the service's holdings grew by in an hour, after so many minutes."""
        rows = [row for row in self.rows if row["minute"] > warm_up]
        if len(rows) < 2:
            return {}
        return {
            **_slopes(rows, ("rss_mb", "pss_mb", "uss_mb", *_COUNTS)),
            "children": _slopes([{"minute": row["minute"], **row["children"]} for row in rows]),
        }


def _least(held: list[Held]) -> Held:
    return {name: min(one[name] for one in held) for name in held[0]}


def _slopes(rows: list[dict[str, Any]], names: tuple[str, ...] = ("rss_mb", *_COUNTS)) -> dict[str, Any]:
    hours = [row["minute"] / 60 for row in rows]
    found = {name: slope(hours, [row[name] for row in rows]) for name in names}
    return {
        name: {"per_hour": round(one.value, 3), "interval": [round(one.low, 3), round(one.high, 3)]}
        for name, one in found.items()
    }


def faults(slopes: dict[str, Any], unexpected: int) -> list[str]:
    """What a service must not do and did."""
    found = [f"{name} grow" for name in _COUNTS if slopes and slopes[name]["interval"][0] > 0]
    if slopes and slopes["rss_mb"]["interval"][0] > MB_AN_HOUR:
        found.append(f"memory grows by more than {MB_AN_HOUR} MB an hour")
    return found + ([f"{unexpected} answers were unexpected"] if unexpected else [])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, help="minutes; a quarter of all, 15 at most, unless given")
    parser.add_argument("--trials", type=int, default=50_000, help="in the database at the start")
    parser.add_argument("--row", type=float, default=ROW_S, help="seconds of a row")
    parser.add_argument("--log", action="store_true", help="show the service's log")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warm_up = arguments.warm_up if arguments.warm_up is not None else min(15.0, arguments.minutes / 4)
    result: dict[str, Any] = {
        "date": now(),
        "commit": commit(),
        "machine": machine_facts(),
        "trials": arguments.trials,
        "warm_up_minutes": warm_up,
        "confidence": 0.99,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url, cache = f"sqlite:///{folder}/soak.db", str(folder / "cache")
        filled = fill(url, arguments.trials, trials_a_job=100)
        environment = {
            "TILEWRIGHT_CACHE_DIR": cache,
            "TILEWRIGHT_LOCK_DIR": name,
            "TILEWRIGHT_LOG_LEVEL": "warning",
        }
        with serving(url, "--device", "host", log=arguments.log, **environment) as server:
            asked = Asked()
            with Load(server.url, url, filled, asked):
                watch = Watch(server, folder, asked)
                for _ in range(max(1, round(60 * arguments.minutes / arguments.row))):
                    watch.row(arguments.row)
                    slopes = watch.slopes(warm_up)
                    result |= {"slopes": slopes, "faults": faults(slopes, asked.unexpected_count)}
                    result |= {"asked": asked.totals(), "unexpected": asked.unexpected, "rows": watch.rows}
                    if arguments.out:
                        write_json(arguments.out, result)
                    _tell(watch.rows[-1])
    sys.stdout.write(f"{result['slopes']}\n{result['faults']}\n")
    raise SystemExit(1 if result["faults"] else 0)


def _tell(row: dict[str, Any]) -> None:
    shown = ("minute", "rss_mb", "fds", "threads", "cpu", "requests", "unexpected", "lookup_ms")
    sys.stderr.write(", ".join(f"{name} {row[name]}" for name in shown) + "\n")


if __name__ == "__main__":
    main()
