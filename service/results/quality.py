"""The quality of a stored result today: its numerics, whether it repeats bit by bit, and what changed
since."""

from __future__ import annotations

from service.engine import staleness as staleness_
from service.engine.base import Engine
from tilewright import wire
from tilewright.schema.config import Config
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig, Provenance
from tuner.store.records import StoredBest

# Families that multiply and add in ordinary floating-point units, as gemv does with math=fma.
_SCALAR = frozenset({"host", "simt"})
# No kernel multiplies float32 on tensor cores, and those for float64 round each step.
_IEEE = frozenset({DType.FLOAT32, DType.FLOAT64})
REASONS = ("source-changed", "toolchain-changed", "driver-changed", "drifted", "quick")
_REDUCED = frozenset({DType.TFLOAT32, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})


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
            numerics=numerics(best.problem, best.config),
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


def numerics(problem: GemmProblem, config: Config) -> str:
    """The class of a kernel's rounding, see :class:`tilewright.wire.QualityView`."""
    if problem.dtype.is_integer:
        return "exact"
    if problem.dtype in _REDUCED:
        return "reduced"
    scalar = config.family in _SCALAR or dict(config.knobs).get("math") == "fma"
    return "ieee" if scalar or problem.dtype in _IEEE else "tensor-core"
