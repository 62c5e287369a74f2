"""How a client comes by its kernels."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tilewright.catalog import Policy
from tilewright.errors import InvalidProblem
from tilewright.prune import Bounds

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class StartOptions:
    """How a client comes by its kernels.

    Attributes:
        timeout: seconds that start-up may block; 0 for not at all.
        refresh_s: seconds between two looks at the service.
        offline: use what the cache has and never ask the service.
        pin: ``sha256:...`` of the only config set to use.
        cache_dir: where sets and artifacts are kept; the platform's folder for caches unless given.
        cache: how much of it is kept, for how long.
        policy: what may answer for a problem.
    """

    timeout: float = 2.0
    refresh_s: float = 300.0
    offline: bool = False
    pin: str | None = None
    cache_dir: Path | None = None
    cache: Bounds = dataclasses.field(default_factory=Bounds)
    policy: Policy = dataclasses.field(default_factory=Policy)

    def __post_init__(self) -> None:
        if self.pin is not None and not _DIGEST.fullmatch(self.pin):
            raise InvalidProblem(f"pin must be sha256: and 64 hexadecimal digits, got {self.pin!r}")
