"""``LaunchPlan``: how to launch the binary of an artifact, and for what problems."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from tilewright.artifact.arguments import Argument, argument
from tilewright.artifact.grid import Grid
from tilewright.artifact.steps import Finish, Repack
from tilewright.errors import ArtifactError
from tilewright.problem import GemmProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Serves:
    """What problems an artifact computes: everything of a problem but its extents."""

    dtype: str
    layout: str
    out_dtype: str
    acc_dtype: str
    activation: str
    has_bias: bool
    has_c: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Serves:
        """The signature of a problem."""
        return cls(
            problem.dtype.value,
            problem.layout.value,
            problem.out.value,
            problem.accumulate.value,
            problem.activation.value,
            problem.has_bias,
            problem.has_c,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory in bytes: first a part that must be zero before the first launch (the kernel
    leaves it zero again), then the rest, both aligned to 256 bytes."""

    zero_bytes_per_tile: int = 0
    bytes_per_tile: int = 0
    fixed_bytes: int = 0

    def zero_bytes(self, tiles: int) -> int:
        """Bytes at the front that must be zero, for ``tiles`` tiles over the whole batch."""
        return -(-self.zero_bytes_per_tile * tiles // 256) * 256

    def total_bytes(self, tiles: int) -> int:
        """All bytes for ``tiles`` tiles over the whole batch."""
        return self.zero_bytes(tiles) + self.bytes_per_tile * tiles + self.fixed_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Preconditions:
    """What operands and device must meet, checked before each launch.

    Attributes:
        align_a, align_b, align_d: bytes that must divide base addresses and row strides
            (``align_d`` holds for C and D).
        min_driver: lowest CUDA version of the driver as in ``cuDriverGetVersion``; 0 for none.
        max_extent: largest m, n and k that the kernel's 32-bit arithmetic holds; 0 for no bound.
        max_k: largest k of which the kernel was built to hold one operand; 0 for no bound.
    """

    align_a: int = 1
    align_b: int = 1
    align_d: int = 1
    min_driver: int = 0
    max_extent: int = 0
    max_k: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to launch the binary of an artifact.

    Attributes:
        format: ``cubin`` for a GPU, ``elf`` for a shared library of the host.
        target: ``sm_90a``, ``x86_64_v4`` and the like: what the binary was compiled for.
        entry: symbol of the kernel.
        block: threads of a block in x, y, z; on the host x is the number of threads.
        cluster: blocks of a cluster in x, y, z; the grid must be a multiple.
        dynamic_smem: dynamic shared memory of a block in bytes.
        programmatic: the kernel may start while the one before it in the stream ends; it waits for that
            itself before it reads or writes memory; before, it may bring operands into the L2
            (programmatic dependent launch).
        repacks: launches before the kernel's own; ``finish`` the one after it, if there is one.
        grid, args, workspace, serves, preconditions: see their classes.
    """

    format: Literal["cubin", "elf"]
    target: str
    entry: str
    block: tuple[int, int, int]
    grid: Grid
    args: tuple[Argument, ...]
    serves: Serves
    dynamic_smem: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False
    repacks: tuple[Repack, ...] = ()
    finish: Finish | None = None
    workspace: Workspace = Workspace()
    preconditions: Preconditions = Preconditions()

    def why_not_served(self, problem: GemmProblem) -> str | None:
        """The reason this plan cannot compute ``problem`` however its operands lie, or None."""
        if Serves.of(problem) != self.serves:
            return f"the artifact serves {self.serves}, the problem is {Serves.of(problem)}"
        most = self.preconditions.max_extent
        if most and max(problem.m, problem.n, problem.k) > most:
            return f"m, n and k must be at most {most}"
        longest = self.preconditions.max_k
        if longest and problem.k > longest:
            return f"k must be at most {longest}: the kernel was built to hold one operand of that"
        return None

    def why_not(self, problem: GemmProblem) -> str | None:
        """The reason this plan cannot compute ``problem`` when densely packed, or None."""
        reason = self.why_not_served(problem)
        if reason:
            return reason
        needed = self.preconditions
        for operand, bytes_needed in (("a", needed.align_a), ("b", needed.align_b), ("d", needed.align_d)):
            if problem.stride_alignment(operand) % bytes_needed:
                return f"row stride of {operand} must be a multiple of {bytes_needed} bytes"
        return None

    def workspace_bytes(self, problem: GemmProblem) -> int:
        """Bytes of workspace the problem needs, copies of repacked operands included."""
        own = self.workspace.total_bytes(self.grid.tiles(problem) * problem.batch)
        return (
            self._packed_start(problem) + sum(x.bytes(problem) for x in self.repacks) if self.repacks else own
        )

    def packed(self, problem: GemmProblem, operand: str) -> tuple[int, int] | None:
        """(offset in the workspace, bytes from row to row) of an operand's copy, or None if it has none."""
        offset = self._packed_start(problem)
        for one in self.repacks:
            if one.operand == operand:
                return offset, one.row_bytes(problem)
            offset += one.bytes(problem)
        return None

    def _packed_start(self, problem: GemmProblem) -> int:
        return -(-self.workspace.total_bytes(self.grid.tiles(problem) * problem.batch) // 256) * 256

    def workspace_zero_bytes(self, problem: GemmProblem) -> int:
        """Leading bytes of the workspace that must be zero before the first launch."""
        return self.workspace.zero_bytes(self.grid.tiles(problem) * problem.batch)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = dataclasses.asdict(self)
        # NOTE: left out where it says nothing, so that artifacts of earlier releases keep their digests.
        for bound in ("max_extent", "max_k"):
            if not data["preconditions"][bound]:
                del data["preconditions"][bound]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LaunchPlan:
        """The inverse of :meth:`to_dict`.

        Raises:
            ArtifactError: the data is not a launch plan.
        """
        # NOTE: what came later has a default, so that stored artifacts of earlier releases stay loadable.
        try:
            return cls(
                format=data["format"],
                target=data["target"],
                entry=data["entry"],
                block=_triple(data["block"]),
                grid=Grid(**data["grid"]),
                args=tuple(argument(item) for item in data["args"]),
                serves=Serves(**data["serves"]),
                dynamic_smem=data["dynamic_smem"],
                cluster=_triple(data["cluster"]),
                programmatic=bool(data.get("programmatic", False)),
                repacks=tuple(
                    Repack(**item | {"block": _triple(item["block"])}) for item in data.get("repacks", ())
                ),
                finish=_finish(data.get("finish")),
                workspace=Workspace(**data["workspace"]),
                preconditions=Preconditions(**data["preconditions"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"not a launch plan: {error!r}") from error


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _finish(data: dict[str, Any] | None) -> Finish | None:
    return None if data is None else Finish(**data | {"block": _triple(data["block"])})
