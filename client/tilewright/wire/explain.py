"""Explanations and reports on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tilewright.schema.codec import KeyName
from tilewright.schema.explanation import Explanation
from tilewright.wire.requests import LookupQuery, ProblemQuery
from tilewright.wire.results import BestConfigView


class ExplainQuery(LookupQuery, ProblemQuery, frozen=True):
    """``GET /explain``: a problem, where to look, and limits on what may answer."""


class ExplainView(BaseModel):
    """What a call would run, and why its kernel takes the time that it takes.

    Attributes:
        runs: ``exact``, ``nearest``, or ``vendor`` where the vendor library runs although there is a result.
        reason: why the vendor library runs; equal to ``runs`` otherwise.
        result: the result, with the vendor library's choice in ``baseline``.
        explanation: of the result's config on the result's problem and device.
    """

    runs: str
    reason: str
    result: BestConfigView
    explanation: Explanation


class ReportQuery(BaseModel, frozen=True):
    """``GET /report``: of one device class, or of all."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName | None = None
