"""``LaunchPlan``: the grid, arguments, workspace and preconditions of a kernel, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, TypeVar

from tilewright.errors import ArtifactError
from tilewright.schema.codec import Bounds, Bytes, Count, decode_known, encode
from tilewright.schema.kernel import Preconditions
from tilewright.schema.problem import GemmProblem

R = TypeVar("R")
_Extent = Annotated[int, Bounds(1, 2**31 - 1)]


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The grid as a function of the problem: (tiles, split_k, batch) CTAs, or persistent CTAs along x.

    Attributes:
        tile_m, tile_n: extents of D in one tile.
        split_k: CTAs that compute one tile together, a split of k each.
        max_blocks: most CTAs of a persistent kernel, which loop over tiles, splits and batch; 0 for other
            kernels.
        cluster_m, cluster_n: tiles of a cluster of CTAs; the grid is whole clusters.
        cluster_k: CTAs of a cluster that compute one tile together, a partition of k each.
        stream_k: a persistent kernel of an earlier release that divides the k tiles of all work tiles among
            the most CTAs.
    """

    tile_m: _Extent
    tile_n: _Extent
    split_k: _Extent = 1
    max_blocks: Count = 0
    cluster_m: _Extent = 1
    cluster_n: _Extent = 1
    cluster_k: _Extent = 1
    stream_k: bool = False

    def tiles(self, problem: GemmProblem) -> int:
        """Tiles of one D."""
        clusters_m = -(-problem.m // (self.tile_m * self.cluster_m))
        clusters_n = -(-problem.n // (self.tile_n * self.cluster_n))
        return clusters_m * clusters_n * self.cluster_m * self.cluster_n

    def ctas(self, problem: GemmProblem) -> tuple[int, int, int]:
        """CTAs of the launch in x, y, z."""
        tiles = self.tiles(problem)
        if not self.max_blocks:
            return tiles, self.split_k, problem.batch
        cluster = self.cluster_m * self.cluster_n * self.cluster_k
        most = self.max_blocks // cluster * cluster
        ctas = tiles * self.split_k * self.cluster_k * problem.batch
        return most if self.stream_k else min(ctas, most), 1, 1


Operand = Literal["a", "b", "c", "d", "bias", "workspace"]
ScalarKind = Literal["int32", "int64", "float32", "float64"]
WORKSPACE_ALIGN = 256  # bytes, of a workspace on a GPU and of its parts
MOST_CLUSTERS = 256  # of a launch with a CTA order as an argument


@dataclasses.dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the address of an operand; 0 if the problem has none."""

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
class PackedPointer:
    """A kernel argument: the address of the copy of an operand that the plan repacks. Scalars that name the
    operand's strides are those of the copy.

    NOTE: a kind of its own, so that earlier releases refuse the plan and do not pass the operand itself.
    """

    operand: Literal["a", "b"]
    kind: Literal["packed_pointer"] = "packed_pointer"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel argument: a 128-byte TMA descriptor of a row-major operand, passed by value.

    Attributes:
        operand: ``a``, ``b``, ``c`` or ``d``; for an operand that the plan repacks, its copy.
        box: (rows, columns) of the box in elements.
        swizzle: 0, 32, 64 or 128 bytes.
        promotion: L2 promotion of 0, 64, 128 or 256 bytes.
        kind: ``c_tensor_map`` for that of C, so that earlier releases refuse the plan: they know no map of C.
    """

    operand: Operand
    box: tuple[int, int]
    swizzle: int = 128
    promotion: int = 128
    kind: Literal["tensor_map", "c_tensor_map"] = "tensor_map"


@dataclasses.dataclass(frozen=True, slots=True)
class CtaOrder:
    """A kernel argument: 256 bytes by value, the first work tile of each cluster of CTAs.

    Neighbouring work tiles go to CTAs of one GPC; see :mod:`tilewright.launch.cta_order`.

    Attributes:
        entry: symbol of a kernel in the same binary that writes the SM id of every CTA, as 32-bit integers,
            to its only argument.
        kind: ``block_order`` in artifacts of earlier releases, whose digests cover it.
    """

    entry: str
    kind: Literal["cta_order", "block_order"] = "cta_order"


Argument = Pointer | PackedPointer | Scalar | TensorMap | CtaOrder


def argument(data: dict[str, Any]) -> Argument:
    """The inverse of ``dataclasses.asdict``."""
    kinds = {
        "pointer": Pointer,
        "packed_pointer": PackedPointer,
        "tensor_map": TensorMap,
        "c_tensor_map": TensorMap,
        "cta_order": CtaOrder,
        "block_order": CtaOrder,
    }
    found: Argument = decode_known(kinds.get(str(data["kind"]), Scalar), data)
    if isinstance(found, TensorMap) and len(found.box) != 2:
        raise ValueError(f"a box must have rows and columns, got {found.box}")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Repack:
    """A launch before the kernel that copies an operand to the workspace, with aligned rows.

    Its kernel takes (source, target, rows, bytes of a row, source stride, target stride, source stride of a
    batch, target stride of a batch), strides in bytes; each CTA copies ``rows`` rows.

    Attributes:
        operand: ``a`` or ``b``.
        entry: symbol of the copying kernel.
        block: threads of a CTA in x, y, z.
        rows: rows that one CTA copies.
    """

    operand: Literal["a", "b"]
    entry: str
    block: tuple[int, int, int]
    rows: _Extent

    def row_bytes(self, problem: GemmProblem) -> int:
        """Bytes from row to row of the copy: a multiple of 128."""
        return -(-problem.dtype.nbytes(self.shape(problem)[1]) // 128) * 128

    def bytes(self, problem: GemmProblem) -> int:
        """Bytes of the copy."""
        return problem.batch * self.shape(problem)[0] * self.row_bytes(problem)

    def ctas(self, problem: GemmProblem) -> tuple[int, int, int]:
        """CTAs of the launch in x, y, z."""
        return -(-self.shape(problem)[0] // self.rows), 1, problem.batch

    def shape(self, problem: GemmProblem) -> tuple[int, int]:
        """Rows and columns of the operand as stored."""
        return problem.a_shape if self.operand == "a" else problem.b_shape


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """A launch after the kernel that computes D from the partials in the workspace.

    Its kernel takes the pointers and scalars of the plan, in their order; each CTA computes
    ``rows`` x ``columns`` of D, and CTAs along n come first.

    Attributes:
        entry: symbol of the kernel.
        block: threads of a CTA in x, y, z.
        rows, columns: extents of D that one CTA computes.
    """

    entry: str
    block: tuple[int, int, int]
    rows: _Extent
    columns: _Extent

    def ctas(self, problem: GemmProblem) -> tuple[int, int, int]:
        """CTAs of the launch in x, y, z."""
        return -(-problem.n // self.columns) * -(-problem.m // self.rows), 1, problem.batch


@dataclasses.dataclass(frozen=True, slots=True)
class Serves:
    """The problems that an artifact computes: every field of a problem except its extents."""

    dtype: str
    layout: str
    out_dtype: str
    acc_dtype: str
    activation: str
    has_bias: bool
    has_c: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Serves:
        """The fields of a problem except its extents."""
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
    """Scratch memory in bytes: a part that must be zero before the first launch, then the rest.

    The kernel leaves the first part zero again. Both parts are aligned to 256 bytes.
    """

    zero_bytes_per_tile: Bytes = 0
    bytes_per_tile: Bytes = 0
    fixed_bytes: Bytes = 0

    def zero_bytes(self, tiles: int) -> int:
        """Bytes at the front that must be zero, for ``tiles`` tiles over the whole batch."""
        return -(-self.zero_bytes_per_tile * tiles // WORKSPACE_ALIGN) * WORKSPACE_ALIGN

    def total_bytes(self, tiles: int) -> int:
        """All bytes for ``tiles`` tiles over the whole batch."""
        return self.zero_bytes(tiles) + self.bytes_per_tile * tiles + self.fixed_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to launch the binary of an artifact.

    Attributes:
        format: ``cubin`` for a GPU, ``elf`` for a shared library of the host.
        target: architecture of the binary: ``sm_90a``, ``x86_64_v4`` and the like.
        entry: symbol of the kernel.
        block: threads of a CTA in x, y, z; on the host x is the number of threads.
        cluster: CTAs of a cluster in x, y, z; the grid must be a multiple.
        dynamic_smem: dynamic shared memory of a CTA in bytes.
        programmatic: whether the kernel can be launched to start while the previous kernel of the stream ends
            (programmatic dependent launch). It waits for that end before it reads or writes memory; until
            then it may prefetch operands into the L2.
        repacks: launches before the kernel.
        finish: the launch after the kernel, if there is one.
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
    preconditions: Preconditions = dataclasses.field(default_factory=Preconditions)

    def why_not_served(self, problem: GemmProblem) -> str | None:
        """The reason this plan cannot compute ``problem`` with any strides and addresses, or None."""
        if Serves.of(problem) != self.serves:
            asked = Serves.of(problem)
            return f"the problem must be one of those that the artifact serves, {self.serves}; got {asked}"
        return self.preconditions.why_too_large(problem)

    def why_not(self, problem: GemmProblem) -> str | None:
        """The reason this plan cannot compute ``problem`` with densely packed operands, or None."""
        return self.why_not_served(problem) or self.preconditions.why_not(problem)

    def workspace_bytes(self, problem: GemmProblem) -> int:
        """Bytes of workspace for the problem, including copies of repacked operands."""
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

    def require_copies(self) -> None:
        """Raise ``ValueError`` if an argument is the copy of an operand that is not repacked."""
        copied = {one.operand for one in self.repacks}
        for item in self.args:
            if isinstance(item, PackedPointer) and item.operand not in copied:
                raise ValueError(f"{item.operand} is not repacked, and an argument is its copy")

    def _packed_start(self, problem: GemmProblem) -> int:
        own = self.workspace.total_bytes(self.grid.tiles(problem) * problem.batch)
        return -(-own // WORKSPACE_ALIGN) * WORKSPACE_ALIGN

    def workspace_zero_bytes(self, problem: GemmProblem) -> int:
        """Leading bytes of the workspace that must be zero before the first launch."""
        return self.workspace.zero_bytes(self.grid.tiles(problem) * problem.batch)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        data: dict[str, Any] = encode(self)
        # NOTE: left out if it has its default, so that artifacts of earlier releases keep their digests.
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
        # NOTE: fields of later releases have a default, so that stored artifacts of earlier releases load.
        try:
            plan = cls(
                **_texts(data, "format", "target", "entry"),
                block=_triple(data["block"]),
                grid=decode_known(Grid, data["grid"]),
                args=tuple(argument(item) for item in data["args"]),
                serves=decode_known(Serves, data["serves"]),
                dynamic_smem=_count(data["dynamic_smem"]),
                cluster=_triple(data["cluster"]),
                programmatic=bool(data.get("programmatic", False)),
                repacks=tuple(_step(Repack, item) for item in data.get("repacks", ())),
                finish=None if data.get("finish") is None else _step(Finish, data["finish"]),
                workspace=decode_known(Workspace, data["workspace"]),
                preconditions=decode_known(Preconditions, data["preconditions"]),
            )
            plan.require_copies()
            return plan
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"not a launch plan, fetch the artifact again: {error!r}"[:500]) from error


def _step(kind: type[R], data: dict[str, Any]) -> R:
    _triple(data["block"])
    return decode_known(kind, data)


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = map(_count, values)
    return x, y, z


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"must be an integer in 0 .. {2**31 - 1}, got {str(value)[:80]}")
    return value


def _texts(data: dict[str, Any], *names: str) -> dict[str, Any]:
    found = {name: data[name] for name in names}
    if wrong := [name for name, value in found.items() if type(value) is not str]:
        raise ValueError(f"{wrong[0]} must be text")
    return found
