"""Kill parts of fleets at random moments: ``make faults-fleet``; results are written as they come."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fleet_cluster
import postgres_server
from fleet_faults import KINDS, Count, Lab

_spawn = multiprocessing.get_context("spawn")


def strike(kinds: Sequence[str], clusters: int, seconds: float, told: Callable[[Count], None]) -> list[str]:
    """Strike each of ``kinds`` at one moment, in the order given, with so many clusters side by side, and say
    what each moment did; what was begun within ``seconds`` ends.

    Returns:
        The errors that ended the work of a cluster; other clusters do the rest.
    """
    todo, found = _spawn.SimpleQueue(), _spawn.SimpleQueue()
    for kind in (*kinds, *[""] * clusters):
        todo.put(kind)
    wrong = []
    with contextlib.ExitStack() as started:
        for _ in range(clusters):
            process = _spawn.Process(target=_work, args=(todo, time.time() + seconds, found))
            process.start()
            started.callback(process.join)
        going = clusters
        while going:
            said = found.get()
            if isinstance(said, Count):
                told(said)
            else:
                going -= 1
                wrong += [said] if said else []
    return wrong


def _work(todo: Any, until: float, found: Any) -> None:
    """Strike a cluster and a database of this process, and tell each moment and, at last, what went wrong."""
    wrong = ""
    try:
        binaries = postgres_server.find_binaries()
        assert binaries is not None
        with (
            tempfile.TemporaryDirectory() as named,
            postgres_server.running(binaries) as database,
            fleet_cluster.running(Path(named)) as fleet,
            contextlib.closing(Lab(fleet, database)) as lab,
        ):
            while (kind := todo.get()) and time.time() < until:
                count = Count(kind)
                while not count.moments and time.time() < until:
                    lab.strike(count)
                found.put(count)
    except Exception:
        wrong = traceback.format_exc()
    finally:
        found.put(wrong)


def main() -> None:
    """Strike ``--moments`` times with each kind of fault."""
    parser = argparse.ArgumentParser(description="Kills parts of fleets at random moments.")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--clusters", type=int, default=1, help="side by side, three nodes each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which none is begun")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if postgres_server.find_binaries() is None:
        parser.error("there is no PostgreSQL here: install the package 'postgresql'")
    kinds = arguments.kinds.split(",")
    counts = {kind: Count(kind) for kind in kinds}
    started = time.monotonic()

    def tell(count: Count) -> None:
        counts[count.kind] += count
        found = {"clusters": arguments.clusters, "seconds": round(time.monotonic() - started)}
        rows = [dataclasses.asdict(one) for one in counts.values()]
        arguments.out.write_text(json.dumps({**found, "faults": rows}, indent=1) + "\n")
        print(f"{time.monotonic() - started:.0f} s: {counts[count.kind]}", file=sys.stderr, flush=True)  # noqa: T201

    wrong = strike(kinds * arguments.moments, arguments.clusters, arguments.seconds, tell)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
