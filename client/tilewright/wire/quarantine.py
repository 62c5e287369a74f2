"""``/quarantine``: configs that broke a device class, and are not tried or served."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from tilewright.schema.codec import KeyName
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Provenance
from tilewright.wire.requests import PageQuery


class QuarantineQuery(PageQuery, frozen=True):
    """``GET /quarantine``: a page of the entries of one device class, or of all."""

    device_class: KeyName | None = None


class QuarantineView(BaseModel):
    """A config that broke a device class, with the evidence.

    Attributes:
        id: for ``DELETE /quarantine/{id}``.
        provenance: the source, compiler and driver for which it is quarantined.
        outcome, message: how it failed.
        problem: on what it failed.
        job_id, trial: the trial; ``trial`` is None for a kernel that ran again at the end of a job, both are
            None for a winner that was measured again on an idle device.
        device: the device that it failed on.
        winners: how many winners are not served for it.
        staleness: ``fresh`` while it holds here; else what changed, so that the config is tried again.
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
    staleness: str


class QuarantineList(BaseModel):
    """A page of entries, the newest first; ``next`` is the cursor of the next page."""

    items: list[QuarantineView]
    next: str | None = None
