"""Asks a service of its own in chains of generated requests, and compares answers with its OpenAPI document.

    make fuzz ARGS='--seed 7'

A request takes ids, digests and cursors from earlier answers. The generation is random: the seed is printed
and repeats the run. Exits with 1 if an answer was a 5xx or broke the document.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis
from api_server import TUNED, admin_key, finish, start
from documented import CHECKS, SMALL_JOBS, bearing, document
from hypothesis import HealthCheck, Phase
from schemathesis import Case, GenerationMode, Response
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.stateful import run_state_machine_as_test

from benchmarks.common.results import now, write_json
from tilewright import Client

STEPS = 20  # requests in a chain at most
CHAINS = 100  # between two looks at the count
TIMEOUT_S = 30.0
SETTINGS = hypothesis.settings(
    phases=[Phase.generate],
    deadline=None,
    database=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)


class Record:
    """What was asked, and what was wrong with the answers."""

    def __init__(self) -> None:
        self.asked: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[str] = collections.Counter()
        self.chained = 0
        self.failures: dict[str, list[str]] = {}

    def take(self, case: Case, response: Response) -> None:
        """Count an answer, and keep what is wrong with it under its operation and kind."""
        self.asked[case.operation.definition.raw["operationId"]] += 1
        self.statuses[str(response.status_code)] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                title = f"{case.operation.label}: {getattr(failure, 'title', type(failure).__name__)}"
                self.failures.setdefault(title, []).append(f"{failure}\n{case.as_curl_command()}")


def machine(url: str, key: str, record: Record) -> Any:
    """A state machine whose requests take values from the answers that the document links them to."""

    class Chains(document(url, key).as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, _case: Case) -> dict[str, Any]:
            return {"headers": bearing(key), "timeout": TIMEOUT_S}

        def validate_response(self, response: Response, case: Case, **_options: Any) -> None:
            record.chained += self.recorder.cases[case.id].is_transition_applied
            record.take(case, response)

    return Chains


def ask_in_chains(url: str, key: str, cases: int, seed: int, record: Record) -> None:
    """Ask in chains until this many requests were answered."""
    chains = machine(url, key, record)
    settings = hypothesis.settings(SETTINGS, max_examples=CHAINS, stateful_step_count=STEPS)
    while record.asked.total() < cases:
        # The next chains differ from the last ones, and follow from the same seed.
        hypothesis.seed(seed + record.asked.total())(chains)
        run_state_machine_as_test(chains, settings=settings)
        tell(record)


def ask_each(url: str, key: str, cases: int, seed: int, record: Record) -> None:
    """Ask every operation by itself, with valid and with invalid requests, until this many were answered."""
    operations = [found.ok() for found in document(url, key).get_all_operations()]
    kinds = [(operation, mode) for operation in operations for mode in GenerationMode]
    for number, (operation, mode) in enumerate(kinds):
        due = (cases - record.asked.total()) // (len(kinds) - number)

        @hypothesis.seed(seed + number)
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(SETTINGS, max_examples=max(due, 1))
        def one(case: Case) -> None:
            record.take(case, case.call(headers=bearing(key), timeout=TIMEOUT_S))

        # An operation without parameters has no invalid requests.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            one()
    tell(record)


def tell(record: Record) -> None:
    print(f"{record.asked.total()} requests, {len(record.failures)} failures", file=sys.stderr)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--out", type=Path, help="JSON file of the counts")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)  # noqa: T201
    began = time.monotonic()
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), **SMALL_JOBS)
        try:
            key = admin_key(server)
            with Client(server.url, key=key) as client:
                client.tune(TUNED, max_trials=2)
            ask_in_chains(server.url, key, options.cases // 2, options.seed, record)
            ask_each(server.url, key, options.cases, options.seed, record)
            ask_in_chains(server.url, key, options.cases, options.seed + 1, record)  # those left over
        finally:
            finish(server)
    found = {
        "command": f"make fuzz ARGS='--seed {options.seed} --cases {options.cases}'",
        "when": now(),
        "seed": options.seed,
        "wall_s": round(time.monotonic() - began, 1),
        "requests": record.asked.total(),
        "with_values_of_an_earlier_answer": record.chained,
        "operations": dict(sorted(record.asked.items())),
        "statuses": dict(sorted(record.statuses.items())),
        "failures": {title: len(each) for title, each in record.failures.items()},
    }
    if options.out:
        write_json(options.out, found)
    for title, each in record.failures.items():
        print(f"\n{title}, {len(each)} times, first:\n{each[0]}")  # noqa: T201
    print({name: found[name] for name in ("seed", "requests", "statuses", "failures")})  # noqa: T201
    return 1 if record.failures else 0


if __name__ == "__main__":
    sys.exit(main())
