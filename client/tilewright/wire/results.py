"""Best configs, explanations and reports on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from tilewright.schema.codec import KeyName, gathered
from tilewright.schema.config import Config
from tilewright.schema.config_set import Speedup
from tilewright.schema.explanation import Explanation
from tilewright.schema.kernel import Resources
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Baseline, BestConfig, Provenance, Timing
from tilewright.wire.requests import LookupQuery, ProblemQuery


class ArtifactLink(BaseModel):
    """The link to an artifact; ``digest`` is the SHA-256 of the content at ``href``."""

    digest: str
    href: str

    @classmethod
    def to(cls, digest: str) -> ArtifactLink:
        """The link to the artifact of a digest."""
        return cls(digest=digest, href=f"/artifacts/{digest}")


class MatchView(BaseModel):
    """The match of a result: ``exact``, or ``nearest`` at a distance in octaves of m, n, k."""

    kind: str
    distance: float = 0.0


class QualityView(BaseModel):
    """The quality of a result.

    Attributes:
        numerics: ``exact`` (integers), ``ieee`` (every step rounds in the accumulate type), ``tensor-core``
            (exact products, accumulators truncated by the hardware), ``reduced`` (operands or accumulators
            keep fewer bits than their type), ``unknown`` for a family that the service lacks.
        deterministic: whether launches on the same operands gave the same bits.
        staleness: ``fresh``, or the first that holds, as far as this service can tell: ``source-changed``,
            ``toolchain-changed`` and ``driver-changed`` since the measurement, ``drifted`` (an idle device
            measured another time since), ``quick``.
    """

    numerics: str = "unknown"
    deterministic: bool = False
    staleness: str = "fresh"


class BestConfigView(QualityView):
    """The winner of a race, and its baseline.

    ``verdict`` is ``kernel``, ``vendor``, ``tie``, or ``disturbed`` if ``timing.disturbed`` names others that
    used the device. ``use_vendor`` is true then, and if the speed-up is below 1, also if its interval
    contains 1. ``expected_regret`` is for near matches: the expected excess of the time over that of a
    kernel tuned for the problem (0.1 is a tenth); None if the store has too few results.
    ``import_id`` names the import of a winner that was raced elsewhere.
    """

    problem: GemmProblem
    device_class: str
    arch: str
    config: Config
    artifact: ArtifactLink
    timing: Timing
    tflops: float
    baseline: Baseline
    speedup: Speedup
    verdict: str
    use_vendor: bool = False
    ties: tuple[Config, ...]
    match: MatchView
    expected_regret: float | None = None
    provenance: Provenance
    resources: Resources
    job_id: str
    import_id: str | None = None
    created: datetime

    @classmethod
    def of(
        cls, best: BestConfig, quality: QualityView, near: LookupResult | None = None, **stored: Any
    ) -> BestConfigView:
        """The view of a record, with ``created`` and ``import_id`` of its row; ``near`` if it answers for
        another problem."""
        told = {
            "artifact": ArtifactLink.to(best.artifact),
            "speedup": speedup_of(best),
            "match": MatchView(kind=near.kind, distance=near.distance) if near else MatchView(kind="exact"),
            "expected_regret": near.expected_regret if near else None,
        }
        return cls(**gathered(cls, best, quality, **told, **stored))


def speedup_of(best: BestConfig) -> Speedup:
    """A winner's speed-up with its interval."""
    return Speedup(best.speedup, best.speedup_low, best.speedup_high, best.confidence)


class BestConfigList(BaseModel):
    """A page of best configs; ``next`` is the cursor of the next page. Of a list without any, ``archs`` are
    the architectures that have some."""

    items: list[BestConfigView]
    archs: list[str] = []
    next: str | None = None


class ExplainQuery(LookupQuery, ProblemQuery, frozen=True):
    """``GET /explain``: a problem, where to look, and limits on what may answer."""


class ExplainView(BaseModel):
    """What a call would run, and why its kernel takes the time that it takes.

    Attributes:
        runs: ``exact``, ``nearest``, or ``vendor`` where the vendor library runs although there is a result.
        reason: why the vendor library runs; equal to ``runs`` otherwise.
        result: the result, with the vendor library's choice in ``baseline``.
        explanation: of the result's config on the result's problem and device.
    """

    runs: str
    reason: str
    result: BestConfigView
    explanation: Explanation


class ReportQuery(BaseModel, frozen=True):
    """``GET /report``: of one device class, or of all."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName | None = None
