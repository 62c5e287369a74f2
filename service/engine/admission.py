"""Admission of requests: limits and support, checked before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.orm import Session

from kernels.registry import FAMILIES, families_for
from service.engine.base import Device
from service.errors import Kind, Refusal
from service.settings import Settings
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem, variants
from tilewright.wire.requests import OptionsBody
from tuner.measure.operands import why_too_large
from tuner.store import jobs
from tuner.store.access import keys
from tuner.store.records import utc_now

_RETRY_AFTER_S = 30
_DAY, _WITHDRAWN = timedelta(days=1), 10  # times what a caller may have in the queue
OptionsBodyT = TypeVar("OptionsBodyT", bound=OptionsBody)


def check_size(problem: GemmProblem, settings: Settings) -> None:
    """Refuse what is over the limits of this service.

    Raises:
        Refusal: over ``max_extent`` or ``max_gemm_bytes``.
    """
    for name in ("m", "n", "k", "batch"):
        extent = getattr(problem, name)
        if extent > settings.max_extent:
            raise Refusal(
                Kind.OVER_LIMIT, f"{name} is {extent}, this service allows {settings.max_extent} (max_extent)"
            )
    if problem.total_bytes > settings.max_gemm_bytes:
        raise Refusal(
            Kind.OVER_LIMIT,
            f"{problem} needs {problem.total_bytes} bytes for its operands and result, this service allows "
            f"{settings.max_gemm_bytes} (max_gemm_bytes)",
        )


def check_result(problem: GemmProblem, settings: Settings) -> None:
    """Refuse a GEMM whose result is larger than a request body may be. Small operands can have a large
    product, and several copies of it exist until it is sent.

    Raises:
        Refusal: over ``max_body_bytes``.
    """
    size = problem.m * problem.n * problem.batch * problem.out.size
    if size > settings.max_body_bytes:
        raise Refusal(
            Kind.OVER_LIMIT,
            f"the result of {problem} has {size} bytes, this service sends {settings.max_body_bytes} "
            "(max_body_bytes); ask for parts of it",
        )


def with_trials(body: OptionsBodyT, settings: Settings) -> OptionsBodyT:
    """The body of a request for jobs; if it names no ``max_trials`` and the default exceeds the limit, the
    limit is set.

    Raises:
        Refusal: it names more than ``max_trials``.
    """
    if body.max_trials <= settings.max_trials:
        return body
    if "max_trials" not in body.model_fields_set:
        return body.model_copy(update={"max_trials": settings.max_trials})
    raise Refusal(
        Kind.OVER_LIMIT,
        f"max_trials is {body.max_trials}, this service allows {settings.max_trials} (max_trials)",
    )


def queue_full(settings: Settings) -> Refusal:
    """The refusal where no more jobs may wait."""
    most = settings.max_queue
    remedy = "try again later or cancel one" if most else "raise TILEWRIGHT_MAX_QUEUE to take some"
    detail = f"{most} jobs are queued, all that max_queue allows; {remedy}"
    return Refusal(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)


def check_queue(session: Session, caller: str, settings: Settings, more: int = 0) -> int:
    """How many more jobs on one problem fit into the queue for a caller. A ladder counts as the number of
    jobs on one problem that have as many trials.

    Raises:
        Refusal: ``more`` jobs do not fit, or the caller cancelled too many today.
    """
    own = keys.max_queued(session, caller)
    mine = settings.max_caller_queue if own is None else own
    room = settings.max_queue - jobs.queued_work(session)
    room_of_caller = mine - jobs.queued_work(session, caller)
    if room < more:
        raise queue_full(settings)
    if room_of_caller < more:
        by = "max_caller_queue" if own is None else "its key's max_queued"
        raised_by = "'tilewright keys set'" if keys.find(session, caller) else "TILEWRIGHT_MAX_CALLER_QUEUE"
        at_once = "try again later, cancel one, or " if mine else ""
        detail = (
            f"{mine} jobs of this caller are queued, all that {by} allows; {at_once}have the limit raised "
            f"with {raised_by}"
        )
        raise Refusal(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)
    if jobs.withdrawn_work(session, caller, utc_now() - _DAY) >= _WITHDRAWN * mine:
        detail = (
            f"this caller cancelled {_WITHDRAWN * mine} jobs within a day before they began, which all leave "
            "rows in the database; try again later, and submit only what should run"
        )
        raise Refusal(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)
    return min(room, room_of_caller)


def check_memory(problem: GemmProblem, bench: Device) -> None:
    """Refuse a problem that does not fit the device's memory while it is tuned.

    Raises:
        Refusal: with the bytes it takes and the bytes there are.
    """
    reason = why_too_large(problem, bench.spec)
    if reason:
        raise Refusal(Kind.UNSUPPORTED, f"{reason}; tune a part of it")


def check_supported(problem: GemmProblem, families: Sequence[str], bench: Device) -> None:
    """Refuse a problem that no family, or none of those named, computes on the device.

    Raises:
        Refusal: what the device computes instead, and the reason of each family for such devices.
    """
    _check_known(families)
    spec = bench.spec
    if problem.total_bytes > spec.memory_bytes:
        raise Refusal(
            Kind.UNSUPPORTED,
            f"{problem} needs {problem.total_bytes} bytes, {bench.name} has {spec.memory_bytes}",
        )
    reasons = {name: FAMILIES[name].why_unsupported(problem, spec) for name in families or FAMILIES}
    refused = any(reasons.values()) if families else all(reasons.values())
    if refused:
        here = {name for name in reasons if FAMILIES[name].device_kind == spec.kind} or set(families)
        whys = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason and name in here)
        remedy = _remedy(problem, bool(families), spec)
        raise Refusal(Kind.UNSUPPORTED, f"{remedy}; no kernel computes {problem} on {bench.name}. {whys}")


def check_families(families: Sequence[str], bench: Device) -> None:
    """Refuse names of families that compute nothing on such devices.

    Raises:
        Refusal: there is no such family, or it is of another kind of device.
    """
    _check_known(families)
    here = [name for name, family in FAMILIES.items() if family.device_kind == bench.spec.kind]
    others = [name for name in families if name not in here]
    if others:
        raise Refusal(
            Kind.UNSUPPORTED,
            f"use family {' or '.join(here)}, or name none; {bench.name} does not run {', '.join(others)}",
        )


def _check_known(families: Sequence[str]) -> None:
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        raise Refusal(
            Kind.UNSUPPORTED,
            f"there is no family {', '.join(unknown)}; GET /families lists {', '.join(FAMILIES)}",
        )


def _remedy(problem: GemmProblem, named: bool, spec: DeviceSpec) -> str:
    """The nearest request that the device could serve: other families, else another layout, else type."""
    if named and (able := families_for(problem, spec)):
        return f"use family {' or '.join(able)}, or name none"
    able_too = [variant for variant in variants(problem) if families_for(variant, spec)]
    layouts = [variant.layout for variant in able_too if variant.dtype is problem.dtype]
    types = [variant.dtype for variant in able_too if variant.layout is problem.layout]
    if layouts:
        return f"use layout {' or '.join(layouts)}"
    return f"use dtype {' or '.join(types)}" if types else "GET /families lists what each device computes"


def is_possible(problem: GemmProblem, families: Sequence[str], settings: Settings, bench: Device) -> bool:
    """Whether ``POST /tune`` would let a problem in."""
    try:
        check_size(problem, settings)
        check_supported(problem, families, bench)
        check_memory(problem, bench)
    except Refusal:
        return False
    return True
