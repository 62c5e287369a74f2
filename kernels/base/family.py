"""``Family``: a kernel source with its config space, the rules of that space and how it is searched."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from kernels.base.knobs import Knob, completed, knobs_of
from kernels.base.spec import BuildSpec, Language
from kernels.base.tile_hint import TileHint
from tilewright.artifact import LaunchPlan
from tilewright.schema.codec import KnobValue
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceKind, DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

K = TypeVar("K")

# No kernel multiplies float32 on tensor cores, and those for float64 round each step.
_IEEE = frozenset({DType.FLOAT32, DType.FLOAT64})
_REDUCED = frozenset({DType.TFLOAT32, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})


@dataclasses.dataclass(frozen=True, slots=True)
class Rule(Generic[K]):
    """A validity rule: the knobs it reads and a function that returns the reason it is broken.

    The enumeration tests a rule as soon as the knobs that it reads are chosen, so that one set of rules both
    explains a refusal and prunes the search tree.

    Attributes:
        reads: names of the knobs.
        why: returns the reason, or None if the rule holds.
        compiled: whether the kernel source asserts the rule too; False for rules about a device's budgets or
            about the problem.
    """

    reads: tuple[str, ...]
    why: Callable[[K, GemmProblem, DeviceSpec], str | None]
    compiled: bool = True


class ConfigSpace(abc.ABC, Generic[K]):
    """The configs of a family, as a search sees them.

    Subclasses give ``name``, ``knobs`` (in the order in which the enumeration chooses them: knobs of many
    rules come first), ``rules`` (which configs are valid), ``search_rules`` (which valid configs are not
    worth a trial), ``knobs_type`` and the abstract methods. ``removed`` maps each knob that no longer exists
    to the one value whose behaviour remains.
    """

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[Rule[K], ...]
    search_rules: tuple[Rule[K], ...] = ()
    knobs_type: type[K]
    removed: Mapping[str, KnobValue] = MappingProxyType({})

    @abc.abstractmethod
    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason no config of this space computes ``problem`` on ``device``, or None."""

    @abc.abstractmethod
    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, the most promising one first."""

    def configs_from_hint(self, hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs with the tiling of a hint, the most promising one first; may be empty."""
        del hint, problem, device
        return []

    def knob_values(self, config: Config) -> K:
        """The config as the family's own typed record."""
        return self.knobs_type(**dict(config.knobs))

    def config(self, knobs: K) -> Config:
        """The inverse of :meth:`knob_values`."""
        return Config.of(self.name, dataclasses.asdict(cast(Any, knobs)))

    def completed(self, config: Config) -> Config:
        """A config stored by an earlier version, under current names of family, knobs and values."""
        return completed(Config.of(self.name, dict(config.knobs)), self.knobs, self.removed)

    def why_invalid(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The rule that ``config`` breaks for ``problem`` on ``device``, or None if it is valid."""
        values = dict(config.knobs)
        names = [knob.name for knob in self.knobs]
        if config.family != self.name or sorted(values) != sorted(names):
            return f"{self.name} needs exactly the knobs {', '.join(names)}"
        for knob in self.knobs:
            if values[knob.name] not in knob.legal:
                return f"{knob.name} must be one of {knob.legal}, got {values[knob.name]!r}"
        reason = self.why_unsupported(problem, device)
        if reason:
            return reason
        knobs = self.knob_values(config)
        return next((r for rule in self.rules if (r := rule.why(knobs, problem, device))), None)

    def valid(self, chosen: Iterable[K], problem: GemmProblem, device: DeviceSpec) -> list[K]:
        """The valid ones among some configs."""
        return [k for k in chosen if self.why_invalid(self.config(k), problem, device) is None]

    def worth_a_trial(self, chosen: Sequence[K], problem: GemmProblem, device: DeviceSpec) -> list[K]:
        """The configs among some that no search rule refuses, or all of them if the rules refuse all."""
        worth = [k for k in chosen if self.why_not_searched(self.config(k), problem, device) is None]
        return worth or list(chosen)

    def why_not_searched(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason why a valid config is not worth a trial, or None."""
        knobs = self.knob_values(config)
        return next((r for rule in self.search_rules if (r := rule.why(knobs, problem, device))), None)

    def estimated_clocks(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> float | None:
        """The clocks of a launch by the family's cost model, for comparison only; None without a model."""
        del config, problem, device
        return None

    def listed(self, problem: GemmProblem, device: DeviceSpec) -> Sequence[Sequence[int]] | None:
        """The searched configs as value indices if they are listed; None if the rules define them."""
        del problem, device
        return None

    def at(self, indices: tuple[int, ...]) -> Config:
        """The config whose knobs have the values at these places."""
        pairs = zip(self.knobs, indices, strict=True)
        return Config.of(self.name, {knob.name: knob.values[index] for knob, index in pairs})

    def rules_by_last_knob(self) -> list[list[Rule[K]]]:
        """For each knob, the rules that can be tested once this knob and those before it are chosen."""
        position = {knob.name: depth for depth, knob in enumerate(self.knobs)}
        due: list[list[Rule[K]]] = [[] for _ in self.knobs]
        for rule in self.rules + self.search_rules:
            due[max(position[name] for name in rule.reads)].append(rule)
        return due


class Family(ConfigSpace[K]):
    """A kernel source with its config space, whose knobs are the fields of ``knobs_type``.

    Subclasses also give ``doc`` (one line for people), ``device_kind`` and ``source``, a file under
    ``kernels``, and override :meth:`uses_tensor_cores` where not every config does.
    """

    doc: str
    device_kind: DeviceKind
    source: str

    def __init_subclass__(cls) -> None:
        """Derive the knobs."""
        super().__init_subclass__()
        if "knobs_type" in cls.__dict__:
            cls.knobs = knobs_of(cls.knobs_type)

    @property
    def language(self) -> Language:
        """The language of the source."""
        return "cuda" if self.device_kind == "cuda" else "c"

    def uses_tensor_cores(self, config: Config) -> bool:
        """Whether a config multiplies on tensor cores, rather than on ordinary floating-point units. The
        config may be of an earlier release."""
        del config
        return True

    def numerics(self, config: Config, problem: GemmProblem) -> str:
        """The class of the rounding of a config's kernel, see :class:`tilewright.wire.QualityView`. The
        config may be of an earlier release."""
        if problem.dtype.is_integer:
            return "exact"
        if problem.dtype in _REDUCED:
            return "reduced"
        ieee = problem.dtype in _IEEE or not self.uses_tensor_cores(config)
        return "ieee" if ieee else "tensor-core"

    @abc.abstractmethod
    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """What to compile for a valid config."""

    @abc.abstractmethod
    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """How to launch what :meth:`build_spec` compiles."""
