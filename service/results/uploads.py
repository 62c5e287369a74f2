"""Reads files to import: the records of NDJSON or T4, read piece by piece, and the key that signed them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from typing import IO, Any

import ijson

from tilewright.errors import InvalidProblem, TilewrightError, TrustError
from tilewright.trust import About, Signature, statement
from tilewright.wire import Format
from tuner.store import exchange
from tuner.store.exchange import EndedJob, Line, Signed, TrialOfJob

Named = tuple[str, Line]
"""A record and its name (``line 7``)."""
T4_VERSION = "1.0.0"
_BATCH_LINES = 250
_BATCH_BYTES = 2**20
_LONGEST_LINE = 16 * 2**20
_MOST_LEVELS = 64
_T4_HINT = "; if this is a T4 file, import it as 'tilewright import --format t4' does"


class BadLine(TilewrightError):
    """A record that cannot be imported; the message says which and why."""


def records(source: IO[bytes], kind: Format) -> Iterator[list[Named]]:
    """The records of a file in batches of at most 250 records and about 1 MiB, without signatures.

    Raises:
        BadLine: one is not a record; the message names it.
    """
    if kind is Format.T4:
        found = _t4(source)
        while batch := list(itertools.islice(found, _BATCH_LINES)):
            yield batch
    else:
        yield from _ndjson(source)


def signer(source: IO[bytes], kind: Format) -> tuple[str | None, str]:
    """The key that signed all lines of a file, else the reason why there is none.

    Raises:
        BadLine: a line is too long, or a signature is none.
    """
    if kind is Format.T4:
        return None, "a T4 file has no signature"
    signatures = _Signatures()
    for name, text in _lines(source):
        if _is_signature(text):
            line = record(name, strict_json(name, text))
            if not isinstance(line, Signed):
                raise BadLine(f"{name}: a signature must have one kind")
            signatures.sign(name, line)
        else:
            signatures.cover(text)
    return signatures.verdict()


def _lines(source: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The lines that are not empty, with their names."""
    hint = _T4_HINT
    for number in itertools.count(1):
        text = source.readline(_LONGEST_LINE)
        if not text:
            return
        name = f"line {number}"
        if len(text) == _LONGEST_LINE:
            raise BadLine(f"{name}: a line must have at most {_LONGEST_LINE - 1} bytes{hint}")
        if not text.strip():
            continue
        if hint and _lacks_kind(text):
            raise BadLine(f"{name}: a record must have a kind{hint}")
        hint = ""
        yield name, text.removesuffix(b"\n")


