"""A job's recorder that also counts what it records."""

from __future__ import annotations

from service import freshness
from service.metrics import Metrics
from tilewright.artifact import Artifact
from tilewright.trial import Trial
from tuner.store.database import Store
from tuner.store.recorder import JobRecorder


class CountingRecorder(JobRecorder):
    """A :class:`JobRecorder` whose trials show in the metrics of their device, and whose winner replaces one
    that sources or compilers of this service would not make."""

    def __init__(self, store: Store, job_id: str, metrics: Metrics, device: str) -> None:
        super().__init__(store, job_id, freshness.is_current)
        self._metrics = metrics
        self._device = device

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """As :meth:`JobRecorder.add_trial`."""
        super().add_trial(trial, artifact)
        self._metrics.trials.labels(self._device, trial.outcome.value).inc()
        self._metrics.trial_seconds.labels(self._device).inc(trial.check_s + trial.measure_s)
