"""The correctness gate looks at what launches leave to each other: in the workspace, and in timed replays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Artifact, DType, GemmProblem, LaunchPlan, Layout
from tilewright.artifact import Grid, Operand, Pointer, Resources, Scalar, Serves, Workspace
from tilewright.launch import Kernel, Launch, Operands, load
from tilewright.launch.host import host_arch
from tilewright.schema.codec import decode, encode
from tuner.devices.host import HostDevice
from tuner.measure import correctness, timing
from tuner.measure.correctness import check
from tuner.measure.race import RaceRules, RaceSamples, race
from tuner.measure.timing import measure

PROBLEM = GemmProblem(6, 5, 7, DType.FLOAT32, Layout.NN)
WITH_C = dataclasses.replace(PROBLEM, has_c=True)
# Like a split-K kernel it counts in the workspace, which must be zero, and adds parts in the rest of it.
SOURCE = """
void gemm(const float *a, const float *b, const float *c, float *d, int *workspace, long m, long n, long k,
          float alpha, float beta)
{
    static const float *before;
    static int changes;
    changes = before == a ? 0 : changes + 1;
    const float *const first = FIRST;
    float *const part = (float *)(workspace + 64);
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) {
            PART;
            for (long l = 0; l < k; ++l) *part += (i || l ? a : first)[i * k + l] * b[l * n + j];
            const float added = c && beta ? beta * c[i * n + j] : 0;
            d[i * n + j] = workspace[0] == 0 ? alpha * *part + added : 1e6f;
        }
    workspace[0] = LEFT_BEHIND;
    before = a;
}
"""
RIGHT = {"LEFT_BEHIND": "0", "PART": "*part = 0", "FIRST": "a"}


def artifact(folder: Path, problem: GemmProblem = PROBLEM, **changed: str) -> Artifact:
    path = folder / "kernel.so"
    command = [
        "cc",
        "-O1",
        "-shared",
        "-fPIC",
        *(f"-D{name}={text}" for name, text in (RIGHT | changed).items()),
        "-x",
        "c",
        "-",
        "-o",
        str(path),
    ]
    subprocess.run(command, input=SOURCE.encode(), check=True)
    pointers: tuple[Operand, ...] = ("a", "b", "c", "d", "workspace")
    plan = LaunchPlan(
        format="elf",
        target=host_arch(),
        entry="gemm",
        block=(1, 1, 1),
        grid=Grid(PROBLEM.m, PROBLEM.n),
        args=(
            *(Pointer(operand) for operand in pointers),
            *(Scalar(extent, "int64") for extent in ("m", "n", "k")),
            Scalar("alpha", "float32"),
            Scalar("beta", "float32"),
        ),
        serves=Serves.of(problem),
        workspace=Workspace(zero_bytes_per_tile=4, fixed_bytes=4),
    )
    return Artifact(plan, Resources(), "0" * 64, "cc", path.read_bytes())


@contextlib.contextmanager
def loaded(folder: Path, problem: GemmProblem = PROBLEM, **changed: str) -> Iterator[Kernel]:
    kernel = load(artifact(folder, problem, **changed))
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.mark.parametrize(
    ("changed", "start"),
    [
        ({}, ""),
        ({"LEFT_BEHIND": "1"}, "integer data: left values other than zero in the workspace"),
        ({"PART": "i + j ? *part = 0 : 0"}, "integer data: 1 of 30 elements of D are NaN"),
    ],
    ids=["right", "leaves a count", "takes all of it for zero"],
)
def test_a_workspace_may_hold_anything_but_where_it_is_zero(
    tmp_path: Path, changed: dict[str, str], start: str
) -> None:
    with loaded(tmp_path, **changed) as kernel:
        reason = check(HostDevice(), kernel, PROBLEM)
    assert reason is None if not start else (reason or "").startswith(start)


class OneStream(HostDevice):
    """A host that times launches on a stream of its own, as a GPU does."""

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        return super().timer([functools.partial(launch, 7) for launch in launches])


class Bound:
    """A kernel with a workspace, whose launches belong to the stream of their first call."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.artifact = kernel, kernel.artifact

    def bind(self, problem: GemmProblem, operands: Operands) -> Launch:
        launch, streams = self._kernel.bind(problem, operands), set()

        def on(stream: int = 0) -> None:
            streams.add(stream)
            assert len(streams) == 1, "a workspace serves one stream"
            launch(stream)

        return on