def _lacks_kind(text: bytes) -> bool:
    """Whether a line is an object without a kind, or how one begins that goes on in the next line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text.lstrip().startswith(b"{") and b'"kind"' not in text
    return isinstance(found, dict) and "kind" not in found


def _is_signature(text: bytes) -> bool:
    """Whether a line is a signature, without reading all of it: its kind comes first, as it was written."""
    return text[:40].replace(b" ", b"").startswith(b'{"kind":"signature"')


def _ndjson(source: IO[bytes]) -> Iterator[list[Named]]:
    batch, size = list[Named](), 0
    for name, text in _lines(source):
        line = record(name, strict_json(name, text))
        if isinstance(line, Signed):
            if not _is_signature(text):
                raise BadLine(f"{name}: the kind of a signature must come first in its line")
            continue
        batch.append((name, line))
        size += len(text)
        if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Signatures:
    """Who signed the lines that were read."""

    def __init__(self) -> None:
        self._digest, self._open = hashlib.sha256(), False
        self._signers: set[str] = set()
        self._flaw = ""

    def cover(self, text: bytes) -> None:
        """A line was read that the next signature is to cover."""
        self._digest.update(text + b"\n")
        self._open = True

    def sign(self, name: str, line: Signed) -> None:
        """A signature was read.

        Raises:
            BadLine: it is none.
        """
        try:
            signature = Signature.parse(line.signature)
        except TrustError as error:
            raise BadLine(f"{name}: {error}") from error
        if not signature.covers(statement(About.EXPORT, self._digest.hexdigest())):
            self._flaw = self._flaw or f"{name}: the lines before it were changed after they were signed"
        self._signers.add(signature.key)
        self._digest, self._open = hashlib.sha256(), False

    def verdict(self) -> tuple[str | None, str]:
        """The key that signed every line, else the reason why there is none."""
        if self._open or not self._signers:
            self._flaw = self._flaw or "not all lines are signed"
        if len(self._signers) > 1:
            self._flaw = self._flaw or "several keys signed it; import what each signed by itself"
        return (None, self._flaw) if self._flaw else (next(iter(self._signers)), "")


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
    except (ValueError, RecursionError) as error:
        raise _unkept(name, error) from error
    return _storable(name, found)


def _storable(name: str, found: Any) -> Any:
    try:
        plain = json.dumps(found, ensure_ascii=False, allow_nan=False)
        plain.encode()
    except (ValueError, RecursionError) as error:
        raise _unkept(name, error) from error
    if "\\u0000" in plain:
        raise BadLine(f"{name}: a text holds a NUL; leave it out")
    return found


def _unkept(name: str, error: Exception) -> BadLine:
    return BadLine(f"{name}: not JSON that a database can keep ({str(error)[:200]}); export it again")


def _t4(source: IO[bytes]) -> Iterator[Named]:
    """The jobs and trials of a T4 document that :func:`service.results.export.export` wrote."""
    seen: set[str] = set()
    for number, item in enumerate(_t4_results(source)):
        name = f"result {number}"
        own = item.get("tilewright") if isinstance(item, dict) else None
        if not isinstance(own, dict):
            raise BadLine(
                f"{name}: no member 'tilewright', which tells problem, device and provenance; import a T4"
                " file that tilewright exported"
            )
        job = record(name, _storable(name, own.get("job")))
        trial = record(name, _storable(name, own.get("trial")))
        if not isinstance(job, EndedJob) or not isinstance(trial, TrialOfJob):
            raise BadLine(f"{name}: member 'tilewright' must have a job and a trial")
        if job.id not in seen:
            seen.add(job.id)
            yield name, job
        yield name, trial


def _t4_results(source: IO[bytes]) -> Iterator[Any]:
    """The items of the list ``results``, each read when it is its turn."""
    # NOTE: ijson.parse would keep the names of all levels anew for each level.
    events = _levels(ijson.basic_parse(source, use_float=True))
    name, there = "", False
    try:
        for level, event, value in events:
            if level != 1:
                continue
            if event == "map_key":
                name = value
            elif name == "schema_version" and not (event == "string" and value.startswith("1.")):
                raise BadLine(f"the T4 file: schema_version must be 1.x.y as text, got {str(value)[:50]!r}")
            elif (name, event) == ("results", "start_array"):
                there = True
                yield from _items(events)
    except (ijson.JSONError, ValueError, RecursionError) as error:
        raise BadLine(
            f"the T4 file: not JSON that a database can keep ({str(error)[:200]}); export it again"
        ) from error
    if not there:
        raise BadLine("the T4 file must be an object with a list 'results'")


def _levels(events: Iterator[tuple[str, Any]]) -> Iterator[tuple[int, str, Any]]:
    """Each event after the number of lists and objects around what it begins, ends or is.

    Raises:
        BadLine: there are more than 64.
    """
    level = 0
    for event, value in events:
        level -= event.startswith("end_")
        yield level, event, value
        level += event.startswith("start_")
        if level > _MOST_LEVELS:
            raise BadLine(
                f"the T4 file: lists and objects may be nested {_MOST_LEVELS} deep at most; export it again"
            )


def _items(events: Iterator[tuple[int, str, Any]]) -> Iterator[Any]:
    """The items of the list at level 1 that has just begun."""
    builder = ijson.ObjectBuilder()
    for level, event, value in events:
        if level == 1:
            return
        builder.event(event, value)
        if level == 2 and not event.startswith("start_"):
            yield builder.value
            builder = ijson.ObjectBuilder()


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond float64")
    return value
