"""Plans of several launches: persistent grids, clusters, repacks, a finish, and what a tensor map says."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import DType, GemmProblem, LaunchPlan
from tilewright.artifact import (
    CtaOrder,
    Finish,
    Grid,
    PackedPointer,
    Pointer,
    Preconditions,
    Repack,
    Scalar,
    Serves,
    TensorMap,
    Workspace,
)
from tilewright.errors import ArtifactError, PreconditionFailed
from tilewright.launch import cuda, driver
from tilewright.launch.arguments import Operands, check_preconditions
from tilewright.launch.cta_order import CTA_ORDERS, Order
from tilewright.launch.slots import Slots
from tilewright.launch.tensor_map import encode

ODD = GemmProblem(100, 250, 77, batch=3)  # A is 100 x 77, B 250 x 77: rows of 154 bytes
PLAN = LaunchPlan(
    format="cubin",
    target="sm_90a",
    entry="gemm",
    block=(384, 1, 1),
    grid=Grid(128, 128, 2, 132, 1, 2, 1),
    args=(TensorMap("a", (64, 64)), TensorMap("b", (128, 64), 128, 256), TensorMap("d", (64, 32), 64, 0)),
    serves=Serves.of(ODD),
    cluster=(2, 1, 1),
    programmatic=True,
    repacks=(Repack("a", "copy", (256, 1, 1), 8), Repack("b", "copy", (256, 1, 1), 8)),
    finish=Finish("add_up", (32, 8, 1), 8, 128),
    workspace=Workspace(8, 100, 10),
    preconditions=Preconditions(2, 2, 2, 13000),
)


@pytest.mark.parametrize(
    ("grid", "problem", "tiles", "blocks"),
    [
        # Ten tiles of 128 x 128 in whole clusters: 5 x 2 becomes 6 x 2 or 5 x 4.
        (Grid(128, 128, max_blocks=132), (640, 256, 1), 10, 10),
        (Grid(128, 128, 1, 132, 2, 1), (640, 256, 1), 12, 12),
        (Grid(128, 128, 1, 132, 1, 4), (640, 256, 1), 20, 20),
        # Splits, partitions of k and batches all come along x.
        (Grid(128, 128, 3, 132), (640, 256, 2), 10, 60),
        (Grid(128, 128, 2, 132, 1, 1, 2), (640, 256, 2), 10, 80),
        # 4096 tiles: at most 132 CTAs, in whole clusters of 4; 130 SMs hold 128.
        (Grid(64, 64, 1, 132, 2, 2), (4096, 4096, 1), 4096, 132),
        (Grid(64, 64, 1, 130, 2, 2), (4096, 4096, 1), 4096, 128),
    ],
    ids=str,
)
def test_persistent_grids(grid: Grid, problem: tuple[int, int, int], tiles: int, blocks: int) -> None:
    m, n, batch = problem
    shape = GemmProblem(m, n, 4096, batch=batch)
    assert (grid.tiles(shape), grid.ctas(shape)) == (tiles, (blocks, 1, 1))


def test_round_trip_through_json() -> None:
    assert LaunchPlan.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


@pytest.mark.parametrize(
    "changes",
    [
        {"repacks": None},
        {"repacks": [{"operand": "a"}]},
        {"repacks": [{"operand": "a", "entry": "copy", "block": [1, 1], "rows": 8}]},
        {"finish": {"entry": "add_up"}},
        {"finish": 5},
        {"grid": {**dataclasses.asdict(PLAN.grid), "cluster": 2}},
    ],
    ids=str,
)
def test_damaged_steps_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="not a launch plan"):
        LaunchPlan.from_dict(PLAN.to_dict() | changes)


def test_a_plan_of_an_earlier_release_has_none_of_them() -> None:
    fields = PLAN.to_dict()
    for name in ("programmatic", "repacks", "finish"):
        del fields[name]
    earlier = LaunchPlan.from_dict(json.loads(json.dumps(fields)))
    assert (earlier.programmatic, earlier.repacks, earlier.finish) == (False, (), None)
    assert dataclasses.replace(earlier, programmatic=True, repacks=PLAN.repacks, finish=PLAN.finish) == PLAN


def test_copies_lie_behind_the_workspace() -> None:
    """Rows of 154 bytes become 256. One row of tiles, two of columns: 2 tiles a matrix, 6 in the batch."""
    assert PLAN.grid.tiles(ODD) == 2
    # Counters: 6 * 8 bytes take 256. Parts: 6 * 100 + 10 more. In all 866, so the copies start at 1024.
    assert PLAN.workspace_zero_bytes(ODD) == 256
    assert PLAN.packed(ODD, "a") == (1024, 256)
    assert PLAN.packed(ODD, "b") == (1024 + 3 * 100 * 256, 256)
    assert PLAN.packed(ODD, "d") is None
    assert PLAN.workspace_bytes(ODD) == 1024 + 3 * (100 + 250) * 256


def test_without_repacks_the_workspace_is_not_rounded() -> None:
    bare = dataclasses.replace(PLAN, repacks=())
    assert bare.packed(ODD, "a") is None
    assert bare.workspace_bytes(ODD) == 866
    only_b = dataclasses.replace(PLAN, repacks=PLAN.repacks[1:])
    assert (only_b.packed(ODD, "a"), only_b.packed(ODD, "b")) == (None, (1024, 256))


def test_the_grids_of_repack_and_finish() -> None:
    # Eight rows a block: 100 rows take 13. D of 100 x 250 in 8 x 128: 13 x 2.
    assert PLAN.repacks[0].ctas(ODD) == (13, 1, 3)
    assert PLAN.finish is not None
    assert PLAN.finish.ctas(ODD) == (26, 1, 3)
    # A stored K x M has 77 rows of 200 bytes.
    across = dataclasses.replace(ODD, layout="tn")
    assert (PLAN.repacks[0].ctas(across), PLAN.repacks[0].row_bytes(across)) == ((10, 1, 3), 256)
    # Rows of 64 elements are 128 bytes as they are.
    assert PLAN.repacks[0].row_bytes(dataclasses.replace(ODD, k=64)) == 128


class Recorder:
    """Stands in for libcuda: keeps what it was asked to encode."""

    cuLaunchKernelEx = None

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[dict[str, Any]] = []

    def cuTensorMapEncodeTiled(self, *args: Any) -> int:
        _, kind, rank, address, extents, strides, box, _, _, swizzle, promotion, _ = args
        call: dict[str, Any] = {"kind": kind.value, "rank": rank.value, "address": address.value}
        call |= {"extents": list(extents), "strides": list(strides), "box": list(box)}
        self.calls.append(call | {"codes": (swizzle.value, promotion.value)})
        return self.status


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(driver, "libcuda", lambda: recorder)
    return recorder


OPERANDS = Operands(a=1 << 20, b=2 << 20, d=3 << 20, workspace=4 << 20)


def argument_values(plan: LaunchPlan, operands: Operands = OPERANDS) -> list[Any]:
    return cuda._argument_values(plan, ODD, operands, ctypes.c_void_p)


def test_tensor_maps_describe_the_copies(library: Recorder) -> None:
    values = argument_values(PLAN)
    assert [value.address % 64 for value in values] == [0, 0, 0]
    a, b, d = library.calls
    # Columns, rows, batch; strides in bytes of a row and of a matrix of the copy.
    assert (a["extents"], a["strides"]) == ([77, 100, 3], [256, 25_600])
    assert (b["extents"], b["strides"]) == ([77, 250, 3], [256, 64_000])
    assert (a["address"], b["address"]) == ((4 << 20) + 1024, (4 << 20) + 1024 + 76_800)
    # D is never copied: 250 halves a row.
    assert (d["address"], d["extents"], d["strides"]) == (3 << 20, [250, 100, 3], [500, 50_000])
    assert [call["box"] for call in library.calls] == [[64, 64, 1], [64, 128, 1], [32, 64, 1]]
    # Swizzles of 128, 128 and 64 bytes; promotion to 128, 256 and none.
    assert [call["codes"] for call in library.calls] == [(3, 2), (3, 3), (2, 0)]


def test_tensor_maps_follow_given_strides(library: Recorder) -> None:
    bare = dataclasses.replace(PLAN, repacks=())
    argument_values(bare, dataclasses.replace(OPERANDS, lda=80, ldd=256))
    a, b, d = library.calls
    assert (a["address"], a["strides"]) == (1 << 20, [160, 16_000])
    assert (b["address"], b["strides"]) == (2 << 20, [154, 38_500])
    assert d["strides"] == [512, 51_200]


def test_tensor_maps_move_with_their_operands(library: Recorder) -> None:
    described = dataclasses.replace(ODD, has_c=True, n=256, out_dtype=DType.FLOAT32)
    names = ("a", "b", "c", "d")
    plan = dataclasses.replace(PLAN, repacks=(), args=tuple(TensorMap(name, (64, 64)) for name in names))  # type: ignore[arg-type]
    operands = dataclasses.replace(OPERANDS, c=5 << 20, ldc=512)
    main = SimpleNamespace(values=[None] * 4, arguments=[None] * 4)
    slots = Slots(plan, operands, cuda._slots(plan, described, operands, main))  # type: ignore[arg-type]
    slots.move(1 << 20, 2 << 20, 3 << 20, 6 << 20)
    [moved] = library.calls
    # 512 floats a row; 100 rows a matrix.
    assert (moved["address"], moved["kind"], moved["strides"]) == (6 << 20, 7, [2048, 204_800])
    assert [bool(argument) for argument in main.arguments] == [False, False, True, False]


def test_d_has_its_own_type(library: Recorder) -> None:
    floats = dataclasses.replace(ODD, out_dtype="float32")
    for operand in ("a", "c", "d"):
        encode(TensorMap(operand, (8, 8)), floats, 256, 1024)
    assert [call["kind"] for call in library.calls] == [6, 7, 7]  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _FLOAT32


def test_a_refused_map_says_what_it_was(library: Recorder) -> None:
    library.status = 1
    with pytest.raises(PreconditionFailed, match=r"no tensor map for a .*stride 154 bytes.*driver status 1"):
        encode(TensorMap("a", (64, 64)), ODD, 256, 154)


def test_pointers_pass_what_the_caller_gave(library: Recorder) -> None:
    """The kernel after reads the workspace and C itself, whatever was repacked."""
    plan = dataclasses.replace(PLAN, args=(Pointer("a"), Pointer("workspace")))
    values = argument_values(plan)
    assert [ctypes.cast(value, ctypes.c_void_p).value for value in values] == [1 << 20, 4 << 20]
    assert library.calls == []


COPIES = dataclasses.replace(
    PLAN,
    args=(PackedPointer("b"), Pointer("a"), *(Scalar(name, "int64") for name in ("ldb", "stride_b", "lda"))),
)


def test_a_kernel_may_read_a_copy_itself(library: Recorder) -> None:
    """Its strides are those of the copy: rows of 256 bytes are 128 halves, 250 of them a matrix."""
    values = argument_values(COPIES)
    assert [value.value for value in values] == [(4 << 20) + 1024 + 76_800, 1 << 20, 128, 32_000, 77]
    assert library.calls == []
    assert LaunchPlan.from_dict(json.loads(json.dumps(COPIES.to_dict()))) == COPIES


def test_what_has_no_copy_is_not_read_as_one() -> None:
    data = dataclasses.replace(COPIES, repacks=PLAN.repacks[:1]).to_dict()
    with pytest.raises(ArtifactError, match="b is not repacked"):
        LaunchPlan.from_dict(data)


def test_a_copy_has_no_gaps_in_the_batch() -> None:
    check_preconditions(COPIES, ODD, OPERANDS)
    with pytest.raises(PreconditionFailed, match="matrices of b without gaps"):
        check_preconditions(COPIES, ODD, dataclasses.replace(OPERANDS, stride_b=1 << 20))
    check_preconditions(COPIES, ODD, dataclasses.replace(OPERANDS, stride_b=250 * 77))


def attributes(plan: LaunchPlan, overlap: bool) -> list[list[int]]:
    """Launch attributes of each step of a launch: two copies, the kernel, and what finishes it."""
    kernel: Any = SimpleNamespace(
        artifact=SimpleNamespace(plan=plan),
        overlap=overlap and plan.programmatic,
        function=ctypes.c_void_p(),
        other=lambda _entry: ctypes.c_void_p(),
    )
    return [
        [given.id for given in step._attributes] for step in cuda.CudaLaunch(kernel, ODD, OPERANDS)._steps
    ]


EARLY, CLUSTER = driver.LAUNCH_ATTRIBUTE_PROGRAMMATIC_SERIALIZATION, driver.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


@pytest.mark.usefixtures("library")
def test_steps_overlap_each_other_and_the_kernel_before_where_that_is_wanted() -> None:
    assert attributes(PLAN, False) == [[], [EARLY], [EARLY, CLUSTER], [EARLY]]
    assert attributes(PLAN, True) == [[EARLY], [EARLY], [EARLY, CLUSTER], [EARLY]]
    alone = dataclasses.replace(PLAN, repacks=(), finish=None)
    assert (attributes(alone, False), attributes(alone, True)) == ([[CLUSTER]], [[EARLY, CLUSTER]])


@pytest.mark.usefixtures("library")
def test_steps_overlap_only_if_the_kernel_does() -> None:
    """GPUs before sm_90 have no programmatic launch: no step must ask for it."""
    plain = dataclasses.replace(PLAN, programmatic=False, cluster=(1, 1, 1))
    assert attributes(plain, True) == [[], [], [], []]


def test_an_order_of_blocks_is_data_too() -> None:
    ordered = dataclasses.replace(PLAN, args=(*PLAN.args, CtaOrder("where")))
    assert LaunchPlan.from_dict(json.loads(json.dumps(ordered.to_dict()))) == ordered


def test_the_order_is_asked_of_the_kernel_that_the_plan_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(CTA_ORDERS, "order", lambda *args: asked.append(args) or Order(3, 1, 2))
    plan = dataclasses.replace(PLAN, args=(CtaOrder("where"),))
    (value,) = cuda._argument_values(plan, ODD, OPERANDS, ctypes.c_void_p)
    assert list(value)[:4] == [3, 1, 2, 0]
    assert ctypes.sizeof(value) == 256
    assert asked == [(ctypes.c_void_p, "where", plan, ODD)]
