"""What the clients' methods for sets, misses and results take, turned into calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import IO, Any, TypedDict

from tilewright import store_calls, wire
from tilewright.calls import Call
from tilewright.problem import GemmProblem
from tilewright.requests import TuneOptions, checked

PART_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """A problem that ran ``count`` times without a tuned kernel, ``vendor_us`` microseconds each if known."""

    problem: GemmProblem
    count: int = 1
    vendor_us: float | None = None


class ExportOptions(TypedDict, total=False):
    """What to export: see :class:`tilewright.wire.ExportQuery`."""

    format: str
    device_class: str
    family: str
    since: datetime
    artifacts: bool


def pin(device_class: str, digest: str) -> Call[wire.SetInfo]:
    """The call for ``pin``.

    Raises:
        InvalidProblem: the digest is not one of a config set.
    """
    return store_calls.pin(checked(wire.PinBody, {"device_class": device_class, "digest": digest}))


def report_misses(
    device_class: str, misses: Iterable[Miss], idempotency_key: str | None = None
) -> Call[wire.MissAnswer]:
    """The call for ``report_misses``.

    Raises:
        InvalidProblem: there is none, or there are more than 250.
    """
    items = [{**miss.problem.to_dict(), "count": miss.count, "vendor_us": miss.vendor_us} for miss in misses]
    body = checked(wire.MissesBody, {"device_class": device_class, "misses": items})
    return store_calls.report_misses(body, idempotency_key)


def misses(device_class: str | None, limit: int) -> Call[wire.MissList]:
    """The call for ``misses``.

    Raises:
        InvalidProblem: the limit is out of range.
    """
    return store_calls.misses(checked(wire.MissQuery, {"device_class": device_class, "limit": limit}))


def tune_misses(device_class: str, top: int, options: TuneOptions) -> Call[wire.JobList]:
    """The call for ``tune_misses``.

    Raises:
        InvalidProblem: an option is out of range.
    """
    fields: dict[str, Any] = {"from_misses": {"device_class": device_class, "top": top}, **options}
    return store_calls.tune_misses(checked(wire.TuneMissesBody, fields))


def export(options: ExportOptions) -> Call[bytes]:
    """The call for ``export``.

    Raises:
        InvalidProblem: an option is unknown, or ``since`` has no time zone.
    """
    return store_calls.export(checked(wire.ExportQuery, dict(options)))


def import_results(file: IO[bytes], kind: str) -> Iterator[Call[wire.ImportAnswer]]:
    """Calls that import a file: NDJSON in parts of some 8 MiB of whole lines, T4 at once."""
    if wire.Format(kind) is wire.Format.T4:
        yield store_calls.import_results(file.read(), store_calls.JSON)
        return
    while lines := file.readlines(PART_BYTES):
        yield store_calls.import_results(b"".join(lines), store_calls.NDJSON)


def total(answers: Iterable[wire.ImportAnswer]) -> wire.ImportAnswer:
    """The sum over the parts of a file."""
    answer = wire.ImportAnswer(added=wire.Counts(), known=wire.Counts())
    for part in answers:
        answer = wire.ImportAnswer(added=answer.added + part.added, known=answer.known + part.known)
    return answer
