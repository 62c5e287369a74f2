"""How requests start jobs: admitted, then queued or joined, once for each idempotency key."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext

from fastapi import Request
from sqlalchemy.orm import Session

from kernels.registry import families_for
from service.engine import admission
from service.engine.base import Device
from service.errors import Kind, Refusal
from service.http.deps import Service, ServiceDep, caller, who
from tilewright import wire
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import MOST_ROWS, Level, TuneRequest, ladder_of
from tilewright.schema.problem import GemmProblem
from tuner.store import jobs, misses, records
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.database import IdempotencyConflict
from tuner.store.misses import OpenMiss
from tuner.store.records import JobRecord


def start(service: Service, body: wire.TuneBody, key: str | None, request: Request) -> JobRecord:
    """Start a job, join the one that already does the same, or give the one that a request with this
    idempotency key started.

    Raises:
        Refusal: no device here computes the problem, or a limit is exceeded.
        InvalidProblem: the types cannot be combined.
        IdempotencyConflict: the key came with another request before, or its job was deleted.
    """
    asked, bench = body.to_request(body.to_problem()), service.engine.bench(body.device)
    # NOTE: as it was sent, so that it is known again after a change of the limits.
    digest = records.request_digest(asked, bench.spec.device_class.id)
    admitted = functools.cache(functools.partial(_admitted, service, body, bench))
    queue = functools.partial(_queue, service, admitted, bench.spec, request)
    (job,) = _once(service, key, digest, admitted, queue)
    return job


def _admitted(service: Service, body: wire.TuneBody, bench: Device) -> TuneRequest:
    wanted = admission.with_trials(body, service.settings).to_request(body.to_problem())
    admission.check_size(wanted.problem, service.settings)
    for problem in wanted.problems:
        admission.check_supported(problem, body.families, bench)
    admission.check_memory(wanted.problem, bench)
    return wanted


def _queue(
    service: Service,
    admitted: Callable[[], TuneRequest],
    spec: DeviceSpec,
    request: Request,
    session: Session,
) -> list[str]:
    job, created = _submit(session, admitted(), spec, request)
    if created:  # NOTE: raising inside the transaction takes the job back
        admission.check_queue(session, caller(request), service.settings)
    elif former := jobs.hand_over(session, job, caller(request), service.settings.max_caller_queue):
        audit.note(session, who(request), Action.TAKE_OVER_JOB, job.id, former=former)
    return [job.id]


async def in_turn(body: wire.AnyTuneBody, service: ServiceDep) -> AsyncIterator[wire.AnyTuneBody]:
    """The body of a request for jobs; one for misses once those before it are done: each reads a list of up
    to 10,000, and those that wait take no thread from other requests."""
    async with service.miss_jobs.turn if isinstance(body, wire.TuneMissesBody) else nullcontext():
        yield body


def start_for_misses(
    service: Service, body: wire.TuneMissesBody, key: str | None, request: Request
) -> list[JobRecord]:
    """Start a job for each weight of the top misses that a device here computes, on a ladder where several of
    its M were missed, or give those that a request with this idempotency key started.

    As many as the queue has room for; the rest stays on the list.

    Raises:
        Refusal: no device here is of the class, a limit is exceeded, or the queue has no room at all.
        IdempotencyConflict: the key came with another request before, or a job of it was deleted.
    """
    wanted = body.model_dump(mode="json")
    if wanted["level"] == Level.FULL:  # which earlier releases did not tell
        del wanted["level"]
    chosen = functools.cache(functools.partial(_chosen, service, body))
    queue = functools.partial(_queue_top, service, chosen, request)
    return _once(service, key, records.digest(wanted), chosen, queue)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """The top misses that a device computes, and the options of their jobs."""

    body: wire.TuneMissesBody
    spec: DeviceSpec
    top: list[OpenMiss]


def _chosen(service: Service, body: wire.TuneMissesBody) -> _Chosen:
    body = admission.with_trials(body, service.settings)
    wanted, bench = body.from_misses, _bench_for_misses(service, body.from_misses.device_class, body.device)
    admission.check_families(body.families, bench)

    def able(problem: GemmProblem) -> frozenset[str]:
        found = frozenset(families_for(problem, bench.spec))
        # NOTE: the first alone is quick, and a list may be full of what no family computes.
        possible = found and admission.is_possible(problem, [], service.settings, bench)
        return found if possible else frozenset()

    known = service.miss_jobs.able[bench.spec]
    with service.store.read() as session:
        top = misses.top_of(session, wanted.device_class, wanted.top, body.families, able, known)
    return _Chosen(body, bench.spec, top)


def _queue_top(
    service: Service, chosen: Callable[[], _Chosen], request: Request, session: Session
) -> list[str]:
    found = chosen()
    top = misses.still_open(session, found.top)
    room = admission.check_queue(session, caller(request), service.settings, more=1) if top else 0
    asked = list(_on_ladders(found.body, [miss.problem for miss in top]))
    spent = itertools.accumulate(one.work for one in asked)
    # NOTE: the first is let in with any amount of work, as by itself it would be refused for ever.
    fits = [one for one, work in zip(asked, spent, strict=True) if work <= room]
    return [_submit(session, one, found.spec, request)[0].id for one in fits or asked[:1]]


def _on_ladders(body: wire.TuneMissesBody, problems: Iterable[GemmProblem]) -> Iterator[TuneRequest]:
    """A request for each problem, or one on a ladder for those that differ in M alone; in their order."""
    alike = defaultdict[str, list[GemmProblem]](list)
    for problem in problems:
        weight = {name: value for name, value in problem.to_dict().items() if name != "m"}
        alike[records.canonical(weight)].append(problem)
    for group in alike.values():
        for start in range(0, len(group), MOST_ROWS):
            part = sorted(group[start : start + MOST_ROWS], key=lambda problem: problem.m)
            ladder = ladder_of(problem.m for problem in part)
            yield dataclasses.replace(body.to_request(part[-1]), ladder=ladder)


def _bench_for_misses(service: Service, device_class: str, device: str | None) -> Device:
    for name, queue in service.engine.queues.items():
        if queue.bench.spec.device_class.id == device_class and device in (None, name):
            return queue.bench
    named = f"{device} is not" if device else "there is no device"
    raise Refusal(Kind.UNSUPPORTED, f"{named} of class {device_class} here; see GET /devices")


def _once(
    service: Service,
    key: str | None,
    digest: str,
    check: Callable[[], object],
    queue: Callable[[Session], list[str]],
) -> list[JobRecord]:
    """The jobs that ``queue`` gives, or those that a request with the key started before: that one passed
    ``check``, whose limits may have changed since."""
    if key is None or not _is_known(service, key):
        check()  # NOTE: here, as it would hold up other writers in the transaction
    with service.store.begin() as session:
        answer = keys.once(session, key, digest, lambda: {"jobs": queue(session)})
        started = _started(session, answer["jobs"])
    service.engine.wake()
    return started


def _is_known(service: Service, key: str) -> bool:
    with service.store.read() as session:
        return jobs.was_started(session, key)


def _submit(
    session: Session, wanted: TuneRequest, spec: DeviceSpec, request: Request
) -> tuple[JobRecord, bool]:
    job, created = jobs.submit(session, wanted, spec, caller(request))
    if created:
        audit.note(session, who(request), Action.CREATE_JOB, job.id, problem=str(wanted.problem))
    return job, created


def _started(session: Session, ids: Sequence[str]) -> list[JobRecord]:
    found = [jobs.get(session, job_id) for job_id in ids]
    if None in found:
        raise IdempotencyConflict(
            "a job that a request with this idempotency key started was deleted since; use a new key"
        )
    return [job for job in found if job]
