"""How a client gets its kernels, and which of them may run."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any, TypedDict

from tilewright.artifact.cache import KERNEL_BYTES, Bounds, default_folder
from tilewright.errors import InvalidProblem
from tilewright.http.calls import MOST_SECONDS, checked_flag, is_number
from tilewright.schema.match import MatchLimits
from tilewright.trust import checked_key

_LEAST_PAUSE_S = 0.1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class LocalOptions(TypedDict, total=False):
    """The names of :class:`StartOptions` for type checkers."""

    start_timeout: float
    refresh_s: float
    offline: bool
    pin: str | None
    trust: str | None
    cache_dir: str | os.PathLike[str] | None
    cache_bytes: int
    cache_days: float
    kernel_bytes: int
    max_regret: float | None
    deterministic: bool
    overlap: bool


@dataclasses.dataclass(slots=True)
class StartOptions:
    """How a client gets its kernels, and which of them may run.

    Attributes:
        start_timeout: seconds that start-up may block; 0 for not at all.
        refresh_s: seconds between two looks at the service, at least 0.1.
        offline: use what the cache has and never ask the service.
        pin: ``sha256:...`` of the only config set to use.
        trust: ``ed25519:...``, the key that signs the service's kernels; the first one that it signs with
            unless given, which is kept with the cache.
        cache_dir: where sets and artifacts are kept; the platform's folder for caches unless given.
        cache_bytes, cache_days, bounds: how much of it is kept, for how long.
        kernel_bytes: most bytes of kernels that stay loaded while no launch uses them.
        max_regret, deterministic, limits: what may answer for a problem.
        overlap: whether a launch may start while the kernel before it on the stream ends.

    Raises:
        InvalidProblem: an option has another type or is out of range, or the pin is no digest.
    """

    start_timeout: float = 2.0
    refresh_s: float = 300.0
    offline: bool = False
    pin: str | None = None
    trust: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int = 2 * 2**30
    cache_days: float = 30.0
    kernel_bytes: int = KERNEL_BYTES
    max_regret: float | None = 0.1
    deterministic: bool = False
    overlap: bool = False
    bounds: Bounds = dataclasses.field(init=False)
    limits: MatchLimits = dataclasses.field(init=False)
    folder: Path = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for name in ("offline", "deterministic", "overlap"):
            setattr(self, name, checked_flag(name, getattr(self, name)))
        for name in ("start_timeout", "refresh_s", "cache_bytes", "cache_days", "kernel_bytes", "max_regret"):
            _check_number(name, getattr(self, name))
        if not isinstance(self.cache_dir, str | os.PathLike | None):
            raise InvalidProblem(f"cache_dir must be a path, got {self.cache_dir!r}")
        if self.pin is not None and not (isinstance(self.pin, str) and _DIGEST.fullmatch(self.pin)):
            raise InvalidProblem(f"pin must be sha256: and 64 hexadecimal digits, got {self.pin!r}")
        if self.trust is not None:
            checked_key(self.trust)
        self.bounds = Bounds(self.cache_bytes, self.cache_days)
        self.limits = MatchLimits(self.max_regret, self.deterministic)
        self.folder = default_folder() if self.cache_dir is None else _folder(self.cache_dir)


def _folder(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder, so that it stays the same if the working directory changes."""
    try:
        found = Path(path).expanduser().absolute()
        if "\0" in str(found):
            raise ValueError("a null byte")
        if not os.fspath(path):
            raise ValueError("'.' is the working directory")
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise InvalidProblem(f"cache_dir must name a folder, got {path!r} ({error})") from None
    return found


def _check_number(name: str, value: Any) -> None:
    if name == "max_regret" and value is None:
        return
    kind = "whole" if name.endswith("_bytes") else "finite"
    if not is_number(value) or not 0 <= float(value) < math.inf or (kind == "whole" and value % 1):
        raise InvalidProblem(f"{name} must be a {kind} number that is not negative, got {value!r}")
    if name in ("start_timeout", "refresh_s") and float(value) > MOST_SECONDS:
        raise InvalidProblem(f"{name} must be at most {MOST_SECONDS:g} seconds, got {value!r}")
    if name == "refresh_s" and value < _LEAST_PAUSE_S:
        raise InvalidProblem(
            f"refresh_s must be at least {_LEAST_PAUSE_S:g} seconds, got {value!r}; to never ask, use"
            " offline=True"
        )
