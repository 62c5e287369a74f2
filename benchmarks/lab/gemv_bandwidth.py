"""How close family gemv comes to the memory's bandwidth.

    python -m benchmarks.lab.gemv_bandwidth --out benchmarks/results/gemv-bandwidth.json

For each decode shape: gemv's heuristic configs and a random sample of its space are compiled, checked and
    measured
(``tuner/measure/timing.py``), then the fastest few race cuBLASLt's best, a kernel that only reads the
weights and
a device-to-device copy of as many bytes read and written (``tuner/measure/race.py``), interleaved and on
rotated operands. GB/s are the bytes of A, B and D over the median; of the copy, what it reads and writes.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cupy

from benchmarks.common.results import device_facts, now, write_json
from kernels.base.spec import CompileError
from kernels.common.cuda import TARGETS
from kernels.compiler.build import build
from kernels.compiler.nvrtc import compile_text
from kernels.gemv.family import GEMV
from tilewright.artifact import Artifact
from tilewright.errors import LaunchError
from tilewright.launch import Kernel, Launch, load
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem, Layout
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import check
from tuner.measure.interleave import equal_samplers, interleave
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median
from tuner.measure.timing import measure
from tuner.measure.vendor import fastest, vendor_choices
from tuner.search.points import valid_points
from tuner.workers.device_worker import open_device

SHAPES = (
    "1x6144x4096 4x6144x4096 16x6144x4096 1x28672x4096 16x28672x4096 1x4096x14336 8x4096x14336 "
    "16x4096x14336 1x6144x4096:nn 16x28672x4096:nn"
)
_READ_THREADS, _READ_BLOCKS_A_UNIT = 512, 4
_READ = """
extern "C" __global__ void __launch_bounds__(512, 4)
read_all(const uint4* from, long long count, unsigned* to) {
    const long long step = 1LL * gridDim.x * blockDim.x;
    unsigned seen = 0;
    long long i = 1LL * blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 x[4];
        for (int j = 0; j < 4; ++j) x[j] = __ldcs(from + i + j * step);
        for (int j = 0; j < 4; ++j) seen ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    for (; i < count; i += step) seen ^= from[i].x;
    if (seen == 0x9E3779B9) *to = seen;
}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a race with the bytes that a launch moves; ``keeps`` must outlive the launches."""

    name: str
    launches: Sequence[Launch]
    moved: int
    detail: dict[str, Any]
    keeps: Any


def shapes(text: str) -> list[GemmProblem]:
    """Problems from ``MxNxK`` or ``MxNxK:layout``, separated by blanks."""
    found = []
    for item in text.split():
        size, _, layout = item.partition(":")
        m, n, k = map(int, size.split("x"))
        found.append(GemmProblem(m, n, k, layout=Layout(layout or "nt")))
    return found


def configs(problem: GemmProblem, device: Device, samples: int) -> list[Config]:
    """The heuristic configs, then ``samples`` other configs of the space."""
    points = list(valid_points(GEMV, problem, device.spec))
    drawn = random.Random(0).sample(points, min(samples, len(points)))
    return list(dict.fromkeys([*GEMV.heuristic_configs(problem, device.spec), *map(GEMV.at, drawn)]))


def built(problem: GemmProblem, device: Device, samples: int) -> Iterator[tuple[Config, Artifact]]:
    """What compiles and does not spill; the rest is told on stderr."""

    def compile_one(config: Config) -> Artifact | CompileError:
        try:
            return build(GEMV, config, problem, device.spec)
        except CompileError as error:
            return error

    chosen = configs(problem, device, samples)
    with ThreadPoolExecutor(16) as pool:
        for config, artifact in zip(chosen, pool.map(compile_one, chosen), strict=True):
            if isinstance(artifact, CompileError) or artifact.resources.spill_bytes:
                tell(f"  does not compile without spills: {config}")
            else:
                yield config, artifact


def measured(problem: GemmProblem, device: Device, samples: int) -> list[tuple[float, Config, Artifact]]:
    """(microseconds, config, artifact) of every right kernel, the fastest first."""
    found = []
    for config, artifact in built(problem, device, samples):
        kernel = load(artifact)
        try:
            wrong = check(device, kernel, problem)
            timing = None if wrong else measure(device, kernel, problem, None).timing
        except LaunchError as error:
            if error.sticky:
                raise
            wrong, timing = str(error), None
        finally:
            kernel.close()
        if timing is None:
            tell(f"  WRONG {config}: {wrong}")
        else:
            found.append((timing.median_us, config, artifact))
    return sorted(found, key=lambda row: row[0])


def reader(device: Device, sets: Sequence[Tensors], weights: Callable[[Tensors], Any]) -> Candidate:
    """A kernel that reads the weights once and does nothing with them."""
    cubin = compile_text(_READ, TARGETS[device.spec.arch], entry="read_all").binary
    module = cupy.cuda.Module()
    module.load(cubin)
    kernel, sink = module.get_function("read_all"), cupy.zeros(1, "uint32")
    grid = (device.spec.sm_count * _READ_BLOCKS_A_UNIT,)

    def launch_on(array: Any) -> Launch:
        def launch(stream: int = 0) -> None:
            with cupy.cuda.ExternalStream(stream):
                kernel(grid, (_READ_THREADS,), (array, cupy.int64(array.nbytes // 16), sink))

        return launch

    arrays = [weights(one) for one in sets]
    return Candidate("read", [launch_on(one) for one in arrays], arrays[0].nbytes, {}, (module, sink))


def copier(sets: Sequence[Tensors], weights: Callable[[Tensors], Any]) -> Candidate:
    """A copy whose reads and writes together are the bytes of the weights."""
    arrays = [weights(one).ravel() for one in sets]
    half = arrays[0].nbytes // 2
    to = cupy.empty(half, "uint8")

    def launch_on(array: Any) -> Launch:
        def launch(stream: int = 0) -> None:
            cupy.cuda.runtime.memcpyAsync(to.data.ptr, array.data.ptr, half, 3, stream)

        return launch

    return Candidate("copy", [launch_on(one) for one in arrays], 2 * half, {}, to)


def race(problem: GemmProblem, device: Device, best: list[tuple[float, Config, Artifact]]) -> list[Any]:
    """The fastest kernels, cuBLASLt, the reader and the copy: one row each, in GB/s."""
    sets = rotated_sets(device, problem)
    moved = problem.operand_bytes + problem.m * problem.n * problem.batch * problem.out.size
    kernels: list[Kernel] = [load(artifact) for _, _, artifact in best]
    candidates = []
    for kernel, (_, config, artifact) in zip(kernels, best, strict=True):
        bound = bind(device, kernel, problem, sets)
        detail = dict(config.knobs) | {"registers": artifact.resources.registers}
        candidates.append(Candidate("gemv", bound.launches, moved, detail, bound))
    vendor = fastest(device, vendor_choices(device, problem))
    candidates.append(Candidate(vendor.name, vendor.launches, moved, vendor.detail, vendor))
    side = (lambda t: t.a) if problem.m > problem.n else (lambda t: t.b)
    candidates += [reader(device, sets, side), copier(sets, side)]
    samplers = equal_samplers(device, [one.launches for one in candidates])
    rows, _ = interleave(device, samplers, 21, 0)
    for kernel in kernels:
        kernel.close()
    return [
        {"name": one.name, "us": us, "gbps": one.moved / us / 1e3, "detail": one.detail}
        for one, us in zip(candidates, map(median, rows), strict=True)
    ]


def tell(line: str) -> None:
    """A line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--samples", type=int, default=40, help="random configs a shape")
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK or MxNxK:layout, separated by blanks")
    arguments = parser.parse_args()
    device = open_device(arguments.device)
    results = device_facts(device.spec, device.driver) | {"date": now(), "shapes": []}
    for problem in shapes(arguments.shapes):
        tried = measured(problem, device, arguments.samples)
        rows = race(problem, device, tried[:4])
        results["shapes"].append(
            {"problem": problem.to_dict(), "race": rows, "tried": [(us, dict(c.knobs)) for us, c, _ in tried]}
        )
        write_json(arguments.out, results)
        tell(f"{problem}: {len(tried)} configs, {problem.operand_bytes / 1e6:.0f} MB")
        for row in rows:
            tell(f"  {row['name']:9} {row['us']:8.2f} us {row['gbps']:7.0f} GB/s  {row['detail']}")


if __name__ == "__main__":
    main()
