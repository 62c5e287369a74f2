"""``LaunchCounter``: counts the launches of a problem, for ``stats`` and for reports of misses."""

from __future__ import annotations

import dataclasses

from tilewright.schema.problem import GemmProblem


@dataclasses.dataclass(slots=True)
class LaunchCounter:
    """The number of launches of a problem for one reason.

    Attributes:
        reason: ``tuned: exact``, ``tuned: ladder``, ``tuned: nearest`` or ``vendor: REASON``.
        problem: the problem; None if the arrays are not a GEMM problem.
        device: ordinal of the GPU; -1 on the host.
        miss: whether no kernel was tuned for this problem.
        count: products so far. NOTE: the interpreter does not switch threads between its read and write.
        reported: number of those that were reported to the service.
    """

    reason: str
    problem: GemmProblem | None = None
    device: int = -1
    miss: bool = False
    count: int = 0
    reported: int = 0
