"""Other tuners in a process of their own: ``python -m benchmarks.models.peer_worker torch`` (``heuristics``).

It reads problems from its standard input, one JSON object a line, and answers each with one line. ``torch``
times ``torch.compile(mode="max-autotune")`` beside ``torch.matmul``; ``heuristics`` gives the tiles that
nvMatmulHeuristics would choose. An answer with ``failure`` says why there is none.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.schema.problem import DType, GemmProblem

ROUNDS = 24
SAMPLE_US = 1000.0  # launches of a sample take so long together, or longer
WARM_UP_S = 0.3
COLD_BYTES = 256 << 20  # operands rotate so that no launch finds its own in L2
MOST_SETS = 64
TOLERANCE = 0.02
CHOICES = 3
_PRECISIONS = {DType.FLOAT16: "HSH", DType.BFLOAT16: "TST"}


def timed_by_torch(problem: GemmProblem) -> dict[str, Any]:
    """Microseconds of the compiled product and of ``torch.matmul``, and the seconds that compiling took.

    The mode is without its CUDA graphs, which copy the operands: the launches of a sample are one graph
    here. Compiling includes the search and the first call.
    """
    import torch

    dtype = getattr(torch, problem.dtype.value)

    def operand(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda").to(dtype)

    def product(a: Any, b: Any) -> Any:
        return (a.t() if problem.layout.a_transposed else a) @ (b.t() if problem.layout.b_transposed else b)

    m, n, k = problem.m, problem.n, problem.k
    of_a = (k, m) if problem.layout.a_transposed else (m, k)
    of_b = (n, k) if problem.layout.b_transposed else (k, n)
    sets = min(MOST_SETS, 1 + COLD_BYTES // ((m * k + k * n) * problem.dtype.size))
    operands = [(operand(*of_a), operand(*of_b)) for _ in range(sets)]
    torch.compiler.reset()
    compiled = torch.compile(product, mode="max-autotune-no-cudagraphs", dynamic=False)
    started = time.monotonic()
    found = compiled(*operands[0])
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    wanted = product(*operands[0]).float()
    if not ((found.float() - wanted).abs().max() <= TOLERANCE * wanted.abs().max()).item():
        raise RuntimeError("the compiled product is wrong")
    ours, plain = _interleaved([compiled, product], operands)
    return {"torch_us": ours, "torch_matmul_us": plain, "torch_tune_s": round(seconds, 2)}


def _interleaved(products: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> list[float]:
    """The median of each product in microseconds, from rounds in random order."""
    import torch

    def captured(product: Callable[..., Any], launches: int) -> Any:
        for pair in operands[:3]:
            product(*pair)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for launch in range(launches):
                product(*operands[launch % len(operands)])
        return graph

    def sample(graph: Any, launches: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1000.0 * float(begin.elapsed_time(end)) / launches

    few = [captured(product, len(operands)) for product in products]
    fastest = min(sample(graph, len(operands)) for graph in few for _ in range(2))
    launches = len(operands) * max(1, round(SAMPLE_US / (fastest * len(operands))))
    graphs = [captured(product, launches) for product in products]
    ends = time.monotonic() + WARM_UP_S
    while time.monotonic() < ends:
        for graph in graphs:
            sample(graph, launches)
    rows: list[list[float]] = [[] for _ in graphs]
    order = random.Random(0)
    for _ in range(ROUNDS):
        for index in order.sample(range(len(graphs)), len(graphs)):
            rows[index].append(sample(graphs[index], launches))
    return [float(f"{statistics.median(row):.6g}") for row in rows]


def chosen_by_heuristics(problem: GemmProblem, gpu: str) -> dict[str, Any]:
    """The tiles of its first choices for CUTLASS 3, with splits, clusters and stages."""
    import nvMatmulHeuristics as library

    known = library.NvMatmulHeuristicsNvidiaGpu
    interface = library.NvMatmulHeuristicsInterface(
        library.NvMatmulHeuristicsTarget.CUTLASS3,
        precision=_PRECISIONS[problem.dtype],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    hardware = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(hardware, known.H200_SXM if "H200" in gpu else known.H100_SXM)
    layout = library.NvMatmulHeuristicsMatmulLayout[f"{problem.layout.value.upper()}_ROW_MAJOR"]
    found = interface.get_with_mnk(problem.m, problem.n, problem.k, layout, CHOICES, hardware)
    kernels = [one["kernel"] for one in found]
    return {
        "hints": [
            {
                "tile_m": one.cta_tile_m,
                "tile_n": one.cta_tile_n,
                "tile_k": one.cta_tile_k,
                "cluster": [one.cluster_m, one.cluster_n],
                "split_k": one.split_k,
                "stages": one.stages,
            }
            for one in kernels
        ]
    }


def main(what: str, gpu: str) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        problem = GemmProblem.from_dict(json.loads(line))
        try:
            answer = timed_by_torch(problem) if what == "torch" else chosen_by_heuristics(problem, gpu)
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {error}"[:300]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # the library of heuristics crashes when its objects are collected


if __name__ == "__main__":
    main(*sys.argv[1:3])
