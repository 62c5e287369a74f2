"""``POST /tune``."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from service import admission, miss_jobs
from service.deps import IdempotencyKey, Service, ServiceDep
from service.lane import Lane
from service.openapi import errors
from service.problems import Kind
from service.views import job_view
from tilewright import wire
from tilewright.device import DeviceSpec
from tuner.job import TuneRequest
from tuner.store import codec, jobs
from tuner.store.idempotency import once
from tuner.store.records import JobRecord
from tuner.store.submission import submit

router = APIRouter(tags=["tuning"])


@router.post(
    "/tune",
    status_code=202,
    operation_id="tune",
    responses=errors(
        Kind.UNSUPPORTED,
        Kind.OVER_LIMIT,
        Kind.IDEMPOTENCY_MISMATCH,
        Kind.IDEMPOTENCY_IN_FLIGHT,
        Kind.QUEUE_FULL,
    ),
)
def post_tune(
    body: wire.AnyTuneBody, service: ServiceDep, response: Response, idempotency_key: IdempotencyKey
) -> wire.JobView | wire.JobList:
    """Start tuning a GEMM, or join the job that already does the same; or a job for each of the top misses.
    A problem that is being tuned is no miss."""
    if isinstance(body, wire.TuneMissesBody):
        started = miss_jobs.start(service, body, idempotency_key)
        return wire.JobList(items=[job_view(job) for job in started])
    request = _request(body)
    admission.check_trials(body.max_trials, service.settings)
    admission.check_size(request.problem, service.settings)
    lane = admission.lane_for(service.engine, body.device)
    admission.check_supported(request.problem, body.families, lane)
    admission.check_memory(request.problem, lane)
    job = _submit(service, request, lane, idempotency_key)
    service.engine.wake()
    response.headers["Location"] = f"/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
    return job_view(job)


def _request(body: wire.TuneBody) -> TuneRequest:
    families = tuple(sorted(set(body.families)))
    named = ("max_trials", "max_seconds", "seed", "policy", "min_gain_per_s")
    return TuneRequest(body.to_problem(), families, **{name: getattr(body, name) for name in named})


def _submit(service: Service, request: TuneRequest, lane: Lane, key: str | None) -> JobRecord:
    spec = lane.bench.spec
    digest = codec.request_digest(request, spec.device_class.id)
    with service.store.begin() as session:
        answer = once(session, key, digest, lambda: {"jobs": [_queue(service, session, request, spec)]})
        return jobs.known(session, answer["jobs"][0])


def _queue(service: Service, session: Session, request: TuneRequest, spec: DeviceSpec) -> str:
    job, created = submit(session, request, spec)
    # NOTE: raising inside the transaction takes the job back.
    if created and jobs.queued_count(session) > service.settings.max_queue:
        raise admission.queue_full(service.settings)
    return job.id
