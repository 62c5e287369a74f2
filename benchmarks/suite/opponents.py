"""Who races in the suite beside our winner: cuBLASLt at its best, cuBLAS and PyTorch as users call them.

On the host NumPy's BLAS stands in the place of cuBLASLt, and the other two are absent.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.launch import Launch
from tilewright.schema.problem import DType, GemmProblem
from tuner.devices import torch_baseline
from tuner.devices.base import Device, Tensors, VendorChoice
from tuner.measure.encoding import decode
from tuner.measure.vendor import fastest

OURS, AGAIN = "ours", "ours_again"
BEST, CUBLAS, TORCH = "cublaslt_best", "cublas", "torch"
_EPSILON = {DType.FLOAT16: 2**-10, DType.BFLOAT16: 2**-7, DType.FLOAT64: 2**-52, DType.INT32: 0.0}
_EPSILON_FLOAT32 = 2**-23


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a race.

    Attributes:
        name: ``ours``, ``cublaslt_best``, ``cublas`` or ``torch``.
        launches: one an operand set.
        detail: what it tells of itself: library, algorithm, version.
        keeps: what must outlive the launches.
    """

    name: str
    launches: Sequence[Launch]
    detail: dict[str, Any]
    keeps: object = None


def opponents(
    device: Device, problem: GemmProblem, sets: Sequence[Tensors]
) -> tuple[list[Candidate], dict[str, str]]:
    """Everyone there is for a problem, and for each other one the reason why it is absent."""
    there, absent = [], {}
    for name, offer in _OFFERS.items():
        try:
            there.append(offer(device, problem, sets))
        except DeviceUnavailable as error:
            absent[name] = str(error)
    return there, absent


def relative_error(
    device: Device, launch: Launch, problem: GemmProblem, tensors: Tensors, expected: Any
) -> float:
    """Frobenius norm of what a launch gets wrong over that of the float64 reference."""
    tensors.d[...] = 0
    device.synchronize()
    device.once(launch)
    norm = device.xp.linalg.norm
    off = decode(tensors.d, problem.out).astype("float64") - expected
    return float(norm(off.ravel())) / float(norm(expected.ravel()))


def most_error(problem: GemmProblem) -> float:
    """The largest relative error that a right result may have: two roundings of D, and those of a sum
    of k products, which grow with sqrt(k)."""
    out, total = (_EPSILON.get(dtype, _EPSILON_FLOAT32) for dtype in (problem.out, problem.accumulate))
    if problem.dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
        total = 2**-13  # NOTE: tensor cores keep about 13 bits of each product of 8-bit floats
    return 2 * out + total * math.sqrt(problem.k)


def library_versions(device: Device) -> dict[str, str]:
    """Of what the candidates come from; ``absent`` for what is not installed."""
    found = {device.xp.__name__: str(device.xp.__version__)}
    if device.spec.kind == "cuda":
        found |= {"cublaslt": _cublaslt_version(), "torch": _torch_version()}
    return found


def _cublaslt_version() -> str:
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        return "absent"
    return str(cublasLt.get_version())


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _best(device: Device, problem: GemmProblem, sets: Sequence[Tensors]) -> Candidate:
    choices = _every_choice(device, problem, sets)
    if not choices:
        raise DeviceUnavailable(f"the vendor library has no algorithm for {problem}")
    won = fastest(device, choices)
    detail = {"library": won.name, "first_choice": won is choices[0], "candidates": len(choices)}
    return Candidate(BEST, won.launches, detail | won.detail)


def _every_choice(device: Device, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
    if device.spec.kind != "cuda":
        return device.vendor(problem, sets)
    try:
        from tuner.devices.cublaslt import every_choice
    except ImportError as error:
        raise DeviceUnavailable(f"cuBLASLt needs nvmath-python: {error}") from error
    return every_choice(problem, sets, device.spec)


def _cublas(device: Device, problem: GemmProblem, sets: Sequence[Tensors]) -> Candidate:
    _need_cuda(device)
    try:
        from tuner.devices.cublas import choice
    except ImportError as error:
        raise DeviceUnavailable(f"cuBLAS needs nvmath-python: {error}") from error
    return _candidate(CUBLAS, choice(problem, sets))


def _torch(device: Device, problem: GemmProblem, sets: Sequence[Tensors]) -> Candidate:
    _need_cuda(device)
    candidate = _candidate(TORCH, torch_baseline.choice(problem, sets))
    try:
        candidate.launches[0]()
        device.timer(candidate.launches[:1])()
    except (LaunchError, RuntimeError) as error:  # torch has no other class for what it refuses
        device.synchronize()  # NOTE: raises if more is broken than this call
        raise DeviceUnavailable(f"torch.matmul does not run or cannot be captured: {error}") from error
    return candidate


def _need_cuda(device: Device) -> None:
    if device.spec.kind != "cuda":
        raise DeviceUnavailable("it runs on CUDA devices")


def _candidate(name: str, choice: VendorChoice) -> Candidate:
    return Candidate(name, choice.launches, {"library": choice.name} | choice.detail)


_OFFERS: dict[str, Callable[[Device, GemmProblem, Sequence[Tensors]], Candidate]] = {
    BEST: _best,
    CUBLAS: _cublas,
    TORCH: _torch,
}
