"""Records of the store to the lines of an export and back, in one visible place."""

from __future__ import annotations

from datetime import datetime

from tilewright import wire
from tilewright.artifact import Resources
from tilewright.device import DeviceSpec
from tilewright.trial import Baseline, BestConfig, Provenance, Timing, Trial
from tilewright.wire.exchange import BestLine, DeviceFields, JobLine, TrialLine
from tilewright.wire.results import (
    BaselineView,
    ConfigView,
    ProvenanceView,
    ResourcesView,
    TimingView,
    TrialView,
)
from tuner.job import TuneRequest
from tuner.store.exchange import EndedJob
from tuner.store.records import JobRecord, JobStatus, StoredBest


def job_line(job: JobRecord) -> JobLine:
    """A job that has ended."""
    request = job.request
    return JobLine.model_validate(
        {
            "id": job.id,
            "problem": request.problem.to_dict(),
            "device": job.device.to_dict(),
            "families": list(request.families),
            "max_trials": request.max_trials,
            "max_seconds": request.max_seconds,
            "seed": request.seed,
            "status": job.status.value,
            "error": job.error,
            "created": job.created,
            "started": job.started,
            "finished": job.finished,
        }
    )


def ended_job(line: JobLine) -> EndedJob:
    """The inverse of :func:`job_line`.

    Raises:
        InvalidProblem: the problem's types do not go together.
    """
    request = TuneRequest(
        line.problem.to_problem(), tuple(line.families), line.max_trials, line.max_seconds, line.seed
    )
    return EndedJob(
        id=line.id,
        request=request,
        device=_device(line.device),
        status=JobStatus(line.status),
        error=line.error,
        created=line.created,
        started=line.started,
        finished=line.finished,
    )


def trial_line(job_id: str, trial: Trial, created: datetime) -> TrialLine:
    """A trial of a job."""
    fields = TrialView.model_validate(trial).model_dump()
    return TrialLine.model_validate({**fields, "job": job_id, "created": created})


def trial(line: TrialLine) -> Trial:
    """The inverse of :func:`trial_line`."""
    return Trial(
        number=line.number,
        config=line.config.to_config(),
        outcome=line.outcome,
        message=line.message,
        timing=_timing(line.timing) if line.timing else None,
        artifact=line.artifact,
        resources=_resources(line.resources) if line.resources else None,
        provenance=_provenance(line.provenance) if line.provenance else None,
        compile_s=line.compile_s,
        check_s=line.check_s,
        measure_s=line.measure_s,
        origin=line.origin,
        repeatable=line.repeatable,
    )


def best_line(stored: StoredBest) -> BestLine:
    """A winner."""
    best = stored.best
    return BestLine(
        problem=wire.ProblemFields.of(best.problem),
        device_class=best.device_class,
        arch=best.arch,
        config=ConfigView.model_validate(best.config),
        artifact=best.artifact,
        timing=TimingView.model_validate(best.timing),
        ties=[ConfigView.model_validate(config) for config in best.ties],
        baseline=BaselineView.model_validate(best.baseline),
        speedup=best.speedup,
        speedup_low=best.speedup_low,
        speedup_high=best.speedup_high,
        confidence=best.confidence,
        provenance=ProvenanceView.model_validate(best.provenance),
        resources=ResourcesView.model_validate(best.resources),
        job_id=best.job_id or None,
        repeatable=best.repeatable,
        created=stored.created,
    )


def best_config(line: BestLine) -> BestConfig:
    """The inverse of :func:`best_line`.

    Raises:
        InvalidProblem: the problem's types do not go together.
    """
    return BestConfig(
        problem=line.problem.to_problem(),
        device_class=line.device_class,
        arch=line.arch,
        config=line.config.to_config(),
        artifact=line.artifact,
        timing=_timing(line.timing),
        ties=tuple(config.to_config() for config in line.ties),
        baseline=Baseline(**line.baseline.model_dump()),
        speedup=line.speedup,
        speedup_low=line.speedup_low,
        speedup_high=line.speedup_high,
        confidence=line.confidence,
        provenance=_provenance(line.provenance),
        resources=_resources(line.resources),
        job_id=line.job_id or "",
        repeatable=line.repeatable,
    )


def _device(fields: DeviceFields) -> DeviceSpec:
    return DeviceSpec.from_dict(fields.model_dump())


def _timing(view: TimingView) -> Timing:
    return Timing(**(view.model_dump() | {"samples_us": tuple(view.samples_us)}))


def _resources(view: ResourcesView) -> Resources:
    return Resources(**view.model_dump())


def _provenance(view: ProvenanceView) -> Provenance:
    return Provenance(**view.model_dump())