@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64"])
def test_every_bit_of_each_element_counts(dtype: str) -> None:
    for columns in range(1, 10):
        one = np.zeros((2, 3, columns), dtype)
        assert not correctness._differ(one, one.copy())
        for place in range(one.size):
            other = one.copy()
            other.reshape(-1).view("uint8")[(place + 1) * one.itemsize - 1] = 128  # -0.0 of a float
            assert correctness._differ(one, other)


def test_timed_launches_and_those_alone_are_on_one_stream(tmp_path: Path) -> None:
    with loaded(tmp_path) as kernel:
        bound: Any = Bound(kernel)
        assert measure(OneStream(), bound, PROBLEM, None).wrong is None


@pytest.mark.parametrize("right", [True, False])
def test_timed_launches_are_looked_at(tmp_path: Path, right: bool) -> None:
    """A kernel that after some launches on operands that alternate reads one element where the operands of
    the launch before lay passes every check that launches it on the same operands."""
    device = HostDevice()
    with loaded(tmp_path, FIRST="a" if right else "changes > 4 ? before : a") as kernel:
        assert check(device, kernel, PROBLEM) is None
        reason = measure(device, kernel, PROBLEM, None).wrong
    if right:
        assert reason is None
    else:
        assert "without a pause" in str(reason)
        assert "5 of 30 elements are off" in str(reason)


@pytest.mark.parametrize("right", [True, False])
def test_timed_launches_in_place_are_looked_at(tmp_path: Path, right: bool) -> None:
    """As the kernel above, but only where D is the memory of C, as in a client's call with beta."""
    device, first = HostDevice(), "a" if right else "changes > 4 && c == d ? before : a"
    with loaded(tmp_path, WITH_C, FIRST=first) as kernel:
        assert check(device, kernel, WITH_C) is None
        reason = measure(device, kernel, WITH_C, None).wrong
    if right:
        assert reason is None
    else:
        assert "D in the memory of C that follow each other" in str(reason)


@pytest.mark.parametrize("right", [True, False])
def test_what_a_race_timed_is_looked_at(tmp_path: Path, right: bool) -> None:
    """A kernel that goes wrong under load: after more launches than the check and a trial have."""
    device, first = HostDevice(), "a" if right else "changes > 100 ? before : a"
    rules = RaceRules(2, 0, vendor=False)
    with loaded(tmp_path, FIRST="a") as other, loaded(tmp_path, FIRST=first) as kernel:
        found = race(device, [other, kernel], PROBLEM, rules)
    if right:
        assert found.wrong == ()
    else:
        assert found.wrong[0] == ""
        assert "without a pause" in found.wrong[1]
    assert decode(RaceSamples, encode(found)) == found


def test_launches_that_may_overlap_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may let each launch start while the one before ends, which the timed ones do not."""
    wanted: list[bool] = []

    def overlapping(_artifact: Artifact, overlap: bool = False) -> Kernel:
        wanted.append(overlap)
        return load(artifact(tmp_path, FIRST="changes > 4 ? before : a"))

    monkeypatch.setattr(timing, "load", overlapping)
    with loaded(tmp_path, FIRST="a") as kernel:
        assert measure(HostDevice(), kernel, PROBLEM, None).wrong is None
        assert wanted == [], "its launches never overlap"
        plan = dataclasses.replace(kernel.artifact.plan, programmatic=True)
        kernel.artifact = dataclasses.replace(kernel.artifact, plan=plan)
        reason = measure(HostDevice(), kernel, PROBLEM, None).wrong
    assert wanted == [True]
    assert "5 of 30 elements are off" in str(reason)
