"""``POST /tune``."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service import admission, miss_jobs
from service.deps import IdempotencyKey, Service, ServiceDep
from service.lane import Lane
from service.openapi import errors
from service.problems import Kind, Problem
from service.views import job_view
from tilewright import wire
from tuner.job import TuneRequest
from tuner.store import jobs
from tuner.store.errors import IdempotencyConflict
from tuner.store.records import JobRecord
from tuner.store.submission import submit

router = APIRouter(tags=["tuning"])
_RETRY_AFTER_S = 30


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
    """Start tuning a GEMM, or join the job that already does the same; or a job for each of the top misses,
    where an ``Idempotency-Key`` is not needed: a problem that is being tuned or was tuned is no longer one.
    """
    if isinstance(body, wire.TuneMissesBody):
        return wire.JobList(items=[job_view(job) for job in miss_jobs.start(service, body)])
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
    limit = service.settings.max_queue
    try:
        with service.store.begin() as session:
            job, created = submit(session, request, lane.bench.spec, key)
            # NOTE: raising inside the transaction takes the job back.
            if created and jobs.queued_count(session) > limit:
                detail = f"{limit} jobs are queued (max_queue); try again later or cancel one"
                raise Problem(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)
            return job
    except IdempotencyConflict as error:
        raise Problem(Kind.IDEMPOTENCY_MISMATCH, str(error)) from error
