"""Best configs on the wire."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from tilewright.schema.codec import gathered
from tilewright.schema.config import Config
from tilewright.schema.config_set import Speedup
from tilewright.schema.problem import GemmProblem
from tilewright.schema.resources import Resources
from tilewright.schema.trial import Baseline, BestConfig, Provenance, Timing


class ArtifactLink(BaseModel):
    """Where the kernel's binary is; ``digest`` is the SHA-256 of what ``href`` gives."""

    digest: str
    href: str


class MatchView(BaseModel):
    """How the result was found: ``exact``, or ``nearest`` at a distance in octaves of m, n, k."""

    kind: str
    distance: float = 0.0


class QualityView(BaseModel):
    """What a result is worth to its user.

    Attributes:
        numerics: ``exact`` (integers), ``ieee`` (every step rounds in the accumulate type), ``tensor-core``
            (exact products, sums truncated by the hardware), ``reduced`` (operands or sums keep fewer bits
            than their type).
        deterministic: launches on the same operands were seen to give the same bits.
        staleness: ``fresh``, ``source-changed``, ``toolchain-changed`` or ``driver-changed`` since it was
            measured, as far as this service can tell; the first of these that holds, in this order.
    """

    numerics: str = "unknown"
    deterministic: bool = False
    staleness: str = "fresh"


class BestConfigView(QualityView):
    """The winner of a race, and what it won against.

    ``verdict`` is ``kernel``, ``vendor`` or ``tie``; ``use_vendor`` is true where the vendor
    library was faster in the race, if only by less than the race can tell.
    ``expected_regret`` is for near matches: by how much the time is expected to exceed that of a kernel
    tuned for the very problem (0.1: by a tenth), None where the store cannot tell.
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
    created: datetime

    @classmethod
    def of(
        cls, best: BestConfig, created: datetime, match: MatchView, quality: QualityView
    ) -> BestConfigView:
        """From the record, and when it was stored."""
        artifact = ArtifactLink(digest=best.artifact, href=f"/artifacts/{best.artifact}")
        told = {"artifact": artifact, "speedup": speedup_of(best), "match": match, "created": created}
        return cls(**gathered(cls, best, quality, **told))


def speedup_of(best: BestConfig) -> Speedup:
    """A winner's speed-up with its interval."""
    return Speedup(best.speedup, best.speedup_low, best.speedup_high, best.confidence)


class BestConfigList(BaseModel):
    """A page of best configs; ``next`` is the cursor of the next page."""

    items: list[BestConfigView]
    next: str | None = None
