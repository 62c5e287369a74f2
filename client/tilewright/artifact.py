"""``LaunchPlan`` and ``Artifact``: everything needed to launch a tuned kernel, as plain data.

Whoever holds an artifact launches it with :mod:`tilewright.launch`: no compiler, no headers, no source.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Any, Literal

from tilewright.errors import ArtifactError
from tilewright.problem import GemmProblem

MAGIC = b"TILEWRT1"
_HEADER_LENGTH = struct.Struct("<I")

Operand = Literal["a", "b", "c", "d", "bias", "workspace"]
ScalarKind = Literal["int32", "int64", "float32", "float64"]


@dataclasses.dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the address of an operand, 0 where the problem has none."""

    operand: Operand
    kind: Literal["pointer"] = "pointer"


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument: a number that follows from the problem or the call.

    ``name`` is one of m, n, k, batch; lda, ldb, ldc, ldd (row strides in elements); stride_a,
    stride_b, stride_c, stride_d (batch strides in elements); alpha, beta; and, for host kernels
    alone, thread and threads.
    """

    name: str
    kind: ScalarKind


@dataclasses.dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel argument: a 128-byte TMA descriptor of a row-major operand, passed by value.

    Attributes:
        operand: ``a``, ``b`` or ``d``; the packed copy of an operand that the plan repacks.
        box: (rows, columns) of the box in elements.
        swizzle: 0, 32, 64 or 128 bytes.
        promotion: L2 promotion of 0, 64, 128 or 256 bytes.
    """

    operand: Operand
    box: tuple[int, int]
    swizzle: int = 128
    promotion: int = 128
    kind: Literal["tensor_map"] = "tensor_map"


