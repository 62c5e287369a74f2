"""A transformer's MLP in torch with and without ``tilewright.torch.use``: results, then times.

    python -m benchmarks.client.mlp --out FILE [--budget 40]

A service is started on loopback and tunes the model's products with ``--budget`` trials each; a client of it
then launches what it answers. For each element type and number of tokens the plain model, the routed one, and
both captured in CUDA graphs are checked against float64 and only then timed, see
:mod:`benchmarks.client.mlp_report`. FILE is written anew after each case.
"""

from __future__ import annotations

import argparse
import copy
import functools
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import tilewright.torch
from benchmarks.client import mlp_report
from benchmarks.common.results import device_facts, now, write_json
from service.cli.demo import running_service
from tilewright import Client, GemmProblem
from tilewright.errors import TilewrightError
from tilewright.schema.codec import encode
from tuner.devices.base import Device
from tuner.devices.cuda import CudaDevice
from tuner.measure.interleave import Taken, interleave, mean_of_known

_PROBES, _PASSES = 3, 2
_FETCH_S = 60.0
Model = Callable[[Any], Any]


def transformer_mlp(width: int, inner: int, dtype: torch.dtype) -> Any:
    """``width`` to ``inner`` to ``width`` with gelu between, biases included."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, inner), torch.nn.GELU(), torch.nn.Linear(inner, width))
    return torch.nn.Sequential(*layers).to("cuda", dtype).eval()


def inputs(tokens: int, width: int, dtype: torch.dtype) -> Any:
    """N(0, 1), one row a token."""
    return torch.randn(tokens, width, device="cuda").to(dtype)


def captured(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """The replay of a graph of one call, and where it leaves its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries make their workspaces outside of the capture
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def passes(call: Callable[[], Any], count: int) -> float:
    """Microseconds a pass, between two events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / count


def relative_error(got: Any, exact: Any) -> float:
    """Frobenius norm of the difference over that of ``exact``."""
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def tune(client: Client, problem: GemmProblem, budget: int) -> dict[str, Any]:
    """Tune one product; what it took."""
    started = time.monotonic()
    job = client.tune(problem, max_trials=budget)
    measured = job.progress.measured if job.progress else 0
    spent = {"seconds": round(time.monotonic() - started, 1), "measured": measured}
    tell(f"tuned {problem}: {spent}")
    return {"problem": problem.to_dict(), **spent}


def answer(client: Client, problem: GemmProblem) -> dict[str, Any]:
    """What the client runs for a product, and how the kernel did in the service's race."""
    result = client.lookup(problem)
    found: dict[str, Any] = {"problem": problem.to_dict(), "kind": result.kind, "reason": result.reason}
    if result.entry is None:
        return found
    told = encode(result.entry)
    return found | {name: told[name] for name in ("config", "median_us", "baseline", "speedup", "verdict")}


class Bench:
    """Cases of one element type: the models, and the client that one of them is routed through."""

    def __init__(self, device: Device, client: Client, dtype: str, arguments: argparse.Namespace) -> None:
        self._device, self._client, self._dtype, self._arguments = device, client, dtype, arguments
        self._type = getattr(torch, dtype)
        self._plain = transformer_mlp(arguments.width, arguments.inner, self._type)
        self._routed = copy.deepcopy(self._plain)
        self._exact = copy.deepcopy(self._plain).double()

    def case(self, tokens: int) -> dict[str, Any]:
        """Results and times for so many tokens.

        Raises:
            TilewrightError: a result is not within the tolerance.
        """
        x = inputs(tokens, self._arguments.width, self._type)
        with torch.no_grad(), tilewright.torch.use(self._routed, self._client):
            before = self._client.matmul.stats
            self._routed(x)
            ran = dict(self._client.matmul.stats - before)
            candidates, results = self._candidates(x)
            accuracy = self._check(x, results)
            taken = self._race(candidates)
        rows = dict(zip(candidates, taken.rows, strict=True))
        flops = 4.0 * tokens * self._arguments.width * self._arguments.inner
        return {
            "dtype": self._dtype,
            "tokens": tokens,
            "ran": ran,
            "accuracy": accuracy,
            "us": mlp_report.times(rows, flops, taken.periods),
            "speedup": mlp_report.speedups(rows, taken.periods),
            "sm_mhz": mean_of_known([mhz for mhz, _ in taken.states]),
            "watts": mean_of_known([watts for _, watts in taken.states]),
        }

    def _candidates(self, x: Any) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
        """What is timed, and what each of them computed."""
        models: dict[str, Model] = {"torch": self._plain, "tilewright": self._routed}
        candidates: dict[str, Callable[[], Any]] = {}
        results = {}
        for name, model in models.items():
            candidates[name] = functools.partial(model, x)
            results[name] = candidates[name]()
            candidates[f"{name}, graph"], results[f"{name}, graph"] = captured(candidates[name])
            candidates[f"{name}, graph"]()
        torch.cuda.synchronize()
        return candidates, results

    def _check(self, x: Any, results: Mapping[str, Any]) -> dict[str, Any]:
        exact = self._exact(x.double())
        errors = {name: relative_error(got, exact) for name, got in results.items()}
        difference = relative_error(results["tilewright"], results["torch"])
        found = mlp_report.accuracy(self._dtype, errors, difference)
        if not found["equal"]:
            raise TilewrightError(f"{self._dtype}, {len(x)} tokens: wrong results: {found}")
        return found

    def _race(self, candidates: Mapping[str, Callable[[], Any]]) -> Taken:
        """A row of samples for each candidate."""
        quickest = min(passes(call, _PROBES) for call in candidates.values() for _ in range(_PROBES))
        count = mlp_report.passes_per_sample(quickest)

        def sampler(call: Callable[[], Any]) -> Callable[[int], float]:
            return lambda _round: passes(call, count)

        samplers = [sampler(call) for call in candidates.values()]
        return interleave(self._device, samplers, self._arguments.rounds, 0, passes=_PASSES)


def run(arguments: argparse.Namespace, device: Device, client: Client) -> None:
    """Tune what is missing, then one case after the other into the file."""
    problems = mlp_report.products(arguments.dtypes, arguments.tokens, arguments.width, arguments.inner)
    jobs = [tune(client, one, arguments.budget) for one in problems if client.lookup(one).miss]
    if not client.refresh(_FETCH_S):
        raise TilewrightError("the service did not send the tuned kernels")
    report: dict[str, Any] = {
        "date": now(),
        "command": "python -m benchmarks.client.mlp " + shlex.join(sys.argv[1:]),
        **device_facts(device.spec, device.driver),
        "torch": str(torch.__version__),
        "method": mlp_report.METHOD,
        "mlp": {"width": arguments.width, "inner": arguments.inner, "activation": "gelu", "bias": True},
        "tuning": {"trials_a_product": arguments.budget, "jobs": jobs},
        "products": [answer(client, one) for one in problems],
        "cases": [],
    }
    for dtype in arguments.dtypes:
        bench = Bench(device, client, dtype, arguments)
        for tokens in arguments.tokens:
            case = bench.case(tokens)
            report["cases"].append(case)
            report["stats"] = dict(client.matmul.stats)
            write_json(arguments.out, report)
            tell(mlp_report.line(case))


def tell(line: str) -> None:
    """A line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=40, help="trials a product")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[16, 512, 4096])
    for name, default in (("width", 4096), ("inner", 14336), ("rounds", 51)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path(folder), "cuda:0") as url,
        Client(url, timeout=60.0, cache_dir=f"{folder}/client") as client,
    ):
        run(arguments, CudaDevice(0), client)


if __name__ == "__main__":
    main()
