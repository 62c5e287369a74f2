"""``LaunchCounter``: how often a problem ran in one way, counted by matmul and reported to the service."""

from __future__ import annotations

import dataclasses

from tilewright.schema.problem import GemmProblem


@dataclasses.dataclass(slots=True)
class LaunchCounter:
    """How often a problem ran in one way.

    Attributes:
        reason: ``tuned: exact``, ``tuned: nearest`` or ``vendor: REASON``.
        problem: what ran; None if the arrays are no GEMM problem.
        device: ordinal of the GPU; -1 on the host.
        miss: whether no kernel was tuned for this problem.
        count: products so far. NOTE: the interpreter does not switch threads between its read and write.
        reported: how many of them the service was told of.
    """

    reason: str
    problem: GemmProblem | None = None
    device: int = -1
    miss: bool = False
    count: int = 0
    reported: int = 0
