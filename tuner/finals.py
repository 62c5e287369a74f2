"""The end of a job: finalists race the vendor, and the winner's lead is measured afresh.

Taking the best of many noisy medians flatters it, and the search takes them at clocks that the device does
not hold. So many of its fastest run a semi-final under load, the finalists are raced again, interleaved
with the vendor, and the speed-up that is reported comes from a last race of the winner and the vendor
alone, whose samples decided nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.artifact import Artifact
from tilewright.config import Config
from tilewright.trial import Baseline, BestConfig, Outcome, Timing, Trial
from tuner.context import JobContext
from tuner.ledger import timed
from tuner.stats import CONFIDENCE, median, median_interval, paired_ratio

if TYPE_CHECKING:
    from tuner.race import RaceSamples

FIELD = 32
FINALISTS = 8
WITHIN = 1.15
NEGLIGIBLE = 1.003
RACE_SECONDS = 20.0
SEMIFINAL_SECONDS = RACE_SECONDS / 4
SEMIFINAL_ROUNDS = (6, 6)
RACE_ROUNDS = (16, 32)
DUEL_ROUNDS = (16, 64)


@dataclasses.dataclass(frozen=True, slots=True)
class Finalist:
    """A complete trial that may win, with the kernel it measured."""

    trial: Trial
    artifact: Artifact

    @property
    def config(self) -> Config:
        """What was tried."""
        return self.trial.config

    @property
    def sample_s(self) -> float:
        """Seconds that one of its samples took in the search, warm-up shared out."""
        return self.trial.measure_s / len(timed(self.trial).samples_us)

    @property
    def cost(self) -> tuple[int, int, str]:
        """What decides among equals, the lower the better: shared memory, registers, the config's text."""
        used = self.artifact.resources
        return used.static_smem + used.dynamic_smem, used.registers, str(self.config)


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """How a race of finalists ended: the winner, and who could not be told from the fastest."""

    winner: Finalist
    ties: tuple[Config, ...]


def shortlist(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest complete trials: at most 32, within 15 % of the best median, each kernel once."""
    ranked = sorted(
        (t for t in trials if t.outcome is Outcome.OK), key=lambda t: (timed(t).median_us, t.number)
    )
    by_kernel: dict[str | None, Trial] = {}
    for trial in ranked:
        if timed(trial).median_us <= timed(ranked[0]).median_us * WITHIN:
            by_kernel.setdefault(trial.artifact, trial)
    return list(by_kernel.values())[:FIELD]


def field(entrants: Sequence[Finalist]) -> list[Finalist]:
    """Who runs the semi-final: the fastest whose samples take no more than 5 s together, at least 8."""
    rounds, _ = SEMIFINAL_ROUNDS
    spent_s = itertools.accumulate(rounds * one.sample_s for one in entrants)
    return list(entrants[: max(FINALISTS, sum(seconds <= SEMIFINAL_SECONDS for seconds in spent_s))])


def advancing(entrants: Sequence[Finalist], rows: Sequence[Sequence[float]]) -> list[Finalist]:
    """The 8 of the lowest medians, from one row of microseconds an entrant; the earlier of equals."""
    ranked = sorted(range(len(rows)), key=lambda i: (median(rows[i]), i))
    return [entrants[i] for i in ranked[:FINALISTS]]


def rounds(round_s: float, bounds: tuple[int, int]) -> int:
    """Rounds of a race, ``round_s`` seconds each: as many as fit into 20 s, within ``bounds``."""
    fewest, most = bounds
    return most if round_s * most <= RACE_SECONDS else max(fewest, int(RACE_SECONDS / round_s))


def standing(finalists: Sequence[Finalist], rows: Sequence[Sequence[float]]) -> Standing:
    """Who won, from one row of microseconds a finalist, all from the same rounds.

    The fastest median leads, and whoever's paired ratio to it may be 1 ties with it. Among those that
    are at most 0.3 % behind, the one that costs least wins: a noisy race ties much, and must not crown
    a slow kernel for being small.
    """
    fastest = min(range(len(rows)), key=lambda i: (median(rows[i]), i))
    behind = [paired_ratio(row, rows[fastest]) for row in rows]
    tied = [i for i, ratio in enumerate(behind) if ratio.undecided]
    equals = [i for i in tied if behind[i].value <= NEGLIGIBLE]
    winner = min(equals, key=lambda i: finalists[i].cost)
    return Standing(finalists[winner], tuple(finalists[i].config for i in tied if i != winner))


def best_config(context: JobContext, won: Standing, duel: RaceSamples) -> BestConfig:
    """What the job found: the winner with its lead over the vendor in ``duel``, a race of these two.

    Where they were also raced apart the lead and either end of its interval are the lesser of the two;
    times are of launches back to back, and the baseline's detail has the medians apart.
    """
    both = [duel.samples_us] + ([duel.apart_us] if duel.apart_us else [])
    ratios = [paired_ratio(vendor, kernel) for kernel, vendor in both]
    apart = dict(zip(("kernel", "vendor"), map(median, duel.apart_us), strict=False))
    detail = duel.vendor_detail | ({"apart_us": apart} if apart else {})
    artifact = won.winner.artifact
    return BestConfig(
        problem=context.problem,
        device_class=context.device.device_class.id,
        arch=context.device.arch,
        config=won.winner.config,
        artifact=artifact.digest,
        timing=_winner_timing(duel),
        ties=won.ties,
        baseline=Baseline(duel.vendor_name, median(duel.samples_us[1]), detail),
        speedup=min(ratio.value for ratio in ratios),
        speedup_low=min(ratio.low for ratio in ratios),
        speedup_high=min(ratio.high for ratio in ratios),
        confidence=CONFIDENCE,
        provenance=context.provenance(artifact, duel.method),
        resources=artifact.resources,
        job_id=context.job_id,
        repeatable=won.winner.trial.repeatable,
    )


def _winner_timing(duel: RaceSamples) -> Timing:
    interval = median_interval(duel.samples_us[0])
    return Timing(
        samples_us=tuple(duel.samples_us[0]),
        median_us=interval.value,
        low_us=interval.low,
        high_us=interval.high,
        method=duel.method,
        mhz=duel.mhz,
        watts=duel.watts,
    )
