"""A worker to be killed: takes up the interrupted job and records trials until then.

usage: record_trials.py URL OWNER - prints ``resumed N`` and then each number after its commit.
"""

from __future__ import annotations

import itertools
import sys

from tilewright.artifact import Artifact, Grid, LaunchPlan, Resources, Serves
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Provenance, Timing, Trial
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.queue.owners import new_owner
from tuner.store.trials import JobRecorder

DEVICE_CLASS = sys.argv[2]
PROVENANCE = Provenance("a" * 64, "cc", "linux", DEVICE_CLASS, "0.1.0", "rotated-1")


def make(number: int) -> tuple[Trial, Artifact]:
    """A trial with an artifact of its own, large enough to span pages."""
    plan = LaunchPlan("elf", "cpu", "gemm", (1, 1, 1), Grid(8, 8), (), Serves.of(GemmProblem(8, 8, 8)))
    artifact = Artifact(plan, Resources(), "a" * 64, "cc", number.to_bytes(4, "big") * 5000)
    us = 1.0 + number
    timing = Timing(tuple(us for _ in range(50)), us, us, us, "rotated-1")
    config = Config.of("host", {"mc": number})
    told = {"outcome": Outcome.OK, "timing": timing, "provenance": PROVENANCE}
    return Trial(number, config, artifact.digest, **told), artifact


def main() -> None:
    store = Store.open(sys.argv[1])
    store.migrate()
    with store.begin() as session:
        claims.requeue_lost(session, DEVICE_CLASS, claims.LeaseWatch(30.0, 4.0))
        job = claims.claim(session, DEVICE_CLASS, new_owner())
    if job is None:
        raise SystemExit("the interrupted job was not given back")
    recorder = JobRecorder(store, job.id)
    done = len(recorder.trials())
    print("resumed", done, flush=True)  # noqa: T201
    for number in itertools.count(done):
        recorder.add_trial(*make(number))
        print(number, flush=True)  # noqa: T201


main()