Argument = Pointer | Scalar | TensorMap


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """How the grid follows from the problem: (tiles, split_k, batch) blocks, or persistent ones along x.

    Attributes:
        tile_m, tile_n: extents of D that one tile covers.
        split_k: blocks that share one tile, each summing a part of k.
        max_blocks: bound on the blocks of a persistent kernel, whose blocks walk over tiles, splits and
            batch; 0 for a kernel that is not persistent.
        cluster_m, cluster_n: tiles that a cluster of blocks computes together; tiles come in whole clusters.
        cluster_k: blocks of a cluster that share the k of a tile.
        stream_k: a persistent kernel that shares out k where tiles alone would not fill its blocks.
    """

    tile_m: int
    tile_n: int
    split_k: int = 1
    max_blocks: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    stream_k: bool = False

    def tiles(self, problem: GemmProblem) -> int:
        """Tiles of one D."""
        clusters_m = -(-problem.m // (self.tile_m * self.cluster_m))
        clusters_n = -(-problem.n // (self.tile_n * self.cluster_n))
        return clusters_m * clusters_n * self.cluster_m * self.cluster_n

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """The launch grid."""
        tiles = self.tiles(problem)
        if not self.max_blocks:
            return tiles, self.split_k, problem.batch
        cluster = self.cluster_m * self.cluster_n * self.cluster_k
        most = self.max_blocks // cluster * cluster
        blocks = tiles * self.split_k * self.cluster_k * problem.batch
        return (most if self.stream_k else min(blocks, most)), 1, 1


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
class Repack:
    """A launch before the kernel's own that copies an operand to the workspace, with rows TMA can describe.

    Its kernel takes (source, target, rows, bytes of a row, source stride, target stride, source stride of a
    batch, target stride of a batch), strides in bytes, and copies ``rows`` rows a block.

    Attributes:
        operand: ``a`` or ``b``.
        entry: symbol of the copying kernel.
        block: its threads.
        rows: rows that one block copies.
    """

    operand: Literal["a", "b"]
    entry: str
    block: tuple[int, int, int]
    rows: int

    def row_bytes(self, problem: GemmProblem) -> int:
        """Bytes from row to row of the copy: a multiple of 128."""
        return -(-self._shape(problem)[1] * problem.dtype.size // 128) * 128

    def bytes(self, problem: GemmProblem) -> int:
        """Bytes of the copy."""
        return problem.batch * self._shape(problem)[0] * self.row_bytes(problem)

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """Its launch grid."""
        return -(-self._shape(problem)[0] // self.rows), 1, problem.batch

    def _shape(self, problem: GemmProblem) -> tuple[int, int]:
        return problem.a_shape if self.operand == "a" else problem.b_shape


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """A launch after the kernel's own that makes D of what it left in the workspace.

    Its kernel takes the pointers and scalars of the plan, in their order; a block makes
    ``rows`` x ``columns`` of D, and those along n come first.

    Attributes:
        entry: symbol of the kernel.
        block: its threads.
        rows, columns: extents of D that one block makes.
    """

    entry: str
    block: tuple[int, int, int]
    rows: int
    columns: int

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """Its launch grid."""
        return -(-problem.n // self.columns) * -(-problem.m // self.rows), 1, problem.batch


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
class Preconditions:
    """What operands and device must meet, checked before each launch.

    Attributes:
        align_a, align_b, align_d: bytes that must divide base addresses and row strides
            (``align_d`` holds for C and D).
        min_driver: lowest CUDA version of the driver as in ``cuDriverGetVersion``; 0 for none.
    """

    align_a: int = 1
    align_b: int = 1
    align_d: int = 1
    min_driver: int = 0


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
            itself before it touches memory (programmatic dependent launch).
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

    def why_not(self, problem: GemmProblem) -> str | None:
        """The reason this plan cannot compute ``problem`` when densely packed, or None."""
        if Serves.of(problem) != self.serves:
            return f"the artifact serves {self.serves}, the problem is {Serves.of(problem)}"
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
        return dataclasses.asdict(self)

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
                args=tuple(_argument(item) for item in data["args"]),
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


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """What one block costs, read from the binary.

    Attributes:
        registers: per thread.
        spill_bytes: local memory of a thread that the compiler spilled to.
        static_smem: bytes of static shared memory.
        dynamic_smem: bytes of dynamic shared memory.
    """

    registers: int = 0
    spill_bytes: int = 0
    static_smem: int = 0
    dynamic_smem: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel with its launch plan, content-addressed.

    Attributes:
        plan: how to launch it.
        resources: what it costs.
        source_digest: SHA-256 of the kernel source with its include closure.
        compiler: name and version of the compiler.
        binary: the cubin or shared library.
    """

    plan: LaunchPlan
    resources: Resources
    source_digest: str
    compiler: str
    binary: bytes

    def to_bytes(self) -> bytes:
        """Magic, header length, canonical JSON header, binary."""
        header = {
            "plan": self.plan.to_dict(),
            "resources": dataclasses.asdict(self.resources),
            "source_digest": self.source_digest,
            "compiler": self.compiler,
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return MAGIC + _HEADER_LENGTH.pack(len(text)) + text + self.binary

    @property
    def digest(self) -> str:
        """SHA-256 of :meth:`to_bytes` in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes, digest: str | None = None) -> Artifact:
        """Parse what :meth:`to_bytes` wrote, checking it against ``digest`` first where one is given.

        Raises:
            ArtifactError: the digest does not match or the bytes are not an artifact.
        """
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise ArtifactError(f"artifact does not match its digest {digest}; fetch it again")
        start = len(MAGIC) + _HEADER_LENGTH.size
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise ArtifactError("not a tilewright artifact: wrong magic")
        (length,) = _HEADER_LENGTH.unpack(data[len(MAGIC) : start])
        try:
            header = json.loads(data[start : start + length])
            return cls(
                plan=LaunchPlan.from_dict(header["plan"]),
                resources=Resources(**header["resources"]),
                source_digest=header["source_digest"],
                compiler=header["compiler"],
                binary=data[start + length :],
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(f"damaged artifact header: {error!r}") from error


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _finish(data: dict[str, Any] | None) -> Finish | None:
    return None if data is None else Finish(**data | {"block": _triple(data["block"])})


def _argument(data: dict[str, Any]) -> Argument:
    kind = data["kind"]
    if kind == "pointer":
        return Pointer(data["operand"])
    if kind == "tensor_map":
        rows, columns = data["box"]
        return TensorMap(data["operand"], (rows, columns), data["swizzle"], data["promotion"])
    return Scalar(data["name"], kind)
