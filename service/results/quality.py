"""The quality of a stored result today: its numerics, whether it repeats bit by bit, and what changed
since."""

from __future__ import annotations

from kernels.registry import family_named
from service.engine import staleness as staleness_
from service.engine.base import Engine
from tilewright import wire
from tilewright.schema.match import LookupResult
from tilewright.schema.trial import BestConfig, Provenance
from tuner.store.records import StoredBest

REASONS = ("source-changed", "toolchain-changed", "driver-changed", "drifted", "quick")


class ResultQuality:
    """Judges results by the sources, compilers and drivers of this service; safe to share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def best_view(self, stored: StoredBest, near: LookupResult | None = None) -> wire.BestConfigView:
        """A winner with its quality; ``near`` if it answers for another problem."""
        told = {"created": stored.created, "import_id": stored.import_id}
        return wire.BestConfigView.of(stored.best, self.view(stored.best, stored.drifted), near, **told)

    def view(self, best: BestConfig, drifted: bool = False) -> wire.QualityView:
        """The quality of ``best``; ``drifted`` if an idle device measured another time since."""
        family = best.config.family
        return wire.QualityView(
            numerics=_numerics(best),
            deterministic=best.repeatable is True,
            staleness=self.staleness_of(family, best.provenance, drifted),
        )

    def staleness_of(self, family_name: str, was: Provenance, drifted: bool = False) -> str:
        """What changed since a result of a family with the provenance ``was`` was measured; ``quick`` or
        ``fresh`` if this service sees no change."""
        changed = staleness_.changed_since(family_name, was)
        if changed is not None:
            return changed
        drivers = self._drivers(was.device_class)
        if drivers and was.driver not in drivers:
            return "driver-changed"
        if drifted:
            return "drifted"
        return "quick" if was.quick else "fresh"

    def state(self, device_class: str) -> str:
        """A digest of everything on which :meth:`view` depends for results of a device class."""
        return staleness_.state(self._drivers(device_class))

    def _drivers(self, device_class: str) -> set[str]:
        benches = [queue.bench for queue in self._engine.queues.values()]
        return {bench.driver for bench in benches if bench.spec.device_class.id == device_class}


def _numerics(best: BestConfig) -> str:
    """The class of a winner's rounding; ``unknown`` if no family of this release has or had its name."""
    try:
        return family_named(best.config.family).numerics(best.config, best.problem)
    except KeyError:
        return "unknown"
