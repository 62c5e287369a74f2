"""Explains stored winners, with what their jobs measured and the vendor library chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from kernels.explain import explain
from kernels.registry import family_named
from service.errors import Kind, Refusal
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.explanation import Explanation
from tuner.store import entities
from tuner.store.records import StoredBest
from tuner.store.reports import trials


def explained(session: Session, stored: StoredBest) -> Explanation:
    """Why a winner takes the time that it takes.

    Raises:
        Refusal: this release has no such family, or no device of its class was seen.
    """
    best = stored.best
    device = device_of(session, best.device_class)
    if device is None:
        raise Refusal(
            Kind.UNSUPPORTED, f"no device of class {best.device_class} was seen here; import a job of one"
        )

    def measured(configs: Sequence[Config]) -> Mapping[Config, float]:
        return trials.medians(session, best.job_id, best.problem.m, configs) if best.job_id else {}

    try:
        family_named(best.config.family)
    except KeyError as error:
        detail = f"this release has no family {best.config.family}; tune the problem again"
        raise Refusal(Kind.UNSUPPORTED, detail) from error
    return explain(best.config, best.problem, device, best.timing, best.resources, measured)


def device_of(session: Session, device_class: str) -> DeviceSpec | None:
    """The device of a class that was seen last; None if none was."""
    found = entities.devices_of(session, device_class)
    return found[0].spec if found else None
