"""What mma_sync races: kernels of CUTLASS 2.x in a shared library, and one that only multiplies registers.

CUTLASS is no part of this repository. ``cutlass_peers.cu`` beside this file says how to build the library
with nvcc: one object of 15 tiles for each type and layout, 25 s and 1.2 MB each, then one library.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels.common.cuda import problem_macros, target_of
from kernels.compiler.nvrtc import compile_text
from tilewright.errors import DeviceUnavailable
from tilewright.launch import Launch
from tilewright.launch.cuda import BareKernel
from tilewright.schema.problem import DType, GemmProblem
from tuner.devices.base import Device, Tensors

_PROBE_CTAS_PER_SM, _PROBE_WARPS, _PROBE_TILES, _PROBE_STEPS = 2, 8, 16, 2048
# Operands are pseudo-random bits around 1.0, because zeros draw less power and raise the clock.
_PROBE = """
#include "common/ptx/mma.cuh"
__device__ unsigned sink;
__device__ unsigned bits(unsigned i) {
    unsigned x = (threadIdx.x * 131 + blockIdx.x * 8191 + i) * 2654435761u;
    x ^= x >> 15; x *= 2246822519u; x ^= x >> 13;
    return (x & CHANGING) | FIXED;
}
extern "C" __global__ void __launch_bounds__(32 * WARPS) multiply() {
    unsigned a[4][4], b[4][2];
    for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = bits(i);
    for (int i = 0; i < 8; ++i) b[i / 2][i % 2] = bits(100 + i);
    ACCUMULATOR c[4][4][VALUES] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 16; ++i) MULTIPLY(c[i / 4][i % 4], a[i / 4], b[i % 4]);
    unsigned seen = 0;
    for (int i = 0; i < 16 * VALUES; ++i) seen ^= unsigned((&c[0][0][0])[i]);
    if (seen == 0x9E3779B9) sink = seen;
}
"""
# Of a word of operands: the bits that vary, and those that are set.
_BITS = {
    DType.FLOAT16: (0x83FF83FF, 0x38003800),
    DType.BFLOAT16: (0x807F807F, 0x3F003F00),
    DType.TFLOAT32: (0x807FE000, 0x3F000000),
    DType.INT8: (0xFFFFFFFF, 0),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a race; ``keeps`` must outlive the launches."""

    name: str
    launches: Sequence[Launch]
    flops: float
    keeps: Any = None


class Peers:
    """Other kernels, in a shared library of three C functions.

    ``const char* peer_name(int i)`` is null after the last one; ``int peer_takes(int i, const char* types,
    const char* layout)`` says whether it computes a problem of those (``float16:float32``, ``nt``);
    ``int peer_launch(int i, const void* a, const void* b, void* d, int m, int n, int k, void* stream)``
    launches it, and returns 0 unless it cannot.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise DeviceUnavailable(
                f"cannot load the peers ({error}); use a library as benchmarks/mma/cutlass_peers.cu builds it"
            ) from error
        self._library.peer_name.restype = ctypes.c_char_p
        names = (self._library.peer_name(i) for i in itertools.count())
        self.names = [name.decode() for name in itertools.takewhile(lambda name: name is not None, names)]

    def candidates(
        self, device: Device, problem: GemmProblem, sets: Sequence[Tensors]
    ) -> Iterator[Candidate]:
        """Those that compute the problem."""
        types = f"{problem.dtype}:{problem.accumulate}".encode()
        for number, name in enumerate(self.names):
            if not self._library.peer_takes(number, types, str(problem.layout).encode()):
                continue
            launches = [self._launch(number, problem, device, one) for one in sets]
            try:
                launches[0]()
            except DeviceUnavailable:
                continue  # its alignment, for instance
            device.synchronize()
            yield Candidate(name, launches, problem.flops)

    def _launch(self, number: int, problem: GemmProblem, device: Device, tensors: Tensors) -> Launch:
        addresses = [ctypes.c_void_p(device.address(x)) for x in (tensors.a, tensors.b, tensors.d)]

        def launch(stream: int = 0) -> None:
            sizes = problem.m, problem.n, problem.k
            if self._library.peer_launch(number, *addresses, *sizes, ctypes.c_void_p(stream)):
                raise DeviceUnavailable(f"{self.names[number]} cannot run {problem}; leave it out")

        return launch


def probe_binary(problem: GemmProblem, arch: str) -> bytes:
    """The cubin of a kernel ``multiply`` that multiplies registers."""
    half = problem.accumulate is DType.FLOAT16
    changing, fixed = _BITS[problem.dtype]
    element = "int" if problem.dtype.is_integer else "float"
    defines = {
        "STEPS": _PROBE_STEPS, "WARPS": _PROBE_WARPS, "CHANGING": changing, "FIXED": fixed,
        "VALUES": 2 if half else 4, "ACCUMULATOR": "unsigned" if half else element,
        "MULTIPLY": "mma_f16_k16" if half else f"Mma<{problem_macros(problem)['IN_TYPE']}>::full",
    }  # fmt: skip
    source = "".join(f"#define {name} {value}\n" for name, value in defines.items()) + _PROBE
    return compile_text(source, target_of(arch), entry="multiply").binary


def probe(device: Device, problem: GemmProblem) -> Candidate:
    """That kernel on all SMs."""
    cubin = probe_binary(problem, device.spec.arch)
    ctas = device.spec.sm_count * _PROBE_CTAS_PER_SM
    kernel = BareKernel(cubin, "multiply", ctas, 32 * _PROBE_WARPS)
    of_one = 2 * 16 * 8 * (256 // problem.dtype.bits)
    return Candidate("mma", [kernel], float(ctas * _PROBE_WARPS * _PROBE_STEPS * _PROBE_TILES * of_one))
