"""Knobs: each is one field of its family's config dataclass, and everything else derives from that field.

A family declares its knobs once::

    @dataclasses.dataclass(slots=True)
    class Knobs:
        tile_m: int = knob(64, (16, 32, 64, 128), "rows of D that a CTA computes")
        raster: str = knob("m", ("m", "n"), "axis along which consecutive tiles lie")

The knob table of ``GET /families``, the ``-D`` flags, the tables of ``docs/families.md``, the completion of
configs that earlier versions stored and the base config of the tests (``Knobs()``) follow from the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack

from tilewright.schema.codec import KnobValue
from tilewright.schema.config import Config


@dataclasses.dataclass(frozen=True, slots=True)
class Knob:
    """A named choice.

    Attributes:
        name: as in the config.
        legal: every value that the kernel accepts, in order.
        doc: one line for people.
        searched: the values that the tuner tries; all legal ones unless given.
        macro: the ``-D`` macro; None for a knob that the compiled kernel does not depend on.
        codes: the macro's value for each legal value that is not an integer.
        absent: the value of configs that were stored before the knob existed; None if it always existed.
        was: its name in configs that earlier versions stored.
        values_were: earlier names of values, mapped to the current ones.
        replaces: earlier knobs that this one replaced, each with its value in configs that lack it.
        combined: values of the replaced knobs, in their order, mapped to the value of this one.
    """

    name: str
    legal: tuple[KnobValue, ...]
    doc: str
    searched: tuple[KnobValue, ...] = ()
    macro: str | None = None
    codes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    absent: KnobValue | None = None
    was: str = ""
    values_were: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    combined: Mapping[tuple[str, ...], str] = dataclasses.field(default_factory=dict)

    @property
    def values(self) -> tuple[KnobValue, ...]:
        """The values that the tuner tries."""
        return self.searched or self.legal

    @property
    def legal_by_text(self) -> dict[str, KnobValue]:
        """The legal values, keyed by their text."""
        return {str(value): value for value in self.legal}

    def code(self, value: KnobValue) -> int:
        """The value of the ``-D`` macro for a legal value of the knob."""
        return value if isinstance(value, int) else self.codes[value]

    def stored(self, values: Mapping[str, KnobValue]) -> KnobValue | None:
        """The knob's value in a stored config, under current names; None if the config lacks the knob, or if
        its value no longer exists."""
        if self.name not in values and any(name in values for name in self.replaces):
            return self.combined.get(tuple(str(values.get(*before)) for before in self.replaces.items()))
        value = values.get(self.name, values.get(self.was, self.absent))
        return None if value is None else self._current(value)

    def renamed(self, recorded: Knob) -> Knob:
        """A recorded knob of an earlier version under the current names of the knob and its values."""
        return dataclasses.replace(
            recorded, name=self.name, legal=tuple(self._current(value) for value in recorded.legal)
        )

    def _current(self, value: KnobValue) -> KnobValue:
        return self.values_were.get(value, value) if isinstance(value, str) else value


class History(TypedDict, total=False):
    """The fields of a :class:`Knob` that map configs of earlier versions to it."""

    absent: KnobValue
    was: str
    values_were: Mapping[str, str]
    replaces: Mapping[str, str]
    combined: Mapping[tuple[str, ...], str]


def knob(
    base: KnobValue,
    legal: Iterable[KnobValue],
    doc: str,
    *,
    searched: Iterable[KnobValue] = (),
    macro: str | None = "",
    codes: Mapping[str, int] | None = None,
    **history: Unpack[History],
) -> Any:
    """A dataclass field that declares a :class:`Knob`.

    Args:
        base: the field's default: all defaults together are a valid config.
        macro: the knob's name in upper case unless given; None for a knob without a macro.
        codes: the position among ``legal`` unless given.
    """
    legal = tuple(legal)
    positions = {value: position for position, value in enumerate(legal) if isinstance(value, str)}
    declared = Knob(
        name="",
        legal=legal,
        doc=doc,
        searched=tuple(searched),
        macro=macro,
        codes=positions if codes is None else codes,
        **history,
    )
    return dataclasses.field(default=base, metadata={"knob": declared})


def knobs_of(declaration: type[Any]) -> tuple[Knob, ...]:
    """The knobs that a config dataclass declares, in the order of its fields."""
    return tuple(
        dataclasses.replace(
            found, name=field.name, macro=field.name.upper() if found.macro == "" else found.macro
        )
        for field in dataclasses.fields(declaration)
        if (found := field.metadata.get("knob"))
    )


def defines(knobs: Iterable[Knob], values: Any) -> dict[str, int]:
    """The ``-D`` macros of a config, given as its family's dataclass."""
    return {one.macro: one.code(getattr(values, one.name)) for one in knobs if one.macro}


def completed(config: Config, knobs: Iterable[Knob], removed: Mapping[str, KnobValue]) -> Config:
    """A config that an earlier version stored, under the current knobs and names.

    A config that lacks a knob, or whose behaviour no longer exists, is returned unchanged and is invalid.
    Knobs that neither exist nor are in ``removed`` are dropped: results are the same whatever their value.

    Args:
        removed: knobs that no longer exist, with the one value whose behaviour remains.
    """
    stored = dict(config.knobs)
    if any(stored.get(name, value) != value for name, value in removed.items()):
        return config
    known = {one.name: value for one in knobs if (value := one.stored(stored)) is not None}
    return Config.of(config.family, known) if all(one.name in known for one in knobs) else config


def markdown_table(knobs: Iterable[Knob]) -> str:
    """The knobs as a Markdown table for ``docs/families.md``."""
    rows = ["| knob | meaning | values |", "| --- | --- | --- |"]
    for k in knobs:
        rows.append(f"| `{k.name}` | {k.doc} | {_listed(k.legal)}{_searched(k)} |")
    return "\n".join(rows)


def _searched(k: Knob) -> str:
    """Which of the legal values the tuner tries, in the fewest words."""
    left = tuple(value for value in k.legal if value not in k.values)
    if not left:
        return ""
    return f"; not searched: {_listed(left)}" if len(left) <= 2 else f"; searched: {_listed(k.values)}"


def _listed(values: tuple[KnobValue, ...]) -> str:
    """``1, 2, 4``; of many, a long even run is written as its ends: ``8, 16 .. 256``."""
    numbers = [value for value in values if isinstance(value, int)]
    even = next(
        (i for i in range(2, len(numbers)) if numbers[i] - numbers[i - 1] != numbers[1] - numbers[0]),
        len(numbers),
    )
    if len(values) <= 12 or even < 4:
        return ", ".join(map(str, values))
    return ", ".join([f"{values[0]}, {values[1]} .. {values[even - 1]}", *map(str, values[even:])])
