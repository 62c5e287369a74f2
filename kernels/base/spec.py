"""The input of a compiler, ``BuildSpec``, and its result, ``Built``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from tilewright.artifact import Resources
from tilewright.errors import TilewrightError

Language = Literal["cuda", "c"]
SOURCES = Path(__file__).parents[1]


class CompileError(TilewrightError):
    """The compiler refused a kernel, or the compiled kernel breaks a rule; carries the log."""


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """The result of compiling a :class:`BuildSpec`.

    Attributes:
        binary: cubin or shared library.
        resources: read from the binary (registers, spills, static shared memory).
        compiler: name and version.
    """

    binary: bytes
    resources: Resources
    compiler: str


@dataclasses.dataclass(frozen=True, slots=True)
class BuildSpec:
    """One compilation: a source under ``kernels`` with its ``-D`` constants.

    Attributes:
        language: ``cuda`` (NVRTC) or ``c`` (the system's C compiler).
        source: file name under ``kernels``, for instance ``simt/kernel.cu``.
        target: ``sm_90a``, ``x86_64_v4`` and the like.
        entry: symbol of the kernel.
        defines: (name, value) pairs; values are integers and identifiers only.
    """

    language: Language
    source: str
    target: str
    entry: str
    defines: tuple[tuple[str, int | str], ...]
