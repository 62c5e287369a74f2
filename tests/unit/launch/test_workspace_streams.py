"""A launch with a workspace serves one stream, and one that failed leaves no workspace for the next."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright import GemmProblem, LaunchPlan
from tilewright.artifact import Artifact, Grid, Pointer, Resources, Serves, Workspace
from tilewright.config_sets.counters import LaunchCounter
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import Operands, cuda, driver
from tilewright.matmul.arrays import Epilogue
from tilewright.matmul.cached_launch import ScratchPlan, TunedPlan, tuned_plan
from tilewright.matmul.numpy_arrays import NumpyArrays
from tilewright.matmul.product import describe

PROBLEM = GemmProblem(16, 16, 16, "float32", "nn")
OPERANDS = Operands(a=1 << 20, b=2 << 20, d=3 << 20, workspace=4 << 20)


def artifact(workspace: Workspace) -> Artifact:
    pointers = tuple(Pointer(name) for name in ("a", "b", "d", "workspace"))
    plan = LaunchPlan(
        "cubin", "sm_90a", "gemm", (32, 1, 1), Grid(16, 16), pointers, Serves.of(PROBLEM), workspace=workspace
    )
    return Artifact(plan, Resources(), "0" * 64, "test", b"")


class Driver:
    """Stands in for libcuda: keeps the streams of launches."""

    def __init__(self) -> None:
        self.streams: list[int] = []

    def cuLaunchKernelEx(self, config: Any, *_: Any) -> int:
        self.streams.append(config._obj.stream or 0)
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(driver, "libcuda", lambda: made)
    return made


def bound(workspace: Workspace) -> cuda.CudaLaunch:
    function = ctypes.c_void_p(1)
    kernel: Any = SimpleNamespace(
        artifact=artifact(workspace),
        function=function,
        other=lambda _entry: function,
        held=False,
        overlap=False,
    )
    return cuda.CudaLaunch(kernel, PROBLEM, OPERANDS)


def test_what_ran_on_a_stream_that_a_graph_may_capture_is_held(library: Driver) -> None:
    launch = bound(Workspace())
    for stream, held in ((0, False), (1, False), (7, True), (0, True)):
        launch(stream)
        assert launch._kernel.held is held
    assert len(library.streams) == 4


@pytest.mark.parametrize("first", [0, 7])
def test_a_launch_with_a_workspace_refuses_a_second_stream(library: Driver, first: int) -> None:
    launch = bound(Workspace(4, 100))
    launch(first)
    launch(first)
    with pytest.raises(LaunchError, match=r"gemm is bound to a workspace, which serves one stream"):
        launch(8)
    launch(first)
    assert library.streams == [first] * 3


def test_a_launch_without_one_takes_any_stream(library: Driver) -> None:
    launch = bound(Workspace())
    for stream in (0, 7, 8, 7):
        launch(stream)
    assert library.streams == [0, 7, 8, 7]


class Failing:
    """A kernel whose semaphore must be zero at first; launches in ``failing`` end when it is counted up."""

    def __init__(self, failing: set[int]) -> None:
        self.artifact = artifact(Workspace(4))
        self.held = False
        self.failing, self.runs, self.found = failing, 0, list[int]()

    def bind(self, _problem: GemmProblem, operands: Operands) -> Any:
        semaphore = ctypes.c_uint32.from_address(operands.workspace)

        def launch(_stream: int = 0) -> None:
            self.found.append(semaphore.value)
            self.runs += 1
            if self.runs in self.failing:
                semaphore.value += 1
                raise LaunchError("launch failed")

        launch.move = lambda *_: None  # type: ignore[attr-defined]
        return launch

    def close(self) -> None:
        """Nothing is loaded."""


A = np.zeros((16, 16), "float32")


def planned(kernel: Any) -> tuple[TunedPlan, list[str]]:
    """A plan for A @ A, and the reasons why the array library ran instead."""
    reasons = list[str]()

    def fallback(reason: str) -> Any:
        reasons.append(reason)
        return lambda *_: "by the library"

    library = NumpyArrays()
    product = describe(library, (A, A, None, None), Epilogue())
    return tuned_plan(kernel, library, product, LaunchCounter("tuned", PROBLEM, -1, False), fallback), reasons


def test_a_failed_launch_is_followed_by_a_zero_workspace() -> None:
    kernel = Failing({1, 3})
    plan, reasons = planned(kernel)
    assert isinstance(plan, ScratchPlan)
    answers = [plan(A, A, None, None) for _ in range(5)]
    assert [isinstance(answer, str) for answer in answers] == [True, False, True, False, False]
    assert reasons == ["launch failed"] * 2
    assert kernel.found == [0] * 5


class Aligned:
    """A kernel whose launches need A at a multiple of 32 bytes; counts what is bound."""

    def __init__(self, workspace: Workspace) -> None:
        self.artifact, self.held, self.bound = artifact(workspace), False, 0

    def bind(self, _problem: GemmProblem, _operands: Operands) -> Any:
        self.bound += 1

        def launch(_stream: int = 0) -> None:
            """Computes nothing."""

        def move(a: int, *_: int) -> None:
            if a % 32:
                raise PreconditionFailed("gemm: the address of a must be a multiple of 32 bytes")

        launch.move = move  # type: ignore[attr-defined]
        return launch

    def close(self) -> None:
        """Nothing is loaded."""


@pytest.mark.parametrize("workspace", [Workspace(), Workspace(4)])
def test_arrays_that_a_kernel_cannot_take_leave_its_launch_to_the_next(workspace: Workspace) -> None:
    kernel = Aligned(workspace)
    plan, reasons = planned(kernel)
    memory = np.zeros(16 * 16 + 16, "float32")
    start = -memory.ctypes.data % 32 // 4
    aligned, odd = (memory[start + offset :][:256].reshape(16, 16) for offset in (0, 1))
    answers = [plan(a, A, None, None) for a in (aligned, odd) * 5]
    assert [isinstance(answer, str) for answer in answers] == [False, True] * 5
    assert len(reasons) == 5
    assert kernel.bound == 1
