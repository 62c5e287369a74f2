"""An import of 60 MiB: seconds, memory of the service, the longest wait of another writer, lookups meanwhile.

    PYTHONPATH=.:client:tests/support:tests/support/faults:tests/support/servers:tests/support/samples \\
        python tests/faults/soak/large_import.py --out benchmarks/results/import-60mib.json

A service on SQLite, trials of about 170 bytes each that nobody signed, a process that takes the database's
lock every 20 ms, and one that looks up winners at 100 a second, each timed from when it was due. Exits with 1
if the memory grew by more than 50 MiB or the writer waited for longer than a second.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from api_server import finish, start
from contention import spread
from measured_import import measure

from benchmarks.common.results import machine_facts, now, tell

MOST_GROWTH_MIB, LONGEST_HOLD_S = 50.0, 1.0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--mib", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    facts = {
        "date": now(),
        "command": f"python tests/faults/soak/large_import.py --mib {arguments.mib}",
        "machine": machine_facts(),
    }
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), retune_stale=False)
        try:
            measured = measure(server, arguments.mib * 2**20)
        finally:
            finish(server)
    found: dict[str, Any] = {
        "mib": arguments.mib,
        "trials": measured.trials,
        "seconds": round(measured.seconds, 1),
        "writer_waited_s": round(measured.held_s, 3),
        "memory_grew_mib": round(measured.grown_bytes / 2**20, 1),
        "lookups": len(measured.lookup_s),
        "lookup": spread(measured.lookup_s),
    }
    tell(facts | found, arguments.out)
    sys.exit(found["memory_grew_mib"] > MOST_GROWTH_MIB or found["writer_waited_s"] > LONGEST_HOLD_S)


if __name__ == "__main__":
    main()
