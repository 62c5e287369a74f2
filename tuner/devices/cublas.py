"""cuBLAS by ``cublasGemmEx``, with the algorithm that the library chooses."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublas

from tilewright.errors import DeviceUnavailable
from tilewright.schema.problem import Activation, GemmProblem
from tuner.devices.base import Tensors, VendorChoice
from tuner.devices.cublaslt_matmul import DATA, SCALAR, compute_type, refused

_WORKSPACE = 32 << 20  # bytes; the default of the library on Hopper


def choice(problem: GemmProblem, sets: Sequence[Tensors]) -> VendorChoice:
    """``cublasGemmEx`` on each operand set. It has run once, on the first set.

    Raises:
        DeviceUnavailable: it does not compute the problem.
    """
    if problem.batch > 1 or problem.has_c or problem.has_bias or problem.activation is not Activation.NONE:
        raise DeviceUnavailable(
            f"cublasGemmEx computes no batches, no epilogues and no C that is not D: {problem}"
        )
    workspace = cupy.empty(_WORKSPACE, dtype="uint8")
    launches = [_GemmEx(problem, tensors, workspace) for tensors in sets]
    try:
        launches[0]()
    except cublas.cuBLASError as error:
        if not refused(error):
            raise
        raise DeviceUnavailable(f"cublasGemmEx does not compute {problem}") from error
    return VendorChoice("cublas", launches, {"version": version()})


def version() -> int:
    """The version of cuBLAS in use as one number: 130001 for 13.0.1."""
    return int(cublas.get_version(_handle()))


class _GemmEx:
    """One call on one operand set. cuBLAS is column-major, so B is its first operand."""

    def __init__(self, problem: GemmProblem, tensors: Tensors, workspace: Any) -> None:
        scalar = SCALAR[problem.accumulate]
        self._workspace = workspace
        self._alpha = np.array([tensors.alpha], scalar)
        self._beta = np.array([tensors.beta], scalar)
        self._arguments = (
            _operation(problem.layout.b_transposed),
            _operation(problem.layout.a_transposed),
            problem.n,
            problem.m,
            problem.k,
            self._alpha.ctypes.data,
            tensors.b.data.ptr,
            DATA[problem.dtype],
            problem.b_shape[1],
            tensors.a.data.ptr,
            DATA[problem.dtype],
            problem.a_shape[1],
            self._beta.ctypes.data,
            tensors.d.data.ptr,
            DATA[problem.out],
            problem.n,
            compute_type(problem),
            cublas.GemmAlgo.DFALT,
        )

    def __call__(self, stream: int = 0) -> None:
        handle = _handle()
        cublas.set_stream(handle, stream)
        # NOTE: a change of stream resets the workspace of the handle.
        cublas.set_workspace(handle, self._workspace.data.ptr, self._workspace.nbytes)
        cublas.gemm_ex(handle, *self._arguments)


def _operation(transposed: bool) -> Any:
    return cublas.Operation.T if transposed else cublas.Operation.N


@functools.cache
def _handle() -> int:
    return int(cublas.create())
