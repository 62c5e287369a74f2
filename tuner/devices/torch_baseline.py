"""``torch.matmul`` as a baseline, on the same buffers through DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Tensors, VendorChoice

_TYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_HALF_ACCUMULATION = "allow_fp16_accumulation"


def choice(problem: GemmProblem, sets: Sequence[Tensors]) -> VendorChoice:
    """``torch.matmul`` into D on each operand set; it must run once before a graph captures it.

    Raises:
        DeviceUnavailable: PyTorch is not installed, has no CUDA, or does not compute the problem.
    """
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable("torch is not installed; install it") from error
    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"torch {torch.__version__} has no CUDA; install one that has")
    reason = _why_unsupported(torch, problem)
    if reason:
        raise DeviceUnavailable(reason)
    launches = [TorchMatmul(torch, problem, tensors) for tensors in sets]
    return VendorChoice("torch", launches, {"version": str(torch.__version__)})


def _why_unsupported(torch: Any, problem: GemmProblem) -> str | None:
    plain = problem.batch == 1 and not problem.has_c and not problem.has_bias
    if not plain or problem.activation is not Activation.NONE or problem.out is not problem.dtype:
        return f"torch.matmul computes plain products in one type, not {problem}"
    if problem.dtype not in _TYPES:
        return f"torch.matmul has no {problem.dtype}"
    if problem.accumulate is DType.FLOAT16 and not hasattr(torch.backends.cuda.matmul, _HALF_ACCUMULATION):
        return f"torch {torch.__version__} has no float16 accumulation"
    return None


class TorchMatmul:
    """One product on one operand set; transposed operands are views, never copies."""

    def __init__(self, torch: Any, problem: GemmProblem, tensors: Tensors) -> None:
        a, b, self._d = (_view(torch, one[0], problem.dtype) for one in (tensors.a, tensors.b, tensors.d))
        self._torch = torch
        self._a = a.t() if problem.layout.a_transposed else a
        self._b = b.t() if problem.layout.b_transposed else b
        self._half_accumulation = problem.accumulate is DType.FLOAT16

    def __call__(self, stream: int = 0) -> None:
        cuda, matmul = self._torch.cuda, self._torch.backends.cuda.matmul
        ours = cuda.ExternalStream(stream) if stream else cuda.default_stream()
        before = getattr(matmul, _HALF_ACCUMULATION, False)
        if self._half_accumulation:
            setattr(matmul, _HALF_ACCUMULATION, True)
        try:
            with cuda.stream(ours):
                self._torch.matmul(self._a, self._b, out=self._d)
        finally:
            if self._half_accumulation:
                setattr(matmul, _HALF_ACCUMULATION, before)


def _view(torch: Any, array: Any, dtype: DType) -> Any:
    """A tensor on the same memory; bfloat16 is passed through DLPack as int16."""
    if dtype is DType.BFLOAT16:
        return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(array)
