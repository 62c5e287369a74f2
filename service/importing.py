"""Results into the store: the union of what is here and what comes."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from service import records
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, InvalidProblem, TilewrightError
from tilewright.wire import Counts, ImportAnswer
from tilewright.wire.exchange import ArtifactLine, BestLine, JobLine, Line, TrialLine
from tuner.store import artifacts, best, exchange, trials
from tuner.store.database import Store
from tuner.store.errors import StoreError

_LINE: TypeAdapter[Line] = TypeAdapter(Line)
Named = tuple[str, Line]


class BadLine(TilewrightError):
    """A record that cannot be imported; the message says which and why."""


def ndjson(body: bytes) -> Iterator[Named]:
    """The records of NDJSON with their names (``line 7``); empty lines are skipped.

    Raises:
        BadLine: a line is not a record.
    """
    for number, text in enumerate(body.split(b"\n"), 1):
        if text.strip():
            name = f"line {number}"
            yield name, record(name, strict_json(name, text))


def record(name: str, data: Any) -> Line:
    """One record.

    Raises:
        BadLine: it is not one.
    """
    try:
        return _LINE.validate_python(data)
    except ValidationError as error:
        rules = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise BadLine(f"{name}: {rules[:1000]}") from error


def strict_json(name: str, text: bytes) -> Any:
    """JSON without NaN, infinities, lone surrogates and NULs, which some database would refuse.

    Raises:
        BadLine: it is not such JSON.
    """
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        plain = json.dumps(found, ensure_ascii=False)
        plain.encode()
    except (ValueError, RecursionError) as error:
        raise BadLine(f"{name}: not JSON that a database can keep ({str(error)[:200]})") from error
    if "\\u0000" in plain:
        raise BadLine(f"{name}: a text holds a NUL")
    return found


def merge(store: Store, lines: Iterable[Named]) -> ImportAnswer:
    """Keep what is new, all of it or nothing.

    Raises:
        BadLine: a record is damaged, or comes before what it needs.
    """
    added, known = Counts(), Counts()
    # NOTE: read to the end first: on SQLite nobody else writes during the transaction.
    whole = list(lines)
    with store.begin() as session:
        for _, run in itertools.groupby(whole, _run):
            found = list(run)
            kind, new = _merge_run(session, found)
            setattr(added, kind, getattr(added, kind) + new)
            setattr(known, kind, getattr(known, kind) + len(found) - new)
    return ImportAnswer(added=added, known=known)


def _run(named: Named) -> str:
    """Trials of one job that follow each other enter together; anything else alone."""
    name, line = named
    return f"trials of {line.job}" if isinstance(line, TrialLine) else name


def _merge_run(session: Session, run: list[Named]) -> tuple[str, int]:
    name, line = run[0]
    try:
        match line:
            case JobLine():
                return "jobs", exchange.merge_job(session, records.ended_job(line))
            case TrialLine():
                _need_job(session, line.job)
                found = [line for _, line in run if isinstance(line, TrialLine)]
                dated = [(records.trial(line), line.created) for line in found]
                return "trials", trials.merge(session, line.job, dated)
            case ArtifactLine():
                return "artifacts", _merge_artifact(session, line)
            case BestLine():
                return "best", _merge_best(session, line)
    except (StoreError, InvalidProblem, ArtifactError) as error:
        raise BadLine(f"{name}: {error}") from error


def _need_job(session: Session, job_id: str) -> None:
    if not exchange.has_job(session, job_id):
        raise StoreError(f"there is no job {job_id}; the line of a job comes before what belongs to it")


def _merge_artifact(session: Session, line: ArtifactLine) -> bool:
    if artifacts.has(session, line.digest):
        return False
    try:
        data = base64.b64decode(line.data, validate=True)
    except binascii.Error as error:
        raise ArtifactError(f"artifact {line.digest} is not base64") from error
    artifacts.put(session, Artifact.from_bytes(data, line.digest))
    return True


def _merge_best(session: Session, line: BestLine) -> bool:
    winner = records.best_config(line)
    if winner.job_id:
        _need_job(session, winner.job_id)
    return best.merge(session, winner, line.created)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond float64")
    return value
