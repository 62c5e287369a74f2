"""The metrics of ``GET /metrics`` for Prometheus.

Labels are few and bounded: methods, route templates, statuses, outcomes, device names; never shapes or ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tilewright import __version__

_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REGRET = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LOCK_S = (0.0001, 0.001, 0.01, 0.1, 0.5, 1, 5, 30)
_JOB_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14_400)
Reading = tuple[str, str, Sequence[str], Sequence[tuple[Sequence[str], float]]]


class Metrics:
    """The counters of one service.

    Attributes:
        requests: seconds of HTTP requests by method, route template and status.
        lookups: answers to lookups of one problem, by how they matched and by architecture.
        regret: expected regret of near matches that were served.
        lock_wait: seconds that transactions waited for SQLite's one writer.
        jobs: seconds of jobs that ended, from their last claim, by status.
        trials, trial_seconds: trials by outcome, and seconds the device spent on them.
        canary: winners that an idle device measured again, by what was found.
        gemms: seconds of parts of ``POST /gemm`` by device and part.
        gemm_runs: GEMMs by device and what ran: ``tuned`` or ``vendor``.
        gemm_refusals: GEMMs that were not let in, by reason.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        histogram = functools.partial(Histogram, registry=registry)
        counter = functools.partial(Counter, registry=registry)
        ProcessCollector(registry=registry)
        Gauge("tilewright_build_info", "Always 1", ["version"], registry=registry).labels(__version__).set(1)
        self.requests = histogram(
            "tilewright_http_request_duration_seconds",
            "HTTP requests",
            ["method", "route", "status"],
            buckets=_REQUEST_S,
        )
        self.lookups = counter("tilewright_lookup_total", "Lookups of one problem", ["match", "arch"])
        self.regret = histogram(
            "tilewright_lookup_regret_ratio", "Expected regret of near matches", buckets=_REGRET
        )
        self.lock_wait = histogram(
            "tilewright_db_lock_wait_seconds",
            "Waits of writing transactions for SQLite's lock",
            buckets=_LOCK_S,
        )
        self.jobs = histogram(
            "tilewright_job_duration_seconds", "Jobs that ended", ["status"], buckets=_JOB_S
        )
        self.trials = counter("tilewright_trials_total", "Trials", ["device", "outcome"])
        self.trial_seconds = counter(
            "tilewright_trial_device_seconds_total", "Device time of trials", ["device"]
        )
        self.canary = counter(
            "tilewright_canary_readings_total",
            "Winners measured again, by what was found",
            ["device", "found"],
        )
        self.gemms = histogram(
            "tilewright_gemm_duration_seconds",
            "Parts of GEMM requests",
            ["device", "part"],
            buckets=_REQUEST_S,
        )
        self.gemm_runs = counter("tilewright_gemm_total", "GEMMs run", ["device", "ran"])
        self.gemm_refusals = counter("tilewright_gemm_refused_total", "GEMMs not let in", ["reason"])

    def watch(self, read: Callable[[], Iterable[Reading]]) -> None:
        """Ask ``read`` for gauges at every scrape: name, help, label names, and values by labels."""
        self._registry.register(_Readings(read))

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)


class _Readings(Collector):
    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise registering would already read the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The current readings; a name that ends with ``_total`` is a counter."""
        for name, text, labels, values in self._read():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=labels)
            for of, value in values:
                family.add_metric(of, value)
            yield family
