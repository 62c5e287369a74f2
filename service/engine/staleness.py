"""The sources, compilers and drivers of this service, by which results are judged."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

from kernels.base.family import Family
from kernels.base.spec import SOURCES, Language
from kernels.compiler.build import compiler_version, source_digest
from kernels.registry import FAMILIES
from tilewright.errors import DeviceUnavailable
from tilewright.schema.trial import Provenance


def changed_since(family_name: str, was: Provenance) -> str | None:
    """What changed in a family since a result with the provenance ``was``: ``source-changed``,
    ``toolchain-changed``, or None."""
    family = FAMILIES.get(family_name)
    if family is None or _source(family) not in (None, was.source_digest):
        return "source-changed"
    if _compiler(family.language) not in (None, was.compiler):
        return "toolchain-changed"
    return None


def state(drivers: Iterable[str]) -> str:
    """A digest of sources, compilers and these drivers: services that agree in it judge alike."""
    text = "\n".join([_families(), *sorted(drivers)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _families() -> str:
    """Sources and compilers of all families today."""
    states = (f"{name} {_source(f)} {_compiler(f.language)}" for name, f in sorted(FAMILIES.items()))
    return "\n".join(states)


@functools.cache
def _source(family: Family[Any]) -> str | None:
    """The digest of a family's source today; None if it is not where sources lie."""
    return source_digest(family.source) if (SOURCES / family.source).exists() else None


@functools.cache
def _compiler(language: Language) -> str | None:
    """The compiler in use here; None if there is none."""
    try:
        return compiler_version(language)
    except DeviceUnavailable:
        return None
