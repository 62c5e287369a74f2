"""Kill parts of fleets at random moments: ``make faults-fleet``; results are written as they come.

Each moment has a job of its own; see :mod:`fleet_faults` for what the jobs do and :class:`fleet_faults.Count`
for what is counted of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
import ray
from fleet_faults import KINDS, LEASE_S, NODES, Count, Lab

from benchmarks.common.results import commit, machine_facts, now, write_json
from tilewright import __version__

_ATTEMPTS = 20  # to meet a job at work
_spawn = multiprocessing.get_context("spawn")


def strike(
    kinds: Sequence[str], clusters: int, seconds: float, told: Callable[[Count | dict[str, Any]], None]
) -> list[str]:
    """Strike each of ``kinds`` at one moment, in the order given, with so many clusters side by side, and say
    what the jobs of each cluster are and what each moment did; what was begun within ``seconds`` ends.

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
            if isinstance(said, str):
                wrong.append(said)
            else:
                told(said)
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
            found.send(lab.facts())
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


def _facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run rests on, but for the jobs."""
    return {
        "date": now(),
        "commit": arguments.commit or commit(),
        "command": f"make faults-fleet ARGS='--moments {arguments.moments} --clusters {arguments.clusters}'",
        "machine": machine_facts(),
        "versions": {
            "tilewright": __version__,
            "ray": ray.__version__,
            "postgresql": postgres_server.version(),
        },
        "clusters": arguments.clusters,
        "nodes_a_cluster": NODES,
        "lease_s": LEASE_S,
    }


def main() -> None:
    """Strike ``--moments`` times with each kind of fault."""
    parser = argparse.ArgumentParser(description="Kills parts of fleets at random moments.")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--clusters", type=int, default=1, help="side by side, three nodes each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which none is begun")
    parser.add_argument("--commit", help="of this code, where git does not know it")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if postgres_server.find_binaries() is None:
        parser.error("there is no PostgreSQL here: install the package 'postgresql'")
    kinds = arguments.kinds.split(",")
    counts = {kind: Count(kind) for kind in kinds}
    started, facts = time.monotonic(), _facts(arguments)

    def tell(said: Count | dict[str, Any]) -> None:
        if isinstance(said, dict):
            facts.update(said)
            return
        counts[said.kind] += said
        rows = [dataclasses.asdict(one) for one in counts.values()]
        write_json(arguments.out, {**facts, "seconds": round(time.monotonic() - started), "faults": rows})
        print(f"{time.monotonic() - started:.0f} s: {counts[said.kind]}", file=sys.stderr, flush=True)  # noqa: T201

    wrong = strike(kinds * arguments.moments, arguments.clusters, arguments.seconds, tell)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
