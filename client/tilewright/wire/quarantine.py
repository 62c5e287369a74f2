"""``/quarantine``: configs that broke a device class, and are not tried or served."""

from __future__ import annotations

from pydantic import BaseModel

from tilewright.schema.codec import KeyName
from tilewright.schema.trial import QuarantineEntry
from tilewright.wire.requests import PageQuery


class QuarantineQuery(PageQuery, frozen=True):
    """``GET /quarantine``: a page of the entries of one device class, or of all."""

    device_class: KeyName | None = None


class QuarantineView(BaseModel, QuarantineEntry, frozen=True):
    """A config that broke a device class, with the evidence.

    Attributes:
        staleness: ``fresh`` while it holds here; else what changed, so that the config is tried again.
    """

    staleness: str


class QuarantineList(BaseModel):
    """A page of entries, the newest first; ``next`` is the cursor of the next page."""

    items: list[QuarantineView]
    next: str | None = None
