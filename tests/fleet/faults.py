"""Kill parts of a fleet at random moments: ``make faults-fleet``; results are written as they come."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import fleet_cluster
import postgres_server
from fleet_faults import KINDS, Count, Lab


def main() -> None:
    """Strike ``--moments`` times with each kind of fault."""
    parser = argparse.ArgumentParser(description="Kills parts of a fleet at random moments.")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    counts = []
    binaries = postgres_server.find_binaries()
    if binaries is None:
        parser.error("there is no PostgreSQL here: install the package 'postgresql'")
    with (
        tempfile.TemporaryDirectory() as named,
        postgres_server.running(binaries) as database,
        fleet_cluster.running(Path(named)) as fleet,
    ):
        lab = Lab(fleet, database)
        try:
            for kind in arguments.kinds.split(","):
                counts.append(Count(kind))
                while counts[-1].moments < arguments.moments:
                    lab.strike(counts[-1])
                    found = [dataclasses.asdict(one) for one in counts]
                    arguments.out.write_text(json.dumps({"faults": found}, indent=1) + "\n")
                print(counts[-1], file=sys.stderr, flush=True)  # noqa: T201
        finally:
            lab.close()


if __name__ == "__main__":
    main()
