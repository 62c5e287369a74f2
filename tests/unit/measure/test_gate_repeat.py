"""The correctness gate launches again on the workspace that a launch left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilewright import Artifact, DType, GemmProblem, LaunchPlan, Layout
from tilewright.artifact import Grid, Operand, Pointer, Resources, Scalar, Serves, Workspace
from tilewright.launch import load
from tilewright.launch.host import host_arch
from tuner.devices.host import HostDevice
from tuner.measure.correctness import check

PROBLEM = GemmProblem(6, 5, 7, DType.FLOAT32, Layout.NN)
# Like a split-K kernel it counts in the workspace, and is right only where it finds a zero there.
SOURCE = """
void gemm(const float *a, const float *b, float *d, int *workspace, long m, long n, long k, float alpha)
{
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) {
            float sum = 0;
            for (long l = 0; l < k; ++l) sum += a[i * k + l] * b[l * n + j];
            d[i * n + j] = workspace[0] == 0 ? alpha * sum : 1e6f;
        }
    workspace[0] = LEFT_BEHIND;
}
"""


def artifact(folder: Path, left_behind: int) -> Artifact:
    path = folder / "kernel.so"
    command = [
        "cc",
        "-O1",
        "-shared",
        "-fPIC",
        f"-DLEFT_BEHIND={left_behind}",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
    ]
    subprocess.run(command, input=SOURCE.encode(), check=True)
    pointers: tuple[Operand, ...] = ("a", "b", "d", "workspace")
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
        ),
        serves=Serves.of(PROBLEM),
        workspace=Workspace(zero_bytes_per_tile=4),
    )
    return Artifact(plan, Resources(), "0" * 64, "cc", path.read_bytes())


@pytest.mark.parametrize("left_behind", [0, 1])
def test_a_workspace_left_dirty_is_a_wrong_result(tmp_path: Path, left_behind: int) -> None:
    kernel = load(artifact(tmp_path, left_behind))
    try:
        reason = check(HostDevice(), kernel, PROBLEM)
    finally:
        kernel.close()
    assert (reason is None) is (left_behind == 0)
    assert reason is None or reason.startswith("normal data: 30 of 30 elements are off")
