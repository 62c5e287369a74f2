"""cuBLASLt by nvmath-python's binding: the algorithms of its heuristics, also with other split-K counts."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublasLt

from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Tensors, VendorChoice
from tuner.devices.cublaslt_matmul import DATA, MOST_WORKSPACE, Matmul, MatmulLaunch, point, put, refused
from tuner.devices.cublaslt_tile_hint import tile_hint_of

_WORKSPACES = (32 << 20, MOST_WORKSPACE, 0)  # bytes; cublasGemmEx has the first on Hopper
_SCHEMES = cublasLt.ReductionScheme
_REDUCTIONS = (_SCHEMES.MASK, _SCHEMES.COMPUTE_TYPE, _SCHEMES.NONE)
_SPLITS = range(2, 17)
_SPLIT_SCHEMES = (_SCHEMES.COMPUTE_TYPE, _SCHEMES.OUTPUT_TYPE, _SCHEMES.INPLACE)
_MOST_BASES = 24
_MOST_PLANS = 32
_MOST_WAVES = 4.0
_NO_TILE = "TILE_UNDEFINED"


def choices(problem: GemmProblem, sets: Sequence[Tensors], device: DeviceSpec) -> list[VendorChoice]:
    """The distinct algorithms of the heuristics for three workspace sizes and three masks of reduction
    schemes.

    They are in the order of the heuristics; the first is the one that ``cublasGemmEx`` would run. The list is
    empty if cuBLASLt does not compute the problem: it computes the 8-bit types int8 and float8_e4m3fn in
    layout nt only, with row lengths in multiples of 4 and of 16, and no narrower types.
    """
    if problem.dtype not in DATA:
        return []
    matmul, workspace = _matmul(problem, sets, device), _workspace()
    return [_choice(matmul, sets, result, workspace) for result in _proposed(matmul)]


def every_choice(problem: GemmProblem, sets: Sequence[Tensors], device: DeviceSpec) -> list[VendorChoice]:
    """:func:`choices`; those with a tile also with every split-K count in 2 .. 16 that the library accepts.

    Counts that give more than four waves of CTAs are left out: splitting never pays there. Each algorithm
    runs once here, because a launch may fail although the library proposed or accepted it.
    """
    if problem.dtype not in DATA:
        return []
    matmul, workspace = _matmul(problem, sets, device), _workspace()
    found = {result["algo"].tobytes(): result for result in _proposed(matmul)}
    proposed = [_choice(matmul, sets, result, workspace) for result in found.values()]
    forced = {result["algo"].tobytes(): result for result in _split(matmul, found.values())}
    added = [_choice(matmul, sets, result, workspace) for key, result in forced.items() if key not in found]
    running = [choice for choice in added if _runs(choice)]  # first: they may leave the library changed
    return [choice for choice in proposed if _runs(choice)] + running


def default_choice(problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
    """The first of :func:`choices`; the heuristics run once for each of the last 32 problems."""
    if problem.dtype not in DATA:
        return None
    plan = _plans.pop(problem, None) or _Plan(problem, tensors)
    _plans[problem] = plan
    if len(_plans) > _MOST_PLANS:
        del _plans[next(iter(_plans))]
    launch = plan.launch(tensors)
    return VendorChoice("cublaslt", [launch], {}) if launch else None


class _Plan:
    """The first algorithm for a problem, for one operand set after another."""

    def __init__(self, problem: GemmProblem, tensors: Tensors) -> None:
        self._matmul = Matmul(problem, [tensors])
        self._first = next(_proposed(self._matmul), None)

    def launch(self, tensors: Tensors) -> MatmulLaunch | None:
        """The algorithm on a set, which must have run before the next call; None if there is no algorithm."""
        if self._first is None:
            return None
        point(self._matmul.descriptions[0], tensors)
        workspace = cupy.empty(int(self._first["workspace_size"]), dtype="uint8")
        return MatmulLaunch(self._matmul, 0, tensors, self._first, workspace)


_plans: dict[GemmProblem, _Plan] = {}  # the last used comes last


def _matmul(problem: GemmProblem, sets: Sequence[Tensors], device: DeviceSpec) -> Matmul:
    if device.kind != "cuda":
        raise ValueError(f"cuBLASLt runs on CUDA devices, not on {device.name}")
    return Matmul(problem, sets)


def _workspace() -> Any:
    return cupy.empty(MOST_WORKSPACE, dtype="uint8")


def _proposed(matmul: Matmul) -> Iterator[Any]:
    """The algorithms that the heuristics propose, each once, generated lazily."""
    found: set[bytes] = set()
    for workspace in _WORKSPACES:
        for reductions in _REDUCTIONS:
            for result in matmul.heuristics(workspace, reductions):
                algorithm = result["algo"].tobytes()
                if algorithm not in found:
                    found.add(algorithm)
                    yield result


def _split(matmul: Matmul, proposed: Iterable[Any]) -> Iterator[Any]:
    """Heuristic results with their split-K count replaced by others.

    Algorithms without a tile are left out, because they count splits in another way: once one ran with a
    replaced count, the library refuses to launch the algorithms that it proposed.
    """
    tiled = (result for result in proposed if _describe(result)["tile"] != _NO_TILE)
    wholes = {
        whole.tobytes(): whole for result in tiled if (whole := _with_split(result["algo"], 1)) is not None
    }
    for whole in list(wholes.values())[:_MOST_BASES]:
        unsplit = matmul.accepted(whole)
        waves = float(unsplit["waves_count"]) if unsplit is not None else 0.0
        for count in _SPLITS:
            if waves * count > _MOST_WAVES:
                break
            for scheme in _SPLIT_SCHEMES:
                algorithm = _with_split(whole, count, scheme)
                result = None if algorithm is None else matmul.accepted(algorithm)
                if result is not None:
                    yield result


def _with_split(algorithm: Any, count: int, scheme: int = _SCHEMES.NONE) -> Any | None:
    """An algorithm with another split-K count and reduction scheme; None if it cannot be set."""
    names, changed = cublasLt.MatmulAlgoConfigAttribute, np.array(algorithm, copy=True)
    setter = cublasLt.matmul_algo_config_set_attribute
    try:
        put(setter, changed.ctypes.data, names.SPLITK_NUM, np.int32(count))
        put(setter, changed.ctypes.data, names.REDUCTION_SCHEME, np.uint32(scheme))
    except cublasLt.cuBLASLtError as error:
        if not refused(error):
            raise
        return None
    return changed


def _choice(matmul: Matmul, sets: Sequence[Tensors], result: Any, workspace: Any) -> VendorChoice:
    launches = [MatmulLaunch(matmul, index, tensors, result, workspace) for index, tensors in enumerate(sets)]
    detail = _describe(result)
    return VendorChoice("cublaslt", launches, detail, tile_hint_of(detail))


def _runs(choice: VendorChoice) -> bool:
    """Whether the library launches it; later failures appear at the next synchronisation."""
    try:
        choice.launches[0]()
    except cublasLt.cuBLASLtError:
        return False
    return True


def _describe(result: Any) -> dict[str, Any]:
    """The attributes of an algorithm as the library reports them."""
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
        "reduction": _enum_name(_SCHEMES, read(names.REDUCTION_SCHEME)),
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
