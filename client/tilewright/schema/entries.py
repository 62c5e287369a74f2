"""Entries of the lists that a service keeps beside jobs and results: misses, imports, quarantined configs and
changes. Without slots, so that answers of the wire can inherit the fields."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import StrEnum
from typing import Any

from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Provenance


class MissReason(StrEnum):
    """The reason of a miss: no result, or a result that is no longer current."""

    MISSING = "missing"
    STALE = "stale"


@dataclasses.dataclass(frozen=True)
class MissRecord:
    """A problem worth tuning.

    Attributes:
        count: number of runs without a current result.
        time_us: microseconds of one run, reported or estimated.
        measured: whether ``time_us`` was reported.
        stake_s: device seconds at stake, ``count`` times ``time_us``.
        first_seen, last_seen: aware UTC; a stale one was noted last at ``first_seen``.
    """

    problem: GemmProblem
    device_class: str
    reason: MissReason
    count: int
    time_us: float
    measured: bool
    stake_s: float
    first_seen: datetime
    last_seen: datetime


@dataclasses.dataclass(frozen=True)
class Import:
    """Results that enter or entered together.

    Attributes:
        id: 32 hex digits; what it brought carries it as ``import_id``.
        trusted: kernels and winners are taken: a trusted key signed all of it.
        signer: that key; None for unsigned imports, as all of releases before signatures are.
        key_id: the API key that sent it; None for an import on the service's machine.
        created: when it first entered, aware UTC.
    """

    id: str
    trusted: bool
    signer: str | None
    key_id: str | None
    created: datetime


@dataclasses.dataclass(frozen=True)
class ImportCounts:
    """How many jobs of an import there are, winners of it in use, and winners that wait to be raced here."""

    jobs: int
    best: int
    waiting: int


@dataclasses.dataclass(frozen=True)
class RecordCounts:
    """The number of each kind of record."""

    jobs: int = 0
    trials: int = 0
    artifacts: int = 0
    best: int = 0


@dataclasses.dataclass(frozen=True)
class TrustedKey:
    """A public key whose signature makes the kernels and winners of an import run on this service.

    Attributes:
        key: ``ed25519:`` and 64 hex digits.
        name: name of its owner.
        created: since when it is trusted, aware UTC.
    """

    key: str
    name: str
    created: datetime


@dataclasses.dataclass(frozen=True)
class AuditRecord:
    """A change.

    Attributes:
        id: grows with time, never used twice.
        who: ``key ID``, ``address ...`` of a caller without a key, ``user NAME`` of the command line, or
            ``service``.
        action: such as ``create job``.
        target: what was changed; empty for the database as a whole.
        data: particulars.
        created: aware UTC.
    """

    id: int
    who: str
    action: str
    target: str
    data: dict[str, Any]
    created: datetime


@dataclasses.dataclass(frozen=True)
class QuarantineEntry:
    """A config that broke a device class, with the evidence.

    Attributes:
        id: for ``DELETE /quarantine/{id}``.
        device_class, config, provenance: what is quarantined: this config on this class, as long as source,
            compiler and driver are these.
        outcome, message: how it failed.
        problem: on what it failed.
        job_id, trial: the trial that showed it; ``trial`` is None for one that the job did not record, both
            are None for a winner that was measured again.
        device: the device that it failed on.
        created: aware UTC.
        winners: how many winners are not served for it.
    """

    id: int
    device_class: str
    config: Config
    provenance: Provenance
    outcome: Outcome
    message: str
    problem: GemmProblem
    job_id: str | None
    trial: int | None
    device: str
    created: datetime
    winners: int
