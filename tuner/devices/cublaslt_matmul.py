"""One GEMM in cuBLASLt: descriptors, operands, heuristics and launches.

cuBLASLt is column-major, so it computes D^T = op(B)^T op(A)^T: the row-major B is its first operand.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from nvmath.bindings import cublas, cublasLt

from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Tensors

DATA = {  # cudaDataType_t
    DType.FLOAT16: 2,
    DType.BFLOAT16: 14,
    DType.FLOAT32: 0,
    DType.FLOAT64: 1,
    DType.TFLOAT32: 0,
    DType.FLOAT8_E4M3FN: 28,
    DType.FLOAT8_E5M2: 29,
    DType.INT8: 3,
    DType.UINT8: 8,
    DType.INT32: 10,
}
SCALAR = {
    DType.FLOAT16: np.float16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.INT32: np.int32,
}
_COMPUTE = {
    DType.FLOAT16: cublas.ComputeType.COMPUTE_16F,
    DType.FLOAT32: cublas.ComputeType.COMPUTE_32F,
    DType.FLOAT64: cublas.ComputeType.COMPUTE_64F,
    DType.INT32: cublas.ComputeType.COMPUTE_32I,
}
_EPILOGUES = {
    (Activation.NONE, False): cublasLt.Epilogue.DEFAULT,
    (Activation.NONE, True): cublasLt.Epilogue.BIAS,
    (Activation.RELU, False): cublasLt.Epilogue.RELU,
    (Activation.RELU, True): cublasLt.Epilogue.RELU_BIAS,
    (Activation.GELU, False): cublasLt.Epilogue.GELU,
    (Activation.GELU, True): cublasLt.Epilogue.GELU_BIAS,
}
# CUBLAS_STATUS_INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED: the algorithm does not compute this problem.
_REFUSALS = (7, 8, 15)
_NOT_SUPPORTED = 15
_MOST_RESULTS = 64
MOST_WORKSPACE = 128 << 20


def compute_type(problem: GemmProblem) -> Any:
    """The ``cublasComputeType_t`` of a problem."""
    if problem.dtype is DType.TFLOAT32:
        return cublas.ComputeType.COMPUTE_32F_FAST_TF32
    return _COMPUTE[problem.accumulate]


class Matmul:
    """The library's descriptors of one problem: three layouts, and a description for each operand set.

    The object destroys them with itself.
    """

    def __init__(self, problem: GemmProblem, sets: Sequence[Tensors]) -> None:
        self.problem = problem
        self.handle = _handle()
        self.first = _layout(problem.dtype, problem.b_shape, problem.batch)
        self.second = _layout(problem.dtype, problem.a_shape, problem.batch)
        self.result = _layout(problem.out, (problem.m, problem.n), problem.batch)
        # The bias address is part of the description, so each set has its own.
        self.descriptions = [_description(problem, t) for t in sets]
        layouts = (self.first, self.second, self.result)
        # NOTE: not at the end of the process, when the libraries may be unloaded already.
        weakref.finalize(self, _destroy, self.descriptions, layouts).atexit = False

    @property
    def layouts(self) -> tuple[int, int, int, int]:
        """The layouts of the first operand, the second, C and D."""
        return self.first, self.second, self.result, self.result

    def heuristics(self, workspace: int, reductions: int) -> list[Any]:
        """Heuristic results within a workspace of so many bytes and a mask of reduction schemes.

        The most promising one comes first; the list is empty if the problem is not supported.
        """
        preference = cublasLt.matmul_preference_create()
        names = cublasLt.MatmulPreferenceAttribute
        setter = cublasLt.matmul_preference_set_attribute
        put(setter, preference, names.MAX_WORKSPACE_BYTES, np.uint64(workspace))
        put(setter, preference, names.REDUCTION_SCHEME_MASK, np.uint32(reductions))
        results = np.zeros(_MOST_RESULTS, dtype=cublasLt.matmul_heuristic_result_dtype)
        count = ctypes.c_int()
        into = (preference, _MOST_RESULTS, results.ctypes.data, ctypes.addressof(count))
        try:
            cublasLt.matmul_algo_get_heuristic(self.handle, self.descriptions[0], *self.layouts, *into)
        except cublasLt.cuBLASLtError as error:
            if int(error.status) != _NOT_SUPPORTED:
                raise
            return []
        finally:
            cublasLt.matmul_preference_destroy(preference)
        return [row for row in results[: count.value] if int(row["state"]) == 0]

    def accepted(self, algorithm: Any) -> Any | None:
        """The library's heuristic result for an algorithm; None if it refuses it or needs more workspace."""
        result = np.zeros(1, dtype=cublasLt.matmul_heuristic_result_dtype)
        operands = (self.handle, self.descriptions[0], *self.layouts)
        try:
            cublasLt.matmul_algo_check(*operands, algorithm.ctypes.data, result.ctypes.data)
        except cublasLt.cuBLASLtError as error:
            if not refused(error):
                raise
            return None
        result["algo"] = algorithm  # NOTE: the check never fills this field
        fits = int(result[0]["workspace_size"]) <= MOST_WORKSPACE
        return result[0] if fits and int(result[0]["state"]) == 0 else None


