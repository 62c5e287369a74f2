"""Runs a kernel source of the CUDA families on the CPU: g++ compiles it as it lies, with stand-ins for PTX.

``mma_sync`` and ``simt``; see ``cta.cpp``. Matrices are dense, their elements small whole numbers, so that
results are exact in every type.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cache import included, kept

from kernels.base.spec import SOURCES
from kernels.common.cuda import CudaFamily
from tilewright import Config, DeviceSpec, DType, GemmProblem
from tilewright.artifact import Repack
from tuner.measure.encoding import decode, encode, storage_type

HERE = Path(__file__).parent
HAS_COMPILER = shutil.which("g++") is not None
_CVT = re.compile(r'asm\("cvt\.([\w.]+) %0, %1;" : "=\w"\(([\w.]+)\) : "\w"\(([\w.]+)\)\);')
_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-cpu-kernels-")
_LOADED: dict[str, Any] = {}
_SUFFIXES = (".cpp", ".h", ".cuh")
_COMPILER = ("g++", "-O1", "-std=c++17", "-fPIC", "-shared", "-w")


def wrong_on_cpu(
    family: CudaFamily[Any], config: Config, problem: GemmProblem, device: DeviceSpec, seed: int = 0
) -> str | None:
    """The reason the kernel of a config is wrong for a problem, or None.

    Args:
        seed: draws the operands and the order of the warps; odd seeds delay asynchronous copies.
    """
    reason = family.why_invalid(config, problem, device)
    assert reason is None, reason
    spec, plan = family.build_spec(config, problem, device), family.plan(config, problem, device)
    library = _library(spec.source, spec.entry, dict(spec.defines))
    random = np.random.default_rng(seed)
    a, b, c = (
        random.integers(-2, 3, (problem.batch, *shape)).astype("float64")
        for shape in (problem.a_shape, problem.b_shape, (problem.m, problem.n))
    )
    bias = random.integers(-2, 3, problem.n).astype("float64")
    if problem.dtype in (DType.UINT8, DType.UINT4):
        a, b = abs(a), abs(b)
    stored = [encode(np, x, problem.dtype) for x in (a, b)] + [encode(np, x, problem.out) for x in (c, bias)]
    d = np.full((problem.batch, problem.m, problem.n), 0x77, storage_type(problem.out))
    workspace = np.zeros(plan.workspace_bytes(problem) + 256, "uint8")
    for step in plan.repacks:
        index = "ab".index(step.operand)
        stored[index] = _repacked(library, step, stored[index], problem)
    rows = [x.shape[-1] for x in (*stored[:3], d)]
    sizes = [x.shape[-1] * x.shape[-2] for x in (*stored[:3], d)]
    alpha, beta = 2.0, 1.0
    code = library.run(
        *map(_address, (*stored[:3], d, stored[3], workspace)),
        problem.m, problem.n, problem.k, (ctypes.c_longlong * 8)(*rows, *sizes), ctypes.c_double(alpha),
        ctypes.c_double(beta), (ctypes.c_int * 3)(*plan.grid.ctas(problem)), plan.block[0], seed,
    )  # fmt: skip
    if code:
        return ("", "a copy is misaligned, out of bounds or never waited for", "deadlock")[code]
    left = a.transpose(0, 2, 1) if problem.layout.a_transposed else a
    right = b.transpose(0, 2, 1) if problem.layout.b_transposed else b
    expected = alpha * (left @ right)
    if problem.has_c:
        expected += beta * c
    if problem.has_bias:
        expected += bias
    bad = np.argwhere(decode(d, problem.out) != expected)
    counters = plan.workspace_zero_bytes(problem)
    if workspace[:counters].any():
        return "the counters of the workspace are not zero after the launch"
    return f"{len(bad)} of {d.size} elements differ, the first at {bad[0]}" if len(bad) else None


def _repacked(library: Any, step: Repack, matrix: Any, problem: GemmProblem) -> Any:
    """The copy of an operand that the launch before the kernel makes, in memory that holds NaN."""
    rows, columns = step.shape(problem)
    size, row = matrix.itemsize, step.row_bytes(problem)
    copy = np.full(problem.batch * rows * row + 16, 0xFF, "uint8")
    start = -copy.ctypes.data % 16
    copy = copy[start : start + problem.batch * rows * row].view(matrix.dtype)
    source = np.full(matrix.nbytes + 32, 0xFF, "uint8")[16 : 16 + matrix.nbytes]  # at any alignment
    source[:] = matrix.reshape(-1).view("uint8")
    stride = matrix.shape[-1] * size
    strides = (ctypes.c_longlong * 4)(stride, row, stride * rows, row * rows)
    library.repack(
        int(step.entry.endswith("of_k")), _address(source), _address(copy), rows,
        problem.dtype.nbytes(columns), strides, (ctypes.c_int * 3)(*step.ctas(problem)),
    )  # fmt: skip
    return copy.reshape(problem.batch, rows, row // size)


def _address(array: Any) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


def _library(source: str, entry: str, defines: dict[str, int | str]) -> Any:
    flags = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    key = hashlib.sha256(" ".join([str(SOURCES), source, *flags]).encode()).hexdigest()[:16]
    if key not in _LOADED:
        folder = Path(_FOLDER.name)
        ptx = folder / "common" / "ptx"
        ptx.mkdir(parents=True, exist_ok=True)
        text = (SOURCES / "common" / "ptx" / "convert.cuh").read_text()
        (ptx / "convert.cuh").write_text(_CVT.sub(lambda cvt: _call(*cvt.groups()), text))
        output = folder / f"{key}.so"
        roots = [f"-I{path}" for path in (HERE, folder, SOURCES)]
        command = [*_COMPILER, *flags, *roots, f'-DKERNEL="{source}"', f"-DENTRY={entry}"]

        def compiled() -> bytes:
            given = ["-include", _standard_headers(), "-o", str(output), str(HERE / "cta.cpp")]
            subprocess.run([*command, *given], check=True, timeout=120)
            return output.read_bytes()

        stand_ins = {path.name: path.read_text() for path in HERE.rglob("*") if path.suffix in _SUFFIXES}
        text = (SOURCES / source).read_text()
        output.write_bytes(
            kept([_version(), source, entry, flags, text, included(text, SOURCES), stand_ins], compiled)
        )
        _LOADED[key] = ctypes.CDLL(str(output))
    return _LOADED[key]


@functools.cache
def _standard_headers() -> str:
    """The headers of the C++ library that the stand-ins include, precompiled: two thirds of each compile."""
    path = Path(_FOLDER.name) / "standard.h"
    text = (HERE / "cuda.h").read_text() + (HERE / "cta.cpp").read_text()
    path.write_text("\n".join(re.findall(r"#include <.*>", text)))
    subprocess.run([*_COMPILER, "-x", "c++-header", str(path), "-o", f"{path}.gch"], check=True, timeout=120)
    return str(path)


@functools.cache
def _version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def _call(types: str, result: str, argument: str) -> str:
    return f"cvt_{types.replace('.', '_')}({result}, {argument});"
