"""Results into the store: the union of what is here and what comes."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy.orm import Session

from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, InvalidProblem, TilewrightError
from tilewright.wire import Counts, ImportAnswer
from tuner.store import best, entities, exchange, trials
from tuner.store.database import Store, StoreError
from tuner.store.exchange import ArtifactData, EndedJob, Line, TrialOfJob, Winner

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
        return exchange.of_plain(data)
    except (ValueError, InvalidProblem) as error:
        raise BadLine(f"{name}: {str(error)[:1000]}") from error


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
    added, known = Counter[str](), Counter[str]()
    # NOTE: read to the end first: on SQLite nobody else writes during the transaction.
    whole = list(lines)
    with store.begin() as session:
        for _, run in itertools.groupby(whole, _run):
            found = list(run)
            kind, new = _merge_run(session, found)
            added[kind] += new
            known[kind] += len(found) - new
    return ImportAnswer(added=Counts(**added), known=Counts(**known))


def _run(named: Named) -> str:
    """Trials of one job that follow each other enter together; anything else alone."""
    name, line = named
    return f"trials of {line.job}" if isinstance(line, TrialOfJob) else name


def _merge_run(session: Session, run: list[Named]) -> tuple[str, int]:
    name, line = run[0]
    try:
        match line:
            case EndedJob():
                return "jobs", exchange.merge_job(session, line)
            case TrialOfJob():
                _need_job(session, line.job)
                dated = [(one.trial, one.created) for _, one in run if isinstance(one, TrialOfJob)]
                return "trials", trials.merge(session, line.job, dated)
            case ArtifactData():
                return "artifacts", _merge_artifact(session, line)
            case Winner():
                return "best", _merge_best(session, line)
    except (StoreError, InvalidProblem, ArtifactError) as error:
        raise BadLine(f"{name}: {error}") from error


def _need_job(session: Session, job_id: str) -> None:
    if not exchange.has_job(session, job_id):
        raise StoreError(f"there is no job {job_id}; the line of a job comes before what belongs to it")


def _merge_artifact(session: Session, line: ArtifactData) -> bool:
    if entities.has_artifact(session, line.digest):
        return False
    try:
        data = base64.b64decode(line.data, validate=True)
    except binascii.Error as error:
        raise ArtifactError(f"artifact {line.digest} is not base64") from error
    Artifact.from_bytes(data, line.digest)  # raises if they are damaged
    entities.put_artifact_bytes(session, data)
    return True


def _merge_best(session: Session, line: Winner) -> bool:
    if line.best.job_id:
        _need_job(session, line.best.job_id)
    return best.merge(session, line.best, line.created)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond float64")
    return value
