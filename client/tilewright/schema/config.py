"""``Config``: one point of a kernel family's space."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from tilewright.errors import InvalidProblem
from tilewright.schema.codec import KnobValue, Pairs, decode, encode, too_large


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """The name of a family and a value for each of its knobs; hashable.

    Attributes:
        family: name of the kernel family.
        knobs: (name, value) pairs sorted by name.
    """

    family: str
    knobs: Annotated[tuple[tuple[str, KnobValue], ...], Pairs()]

    @classmethod
    def of(cls, family: str, knobs: Mapping[str, KnobValue]) -> Config:
        """A config from a mapping of knob names to values.

        Raises:
            InvalidProblem: a value is neither an integer of 64 bits nor a string.
        """
        for name, value in knobs.items():
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise InvalidProblem(f"knob {name} of {family} must be an integer or a name, got {value!r}")
            if isinstance(value, int) and (broken := too_large(value)):
                raise InvalidProblem(f"knob {name} of {family} must be {broken}")
        return cls(family, tuple(sorted(knobs.items())))

    def __getitem__(self, name: str) -> KnobValue:
        return dict(self.knobs)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.knobs)

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of the canonical JSON."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """``{"family": ..., "knobs": {...}}``."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """The inverse of :meth:`to_dict`."""
        return decode(cls, data)

    def __str__(self) -> str:
        return f"{self.family}(" + ", ".join(f"{name}={value}" for name, value in self.knobs) + ")"
