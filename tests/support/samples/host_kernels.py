"""Tiny host kernels compiled by the system's C compiler: a right one, and ones that break things."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from tilewright.artifact import Artifact, Grid, LaunchPlan, Pointer, Resources, Scalar, Serves
from tilewright.artifact.plan import Workspace
from tilewright.schema.problem import DType, GemmProblem, Layout

PROBLEM = GemmProblem(24, 40, 32, dtype=DType.FLOAT32, layout=Layout.NN)

_SOURCE = """
#include <stdlib.h>
#include <unistd.h>
void kernel(const float *a, const float *b, float *d, float *workspace, long m, long n, long k, float alpha)
{
    BEFORE
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (long l = 0; l < k; ++l)
                sum += a[i * k + l] * b[l * n + j];
            d[i * n + j] = alpha * sum;
        }
    AFTER
}
"""

SEGFAULT = "*(volatile int *)16 = 1;"
ABORT = "abort();"
HANG = "for (volatile int i = 0;; ++i) {}"
EXIT = "_exit(3);"
SLOW = "usleep(30000);"
PRINT = 'static const char text[] = "TWF1 noise"; write(1, text, sizeof text); write(2, text, sizeof text);'
# Another last bit at every other launch, as with a changing order of additions; integers stay exact.
UNORDERED = "static int runs; if (d[0] != (long)d[0]) d[0] += 4e-6f * (++runs % 2);"
OFF_BY_ONE = "d[m * n - 1] += 1.0f;"
OUT_OF_BOUNDS = "d[m * n] = 1.0f;"


@functools.cache
def artifact(
    arch: str, before: str = "", after: str = "", entry: str = "kernel", workspace: int = 0
) -> Artifact:
    """A naive GEMM of :data:`PROBLEM` with statements before and after its loops."""
    plan = LaunchPlan(
        format="elf",
        target=arch,
        entry=entry,
        block=(1, 1, 1),
        grid=Grid(PROBLEM.m, PROBLEM.n),
        args=(
            Pointer("a"),
            Pointer("b"),
            Pointer("d"),
            Pointer("workspace"),
            Scalar("m", "int64"),
            Scalar("n", "int64"),
            Scalar("k", "int64"),
            Scalar("alpha", "float32"),
        ),
        serves=Serves.of(PROBLEM),
        workspace=Workspace(fixed_bytes=workspace),
    )
    return Artifact(plan, Resources(), "0" * 64, "cc", _compile(before, after))


def _compile(before: str, after: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        command = ["cc", "-O1", "-w", "-shared", "-fPIC", f"-DBEFORE={before}", f"-DAFTER={after}"]
        command += ["-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_SOURCE.encode(), check=True)
        return library.read_bytes()
