"""Kill parts of fleets at random moments: ``make faults-fleet``; results are written as they come."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
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

_ATTEMPTS = 20  # to meet a job at work
_spawn = multiprocessing.get_context("spawn")


def strike(kinds: Sequence[str], clusters: int, seconds: float, told: Callable[[Count], None]) -> list[str]:
    """Strike each of ``kinds`` at one moment, in the order given, with so many clusters side by side, and say
    what each moment did; what was begun within ``seconds`` ends.

    Returns:
        The errors that ended the work of a cluster; other clusters do the rest.
    """
    todo = _spawn.SimpleQueue()
    for kind in (*kinds, *[""] * clusters):
        todo.put(kind)
    going, wrong = {}, []
    for _ in range(clusters):
        receiver, sender = _spawn.Pipe(duplex=False)
        process = _spawn.Process(target=_work, args=(todo, time.time() + seconds, sender))
        process.start()
        sender.close()  # NOTE: else the pipe would not end with the process
        going[receiver] = process
    while going:
        for receiver in multiprocessing.connection.wait(list(going)):
            try:
                said = receiver.recv()
            except EOFError:
                process = going.pop(receiver)
                process.join()
                wrong += [f"a cluster's process ended with {process.exitcode}"] if process.exitcode else []
                continue
            if isinstance(said, Count):
                told(said)
            else:
                wrong.append(said)
    return wrong


def _work(todo: Any, until: float, found: Any) -> None:
    """Strike a cluster and a database of this process, and tell each moment and what went wrong."""
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
                found.send(_struck(lab, kind, until))
    except Exception:
        found.send(traceback.format_exc())


def _struck(lab: Lab, kind: str, until: float) -> Count:
    """What a moment did; without one where ``until`` came before.

    Raises:
        RuntimeError: no job was met at work.
    """
    count = Count(kind)
    for _ in range(_ATTEMPTS):
        lab.strike(count)
        if count.moments or time.time() > until:
            return count
    raise RuntimeError(
        f"no job was met at work in {_ATTEMPTS} attempts with fault {kind!r}; see why none runs"
    )


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
