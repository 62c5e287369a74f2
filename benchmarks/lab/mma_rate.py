"""How close family mma_sync comes to what its instruction reaches, and to other kernels of that instruction.

    python -m benchmarks.lab.mma_rate --peers PATH --out benchmarks/results

For each problem, mma_sync's heuristic configs are compiled, checked and measured; the fastest races, in one
interleaved run at sustained clocks, a kernel that only multiplies registers by the same mma.sync, cuBLASLt's
best, artifacts of an earlier commit (``--artifacts``, a folder of files as ``Artifact.to_bytes`` writes them)
and the kernels of a shared library (``--peers``, see :class:`Peers`). Writes ``mma-<device class>.json``.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS, device_facts, now, write_json
from kernels.base.spec import CompileError
from kernels.common.cuda import problem_macros, target_of
from kernels.compiler.build import build
from kernels.compiler.nvrtc import compile_text
from kernels.mma_sync.family import MMA_SYNC
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable
from tilewright.launch import Launch, load
from tilewright.launch.cuda import BareKernel
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import check
from tuner.measure.interleave import equal_samplers, interleave
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median, paired_ratio
from tuner.measure.timing import measure
from tuner.measure.vendor import fastest_for
from tuner.workers.device_worker import open_device

SHAPES = "4096x4096x4096 8192x8192x8192 5376x5376x2048 2048x8192x28672 64x4096x14336 4095x4097x4093"
TYPES = "float16 float16:float16 bfloat16 tfloat32 int8"
_ROUNDS, _PROBE_CTAS_PER_SM, _PROBE_WARPS = 21, 2, 8
_PROBE_TILES, _PROBE_STEPS = 16, 2048
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
        self._library = ctypes.CDLL(str(path.resolve()))
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


def problems(shapes: str, types: str, layouts: str) -> Iterator[GemmProblem]:
    """Problems of every shape (``MxNxK``), type (``float16`` or ``float16:float16`` with the accumulate
    type) and layout that mma_sync computes from sm_80 on."""
    for shape, pair, layout in itertools.product(shapes.split(), types.split(), layouts.split()):
        m, n, k = map(int, shape.split("x"))
        dtype, _, accumulate = pair.partition(":")
        if DType(dtype).size > 1 or layout == Layout.NT:
            accumulate_type = DType(accumulate) if accumulate else None
            yield GemmProblem(m, n, k, dtype=DType(dtype), layout=Layout(layout), acc_dtype=accumulate_type)


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


def configs(problem: GemmProblem, device: Device) -> list[tuple[Config, Artifact]]:
    """The heuristic configs that compile without spills."""

    def compiled(config: Config) -> Artifact | None:
        try:
            return build(MMA_SYNC, config, problem, device.spec)
        except CompileError:
            return None

    chosen = MMA_SYNC.heuristic_configs(problem, device.spec)
    with ThreadPoolExecutor(8) as pool:
        built = list(zip(chosen, pool.map(compiled, chosen), strict=True))
    return [(config, one) for config, one in built if one and not one.resources.spill_bytes]


def best(problem: GemmProblem, device: Device) -> tuple[Config, Artifact]:
    """The fastest right one of the heuristic configs.

    Raises:
        DeviceUnavailable: none is right.
    """
    found = []
    for config, artifact in configs(problem, device):
        kernel = load(artifact)
        wrong = check(device, kernel, problem)
        if wrong:
            tell(f"  WRONG {config}: {wrong}")
        else:
            us = measure(device, kernel, problem, None).timing.median_us
            found.append((us, config, artifact))
            tell(f"  {us:9.2f} us {problem.flops / us / 1e6:6.0f} TFLOP/s {config}")
        kernel.close()
    if not found:
        raise DeviceUnavailable(f"no kernel of mma_sync is right for {problem}; run the GPU tests")
    _, config, artifact = min(found, key=lambda one: one[0])
    return config, artifact


def earlier(folder: Path | None, problem: GemmProblem) -> Iterator[tuple[str, Artifact]]:
    """The artifacts of a folder that serve the problem."""
    for path in sorted(folder.glob("*")) if folder else []:
        artifact = Artifact.from_bytes(path.read_bytes())
        if artifact.plan.why_not(problem) is None and f"-{problem.m}x{problem.n}x{problem.k}-" in path.name:
            yield f"earlier {path.stem.rpartition('-')[2]}", artifact


def race(problem: GemmProblem, device: Device, folder: Path | None, peers: Peers | None) -> dict[str, Any]:
    """The row of one problem."""
    config, artifact = best(problem, device)
    sets = rotated_sets(device, problem)
    kernels = [("ours", load(artifact)), *((name, load(one)) for name, one in earlier(folder, problem))]
    bound = [(name, bind(device, kernel, problem, sets)) for name, kernel in kernels]
    candidates = [Candidate(name, one.launches, problem.flops, one) for name, one in bound]
    vendor = fastest_for(device, problem)
    candidates += [Candidate("cublaslt", vendor.launches, problem.flops, vendor), probe(device, problem)]
    candidates += peers.candidates(device, problem, sets) if peers else []
    samplers = [equal_samplers(device, [one.launches])[0] for one in candidates]
    rows, states = interleave(device, samplers, _ROUNDS, 0)
    for _, kernel in kernels:
        kernel.close()
    medians = dict(zip((one.name for one in candidates), map(median, rows), strict=True))
    rates = {one.name: one.flops / medians[one.name] / 1e6 for one in candidates}
    row: dict[str, Any] = {
        "m": problem.m, "n": problem.n, "k": problem.k, "layout": str(problem.layout),
        "dtype": str(problem.dtype), "accumulate": str(problem.accumulate), "ours_us": medians["ours"],
        "share_of_limit": rates["ours"] / rates["mma"], "tflops": rates, "us": medians,
        "config": dict(config.knobs), "clock_mhz": [mhz for mhz, _ in states],
    }  # fmt: skip
    named = [one.name for one in candidates]
    others = [name for name in peers.names if name in named] if peers else []
    if others:
        peer = min(others, key=lambda name: medians[name])
        ratio = paired_ratio(rows[named.index(peer)], rows[0])
        row |= {"cutlass_us": medians[peer], "cutlass": peer, "ratio_cutlass": ratio.value,
                "ci_low": ratio.low, "ci_high": ratio.high}  # fmt: skip
    return row


def tell(line: str) -> None:
    """A line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, separated by blanks")
    parser.add_argument("--types", default=TYPES, help="TYPE or TYPE:ACCUMULATE, separated by blanks")
    parser.add_argument("--layouts", default="nt", help="separated by blanks")
    parser.add_argument("--artifacts", type=Path, help="folder of an earlier commit's kernels")
    parser.add_argument("--peers", type=Path, help="shared library of other kernels")
    arguments = parser.parse_args()
    device = open_device(arguments.device)
    peers = Peers(arguments.peers) if arguments.peers else None
    path = arguments.out / f"mma-{device.spec.device_class.id}.json"
    results = device_facts(device.spec, device.driver) | {"date": now(), "rows": []}
    for problem in problems(arguments.shapes, arguments.types, arguments.layouts):
        tell(str(problem))
        row = race(problem, device, arguments.artifacts, peers)
        results["rows"].append(row)
        write_json(path, results)
        for name, rate in sorted(row["tflops"].items(), key=lambda pair: -pair[1]):
            tell(f"  {name:40} {row['us'][name]:9.2f} us {rate:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
