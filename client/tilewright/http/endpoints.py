"""The service's endpoints, each a method that :class:`tilewright.Client` and ``AsyncClient`` have alike."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from tilewright import wire
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable
from tilewright.http.arguments import (
    CancelOptions,
    GemmOptions,
    Miss,
    Rows,
    TuneOptions,
    miss_fields,
    with_rows,
)
from tilewright.http.calls import (
    MANY_BYTES,
    Call,
    Flow,
    checked,
    checked_flag,
    endpoint,
    get,
    model_of,
    page,
    params_of,
    path_of,
    post,
)
from tilewright.http.events import Follower, OnProgress, OnWaiting, check_callbacks
from tilewright.http.result_endpoints import ResultEndpoints, page_of, several
from tilewright.lazy import LazyModule
from tilewright.schema.problem import GemmProblem

if TYPE_CHECKING:
    from tilewright.http import gemm_calls, shared_memory
else:
    gemm_calls = LazyModule("tilewright.http.gemm_calls")
    shared_memory = LazyModule("tilewright.http.shared_memory")

_RESTARTING = {502, 503, 504}  # of a proxy while the service starts again, or of the service without database


class Endpoints(ResultEndpoints):
    """Every endpoint as a method. Inherit from this and from a sender: with
    :class:`tilewright.http.calls.Sender` a method waits for its answer, with ``AsyncSender`` it is awaited.

    Every method raises :class:`ServiceUnreachable` where nothing answers in time, :class:`ServiceError` where
    the service refuses, and :class:`InvalidProblem` where the request breaks a rule before it is sent. Those
    that give kernels or config sets raise :class:`TrustError` where they are not signed by the service's key.
    """

    def _job_ended(self) -> None:
        """Called when a job that was waited for has ended."""

    # Tuning jobs

    @endpoint
    def tune(
        self,
        problem: GemmProblem,
        *,
        on_progress: OnProgress | None = None,
        on_waiting: OnWaiting | None = None,
        wait: bool = True,
        m: Rows | None = None,
        **options: Unpack[TuneOptions],
    ) -> Flow[wire.JobView]:
        """Tune ``problem``; with ``wait`` until the job has ended, its winner is ``.best``, and the callbacks
        are those of :meth:`wait`.

        Several ``m``, as ``[1, 2, 4]`` or ``"1..8192"``, are one job on a ladder, whose ``.rows`` and
        ``.ranges`` have the winners; the m of ``problem`` does not count then.

        Raises:
            ServiceError: also where the job failed.
        """
        fields, follow = with_rows(problem, m, options), checked_flag("wait", wait)
        check_callbacks(on_progress, on_waiting)
        key = fields.pop("idempotency_key", None)
        job = yield from post("/tune", checked(wire.TuneBody, fields), model_of(wire.JobView), key)
        return (yield from Endpoints.wait(self, job.id, on_progress, on_waiting)) if follow else job

    @endpoint
    def wait(
        self, job_id: str, on_progress: OnProgress | None = None, on_waiting: OnWaiting | None = None
    ) -> Flow[wire.JobView]:
        """Follow a job to its end.

        Args:
            on_progress: called with each progress.
            on_waiting: called when the reason why the job cannot go on changes, with None once it can.

        Raises:
            ServiceError: also where the job failed.
        """
        follower = Follower(job_id, on_progress, on_waiting)
        while not follower.done:
            reason = "the stream ended early"
            try:
                yield from follower.call()
            except (ServiceUnreachable, ServiceError) as error:
                if isinstance(error, ServiceError) and error.status not in _RESTARTING:
                    raise
                reason = str(error)
            if not follower.done:
                follower.ended_early(reason)
        self._job_ended()
        return _succeeded((yield from Endpoints.job(self, job_id)))

    @endpoint
    def job(self, job_id: str) -> Call[wire.JobView]:
        """One job."""
        return get(path_of("jobs", job_id), wire.JobView)

    @endpoint
    def cancel(self, job_id: str) -> Call[wire.JobView]:
        """Ask a job to stop; its trials are kept."""
        return Call("DELETE", path_of("jobs", job_id), model_of(wire.JobView))

    @endpoint
    def cancel_jobs(self, **which: Unpack[CancelOptions]) -> Call[wire.Counts]:
        """Ask all jobs of a filter to stop; gives how many were not asked before."""
        query = checked(wire.CancelQuery, which)
        return Call("DELETE", "/jobs", model_of(wire.Counts), params_of(query))

    @endpoint
    def jobs(
        self,
        status: wire.JobStatus | str | None = None,
        *,
        prefix: str | None = None,
        m: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Call[wire.JobList]:
        """A page of jobs, newest first: of one status or of all, those whose id begins with ``prefix``, and
        those with ``m`` in their problem or ladder."""
        named = None if status is None else _status(status)
        return page(
            "/jobs",
            wire.JobList,
            page_of(limit, cursor),
            status=named,
            prefix=prefix,
            m=None if m is None else str(m),
        )

    @endpoint
    def trials(self, job_id: str, *, limit: int = 50, cursor: str | None = None) -> Call[wire.TrialList]:
        """A page of a job's trials."""
        return page(path_of("jobs", job_id, "trials"), wire.TrialList, page_of(limit, cursor))

    # Misses

    @endpoint
    def report_misses(
        self, device_class: str, misses: Iterable[Miss], idempotency_key: object = None
    ) -> Call[wire.MissAnswer]:
        """Tell the service which problems ran without a tuned kernel, at most 250 at once.

        A report that comes again with its ``idempotency_key`` is counted once for 24 hours, the last 10,000
        of each caller.
        """
        items = [miss_fields(miss) for miss in several(misses)]
        body = checked(wire.MissesBody, {"device_class": device_class, "misses": items})
        return post("/misses", body, model_of(wire.MissAnswer), idempotency_key)

    @endpoint
    def misses(self, device_class: str | None = None, *, limit: int = 50) -> Flow[list[wire.MissView]]:
        """Open misses, the most device time at stake first."""
        query = checked(wire.MissQuery, {"device_class": device_class, "limit": limit})
        return (yield from page("/misses", wire.MissList, query)).items

    @endpoint
    def tune_misses(
        self, device_class: str, top: int = 10, **options: Unpack[TuneOptions]
    ) -> Flow[list[wire.JobView]]:
        """Start a job for each of the ``top`` open misses of a device class; those that differ in M alone are
        one job on a ladder."""
        fields: dict[str, Any] = {"from_misses": {"device_class": device_class, "top": top}, **options}
        key = fields.pop("idempotency_key", None)
        body = checked(wire.TuneMissesBody, fields)
        return (yield from post("/tune", body, model_of(wire.JobList), key, MANY_BYTES)).items

    # GEMMs

    @endpoint
    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        bias: Any = None,
        *,
        shared: bool = False,
        out: Any = None,
        **options: Unpack[GemmOptions],
    ) -> Flow[gemm_calls.GemmAnswer]:
        """Run a GEMM on the service: NumPy arrays, or what converts by DLPack or ``__array__``, of torch no
        subclass of ``Tensor``. They are sent as they lie and must not change meanwhile.

        ``shared`` passes them through shared memory: for a service of this machine and user that offers it.
        Operands that :meth:`shared_empty` made are not copied then, and the result goes to ``out``, where it
        is given, another such array; after an error the service may still write there.
        """
        others = {"c": c, "bias": bias}.items()
        operands = {"a": a, "b": b} | {name: array for name, array in others if array is not None}
        if checked_flag("shared", shared):
            with shared_memory.shared_gemm(operands, options, self._segments, out) as call:
                return (yield from call)
        if out is not None:
            raise InvalidProblem(
                "give out with shared=True only; what comes over the wire has memory of its own"
            )
        return (yield from gemm_calls.gemm_call(operands, options))

    def shared_empty(self, shape: int | Iterable[int], dtype: Any) -> Any:
        """A NumPy array of any values in shared memory, for ``gemm(..., shared=True)``.

        Raises:
            InvalidProblem: the shape or the type is none.
            OSError: the machine has not so much memory.
        """
        return shared_memory.empty(shape, dtype)

    @functools.cached_property
    def _segments(self) -> shared_memory.Segments:
        return shared_memory.Segments()

    def _close_segments(self) -> None:
        if "_segments" in vars(self):
            self._segments.close()

    # The service

    @endpoint
    def families(self) -> Flow[list[wire.FamilyView]]:
        """The kernel families with their knobs."""
        return (yield from get("/families", wire.FamilyList)).items

    @endpoint
    def devices(self) -> Flow[list[wire.DeviceView]]:
        """The devices of the service."""
        return (yield from get("/devices", wire.DeviceList)).items

    @endpoint
    def ready(self) -> Call[wire.Health]:
        """Whether the service can do its work."""
        return get("/health/ready", wire.Health)


def _status(status: wire.JobStatus | str) -> str:
    try:
        return wire.JobStatus(status).value
    except ValueError:
        names = ", ".join(wire.JobStatus)
        raise InvalidProblem(f"status must be one of {names}; got {status!r}") from None


def _succeeded(job: wire.JobView) -> wire.JobView:
    if job.status is wire.JobStatus.FAILED:
        document = job.error or wire.ProblemDocument(type="about:blank", title="job failed", status=500)
        raise ServiceError(document.status, document.model_dump(exclude_none=True))
    return job