class MatmulLaunch:
    """One algorithm on one operand set."""

    def __init__(self, matmul: Matmul, index: int, tensors: Tensors, result: Any, workspace: Any) -> None:
        """Prepare the launch.

        Args:
            index: number of the operand set's description.
            workspace: memory that is large enough for the algorithm.
        """
        scalar = SCALAR[matmul.problem.accumulate]
        alpha, beta = np.array([tensors.alpha], scalar), np.array([tensors.beta], scalar)
        self._algorithm = np.array(result["algo"], copy=True)
        self._held = matmul, tensors, alpha, beta, workspace  # kept alive: the arguments hold its addresses
        c = tensors.c if tensors.c is not None else tensors.d
        self._arguments = (
            matmul.handle,
            matmul.descriptions[index],
            alpha.ctypes.data,
            tensors.b.data.ptr,
            matmul.first,
            tensors.a.data.ptr,
            matmul.second,
            beta.ctypes.data,
            c.data.ptr,
            matmul.result,
            tensors.d.data.ptr,
            matmul.result,
            self._algorithm.ctypes.data,
            workspace.data.ptr,
            workspace.nbytes,
        )

    def __call__(self, stream: int = 0) -> None:
        cublasLt.matmul(*self._arguments, stream)


def refused(error: Any) -> bool:
    """Whether an error of cuBLAS or cuBLASLt means that it does not compute the problem."""
    return int(error.status) in _REFUSALS


def put(setter: Any, handle: int, attribute: int, value: Any) -> None:
    """Set one attribute of a descriptor, a preference or an algorithm."""
    cell = np.asarray(value).reshape(1)
    setter(handle, attribute, cell.ctypes.data, cell.nbytes)


@functools.cache
def _handle() -> int:
    return int(cublasLt.create())


def _description(problem: GemmProblem, tensors: Tensors) -> int:
    description = int(cublasLt.matmul_desc_create(compute_type(problem), DATA[problem.accumulate]))
    attributes = cublasLt.MatmulDescAttribute
    values: dict[int, Any] = {
        attributes.TRANSA: np.int32(problem.layout.b_transposed),
        attributes.TRANSB: np.int32(problem.layout.a_transposed),
        attributes.EPILOGUE: np.int32(_EPILOGUES[problem.activation, problem.has_bias]),
    }
    if tensors.bias is not None:
        # NOTE: for 8-bit floats the library would otherwise take a float32 bias for bfloat16.
        values[attributes.BIAS_DATA_TYPE] = np.int32(DATA[problem.out])
    for attribute, value in values.items():
        put(cublasLt.matmul_desc_set_attribute, description, attribute, value)
    point(description, tensors)
    return description


def point(description: int, tensors: Tensors) -> None:
    """Set the bias of a description to that of an operand set, if it has one."""
    if tensors.bias is not None:
        pointer = cublasLt.MatmulDescAttribute.BIAS_POINTER
        put(cublasLt.matmul_desc_set_attribute, description, pointer, np.int64(tensors.bias.data.ptr))


def _destroy(descriptions: Iterable[int], layouts: Iterable[int]) -> None:
    for description in descriptions:
        cublasLt.matmul_desc_destroy(description)
    for layout in layouts:
        cublasLt.matrix_layout_destroy(layout)


def _layout(dtype: DType, shape: tuple[int, int], batch: int) -> int:
    rows, columns = shape  # row-major, hence columns x rows in column-major terms
    layout = int(cublasLt.matrix_layout_create(DATA[dtype], columns, rows, columns))
    if batch > 1:
        attributes = cublasLt.MatrixLayoutAttribute
        put(cublasLt.matrix_layout_set_attribute, layout, attributes.BATCH_COUNT, np.int32(batch))
        stride = np.int64(rows * columns)
        put(cublasLt.matrix_layout_set_attribute, layout, attributes.STRIDED_BATCH_OFFSET, stride)
    return layout
