"""What a tuned GEMM costs the CPU per call beside ``torch.matmul``.

    python -m benchmarks.client.launch --out FILE [--calls 200] [--rounds 41]

Kernels are a family's own first heuristic configs, compiled here and not tuned: the cost of a call is the
same for every kernel. Each round times a burst of ``--calls`` unsynchronised calls of each candidate in a
fresh random order and waits for the device in between; a burst fits the launch queue, and the products are
small enough for the device to keep up. A sample is a burst's time over its calls; medians are over the
rounds. Candidates run with and without ``out``, and once with the results kept, so that every call writes
to another address. Without a GPU the same runs on CPU tensors.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.results import now, write_json
from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tilewright import DeviceSpec, GemmProblem
from tilewright.matmul.matmul import Choice, LocalMatmul
from tuner.devices.host import query_host

Candidates = dict[str, Callable[[], Any]]


class HeuristicKernels:
    """The first heuristic kernel of a family for each problem, compiled on demand."""

    def __init__(self, family: str, spec: DeviceSpec) -> None:
        self._family, self._spec = FAMILIES[family], spec
        self.matmul = LocalMatmul(self._choose)

    def _choose(self, problem: GemmProblem, _device: int) -> Choice:
        configs = self._family.heuristic_configs(problem, self._spec)
        if not configs:
            return Choice(None, f"{self._family.name} has nothing for {problem}")
        return Choice(build(self._family, configs[0], problem, self._spec), "exact")


def device_spec() -> DeviceSpec:
    """The GPU where torch sees one, else the CPU."""
    if torch.cuda.is_available():
        from tuner.devices.cuda import query_cuda

        return query_cuda(torch.cuda.current_device())
    return query_host()


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def burst(call: Callable[[], Any], calls: int) -> float:
    """Microseconds a call."""
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    spent = time.perf_counter_ns() - start
    synchronize()
    return spent / calls / 1e3


def interleaved(candidates: Candidates, sample: Callable[[Callable[[], Any]], float], rounds: int) -> Any:
    """Medians and samples by candidate; each round has a fresh order, and the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    order = random.Random(0)
    for _ in range(rounds + 1):
        for name in order.sample(list(candidates), len(candidates)):
            taken[name].append(sample(candidates[name]))
    return {
        name: {"median": statistics.median(samples[1:]), "samples": samples[1:]}
        for name, samples in taken.items()
    }


def call_candidates(
    tw: HeuristicKernels, extent: int, dtype: torch.dtype, device: str, calls: int
) -> Candidates:
    """The calls to time, on one small shape with weights stored as in layers."""
    a = torch.randn(extent, extent, device=device).to(dtype)
    weight = torch.randn(extent, extent, device=device).to(dtype)
    b, out = weight.t(), torch.empty(extent, extent, device=device, dtype=dtype)
    matmul, linear = tw.matmul, tw.matmul.linear
    kept: collections.deque[Any] = collections.deque(maxlen=calls)
    return {
        "torch.matmul": lambda: torch.matmul(a, b),
        "tilewright.matmul": lambda: matmul(a, b),
        "torch.matmul(out)": lambda: torch.matmul(a, b, out=out),
        "tilewright.matmul(out)": lambda: matmul(a, b, out),
        "torch.matmul, kept": lambda: kept.append(torch.matmul(a, b)),
        "tilewright.matmul, kept": lambda: kept.append(matmul(a, b)),
        "torch linear": lambda: torch.nn.functional.linear(a, weight),
        "tilewright linear": lambda: linear(a, weight),
    }


def measure_calls(tw: HeuristicKernels, device: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of CPU a call."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    candidates = call_candidates(tw, arguments.extent, dtype, device, arguments.calls)
    with torch.no_grad():
        found = interleaved(candidates, lambda call: burst(call, arguments.calls), arguments.rounds)
    ratios = {
        name: found[f"tilewright{name}"]["median"] / found[f"torch{name}"]["median"]
        for name in (".matmul", ".matmul(out)", ".matmul, kept", " linear")
    }
    return {"extent": arguments.extent, "dtype": str(dtype), "us": found, "ratio": ratios}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run as one JSON document."""
    spec = device_spec()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    family = arguments.family or ("host" if device == "cpu" else "mma_sync")
    tw = HeuristicKernels(family, spec)
    return {
        "date": now(),
        "command": "python -m benchmarks.client.launch " + shlex.join(sys.argv[1:]),
        "device": spec.to_dict() | {"device_class": spec.device_class.id},
        "torch": str(torch.__version__),
        "kernels": f"first heuristic configs of {family}",
        "calls": measure_calls(tw, device, arguments),
        "ran": dict(tw.matmul.stats),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family")
    for name, default in (("extent", 128), ("calls", 200), ("rounds", 41)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    result = measure(arguments)
    write_json(arguments.out, result)
    medians = {name: round(found["median"], 2) for name, found in result["calls"]["us"].items()}
    sys.stdout.write(f"us: {json.dumps(medians)}\n")
    sys.stdout.write(f"ratios: {result['calls']['ratio']}; ran {result['ran']}\n")


if __name__ == "__main__":
    main()
