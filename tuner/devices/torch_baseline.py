"""``torch.matmul`` on the very buffers of the others, through DLPack: what users of PyTorch get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Tensors, VendorChoice

_TYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_HALF_SUMS = "allow_fp16_accumulation"


def choice(problem: GemmProblem, sets: Sequence[Tensors]) -> VendorChoice:
    """``torch.matmul`` into D on each operand set. Run it once before it is captured in a graph.

    Raises:
        DeviceUnavailable: PyTorch is not installed, has no CUDA, or does not compute such a problem.
    """
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable("torch is not installed") from error
    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"torch {torch.__version__} has no CUDA")
    reason = _why_unsupported(torch, problem)
    if reason:
        raise DeviceUnavailable(reason)
    launches = [TorchMatmul(torch, problem, tensors) for tensors in sets]
    return VendorChoice("torch", launches, {"version": str(torch.__version__)})


def _why_unsupported(torch: Any, problem: GemmProblem) -> str | None:
    plain = problem.batch == 1 and not problem.has_c and not problem.has_bias
    if not plain or problem.activation is not Activation.NONE or problem.out is not problem.dtype:
        return f"torch.matmul is a plain product in one type, so not {problem}"
    if problem.dtype not in _TYPES:
        return f"torch.matmul has no {problem.dtype}"
    if problem.accumulate is DType.FLOAT16 and not hasattr(torch.backends.cuda.matmul, _HALF_SUMS):
        return f"torch {torch.__version__} has no float16 sums"
    return None


class TorchMatmul:
    """One product on one operand set; transposed operands are views, never copies."""

    def __init__(self, torch: Any, problem: GemmProblem, tensors: Tensors) -> None:
        a, b, self._d = (_view(torch, one[0], problem.dtype) for one in (tensors.a, tensors.b, tensors.d))
        self._torch = torch
        self._a = a.t() if problem.layout.a_transposed else a
        self._b = b.t() if problem.layout.b_transposed else b
        self._half_sums = problem.accumulate is DType.FLOAT16

    def __call__(self, stream: int = 0) -> None:
        cuda, matmul = self._torch.cuda, self._torch.backends.cuda.matmul
        ours = cuda.ExternalStream(stream) if stream else cuda.default_stream()
        before = getattr(matmul, _HALF_SUMS, False)
        if self._half_sums:
            setattr(matmul, _HALF_SUMS, True)
        try:
            with cuda.stream(ours):
                self._torch.matmul(self._a, self._b, out=self._d)
        finally:
            if self._half_sums:
                setattr(matmul, _HALF_SUMS, before)


def _view(torch: Any, array: Any, dtype: DType) -> Any:
    """A tensor of the same memory. bfloat16 is kept as uint16, which DLPack need not know."""
    if dtype is DType.BFLOAT16:
        return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(array)
