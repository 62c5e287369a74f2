"""cuBLASLt through nvmath-python's binding: every algorithm its heuristics propose, ready to run.

cuBLASLt is column-major, so it computes D^T = op(B)^T op(A)^T: the row-major B is its first operand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublas, cublasLt

from tilewright.device import DeviceSpec
from tilewright.problem import Activation, DType, GemmProblem
from tuner.devices.base import Tensors, VendorChoice

_DATA = {  # cudaDataType_t
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
_COMPUTE = {
    DType.FLOAT16: cublas.ComputeType.COMPUTE_16F,
    DType.FLOAT32: cublas.ComputeType.COMPUTE_32F,
    DType.FLOAT64: cublas.ComputeType.COMPUTE_64F,
    DType.INT32: cublas.ComputeType.COMPUTE_32I,
}
_SCALAR = {
    DType.FLOAT16: np.float16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.INT32: np.int32,
}
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED
_EPILOGUES = {
    (Activation.NONE, False): cublasLt.Epilogue.DEFAULT,
    (Activation.NONE, True): cublasLt.Epilogue.BIAS,
    (Activation.RELU, False): cublasLt.Epilogue.RELU,
    (Activation.RELU, True): cublasLt.Epilogue.RELU_BIAS,
    (Activation.GELU, False): cublasLt.Epilogue.GELU,
    (Activation.GELU, True): cublasLt.Epilogue.GELU_BIAS,
}
_WORKSPACES = (64 << 20, 0)
_MOST_RESULTS = 64


def choices(problem: GemmProblem, sets: Sequence[Tensors], device: DeviceSpec) -> list[VendorChoice]:
    """The distinct algorithms of the heuristics with and without a workspace, in their order.

    None where cuBLASLt does not compute such a problem: of the 8-bit types it has int8 and
    float8_e4m3fn, in layout nt, with row lengths in multiples of 4 and of 16; of narrower ones nothing.
    """
    if problem.dtype not in _DATA:
        return []
    if device.kind != "cuda":
        raise ValueError(f"cuBLASLt runs on CUDA devices, not on {device.name}")
    matmul = _Matmul(problem, sets)
    found: dict[bytes, Any] = {}
    for workspace in _WORKSPACES:
        for result in matmul.heuristics(workspace):
            found.setdefault(result["algo"].tobytes(), result)
    return [
        VendorChoice("cublaslt", [_Launch(matmul, i, result) for i in range(len(sets))], _describe(result))
        for result in found.values()
    ]


class _Matmul:
    """Descriptors of one problem, its operands and one workspace."""

    def __init__(self, problem: GemmProblem, sets: Sequence[Tensors]) -> None:
        self.sets = sets
        self.handle = cublasLt.create()
        self.workspace = cupy.empty(max(_WORKSPACES), dtype="uint8")
        scalar = _SCALAR[problem.accumulate]
        self.scalars = [(np.array([t.alpha], scalar), np.array([t.beta], scalar)) for t in sets]
        self.first = _layout(problem.dtype, problem.b_shape, problem.batch)
        self.second = _layout(problem.dtype, problem.a_shape, problem.batch)
        self.result = _layout(problem.out, (problem.m, problem.n), problem.batch)
        # The bias address is part of the description, so each set has its own.
        self.descriptions = [_description(problem, t) for t in sets]

    def heuristics(self, workspace: int) -> list[Any]:
        """Heuristic results that fit a workspace of the given bytes; none for what is not supported."""
        preference = cublasLt.matmul_preference_create()
        attribute = cublasLt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        _set(cublasLt.matmul_preference_set_attribute, preference, attribute, np.uint64(workspace))
        results = np.zeros(_MOST_RESULTS, dtype=cublasLt.matmul_heuristic_result_dtype)
        count = ctypes.c_int()
        layouts = (self.first, self.second, self.result, self.result)
        try:
            cublasLt.matmul_algo_get_heuristic(
                self.handle,
                self.descriptions[0],
                *layouts,
                preference,
                _MOST_RESULTS,
                results.ctypes.data,
                ctypes.addressof(count),
            )
        except cublasLt.cuBLASLtError as error:
            if int(error.status) != _NOT_SUPPORTED:
                raise
            return []
        finally:
            cublasLt.matmul_preference_destroy(preference)
        return [row for row in results[: count.value] if int(row["state"]) == 0]


class _Launch:
    """One algorithm on one operand set."""

    def __init__(self, matmul: _Matmul, index: int, result: Any) -> None:
        self._matmul = matmul  # keeps descriptors and workspace alive
        tensors, (alpha, beta) = matmul.sets[index], matmul.scalars[index]
        self._algorithm = np.array(result["algo"], copy=True)
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
            matmul.workspace.data.ptr,
            matmul.workspace.nbytes,
        )

    def __call__(self, stream: int = 0) -> None:
        cublasLt.matmul(*self._arguments, stream)


def _description(problem: GemmProblem, tensors: Tensors) -> int:
    compute = _COMPUTE[problem.accumulate]
    if problem.dtype is DType.TFLOAT32:
        compute = cublas.ComputeType.COMPUTE_32F_FAST_TF32
    description = int(cublasLt.matmul_desc_create(compute, _DATA[problem.accumulate]))
    attributes = cublasLt.MatmulDescAttribute
    values: dict[int, Any] = {
        attributes.TRANSA: np.int32(problem.layout.b_transposed),
        attributes.TRANSB: np.int32(problem.layout.a_transposed),
        attributes.EPILOGUE: np.int32(_EPILOGUES[problem.activation, problem.has_bias]),
    }
    if tensors.bias is not None:
        # NOTE: for 8-bit floats the library would otherwise take a float32 bias for bfloat16.
        values[attributes.BIAS_DATA_TYPE] = np.int32(_DATA[problem.out])
        values[attributes.BIAS_POINTER] = np.int64(tensors.bias.data.ptr)
    for attribute, value in values.items():
        _set(cublasLt.matmul_desc_set_attribute, description, attribute, value)
    return description


def _layout(dtype: DType, shape: tuple[int, int], batch: int) -> int:
    rows, columns = shape  # row-major, hence columns x rows in column-major terms
    layout = int(cublasLt.matrix_layout_create(_DATA[dtype], columns, rows, columns))
    if batch > 1:
        attributes = cublasLt.MatrixLayoutAttribute
        _set(cublasLt.matrix_layout_set_attribute, layout, attributes.BATCH_COUNT, np.int32(batch))
        stride = np.int64(rows * columns)
        _set(cublasLt.matrix_layout_set_attribute, layout, attributes.STRIDED_BATCH_OFFSET, stride)
    return layout


def _set(setter: Any, handle: int, attribute: int, value: Any) -> None:
    cell = np.asarray(value).reshape(1)
    setter(handle, attribute, cell.ctypes.data, cell.nbytes)


def _describe(result: Any) -> dict[str, Any]:
    """What the library tells of an algorithm: the vendor's own pick, readable as a seed."""
    names = cublasLt.MatmulAlgoConfigAttribute
    algorithm = np.array(result["algo"], copy=True)

    def read(attribute: Any) -> int:
        cell = np.zeros(1, dtype=cublasLt.get_matmul_algo_config_attribute_dtype(attribute))
        written = ctypes.c_size_t()
        cublasLt.matmul_algo_config_get_attribute(
            algorithm.ctypes.data, attribute, cell.ctypes.data, cell.nbytes, ctypes.addressof(written)
        )
        return int(cell[0])

    return {
        "algorithm": read(names.ID),
        "tile": _enum_name(cublasLt.MatmulTile, read(names.TILE_ID)),
        "stages": _enum_name(cublasLt.MatmulStages, read(names.STAGES_ID)),
        "cluster": _enum_name(cublasLt.ClusterShape, read(names.CLUSTER_SHAPE_ID)),
        "split_k": read(names.SPLITK_NUM),
        "swizzle": read(names.CTA_SWIZZLING),
        "custom": read(names.CUSTOM_OPTION),
        "workspace_bytes": int(result["workspace_size"]),
        "waves": round(float(result["waves_count"]), 3),
    }


def _enum_name(enum: Any, value: int) -> str:
    try:
        return str(enum(value).name)
    except ValueError:
        return str(value)
