"""What a GEMM on request costs over the bare kernel: safetensors or raw over HTTP, and shared memory, with
copies into it and without.

    python -m benchmarks.service.gemm --out benchmarks/results/gemm-service.json

Starts ``tilewright serve`` on an empty database, so that the vendor library runs, and sends each problem
``--repeats`` times on one connection from this process. ``total_ms`` is what the caller waits, conversion of
its arrays included (not for ``raw``, which sends bytes that lie ready); ``kernel_ms`` is the kernel as the
device timed it; ``overhead_ms`` is their difference. ``parts_ms`` are the service's own (``Server-Timing``).
"""

from __future__ import annotations

import argparse
import http.client
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import numpy as np

from benchmarks.common.results import now, tell
from benchmarks.common.serving import serving
from tilewright import Client, GemmProblem
from tilewright.http.gemm_calls import GemmAnswer
from tilewright.http.tensors import numpy_type
from tilewright.schema.problem import DType, Layout

# By kind of device: 4096^3, or what a CPU does in a second; and two operands of 16 MiB each.
PROBLEMS = {
    "cuda": (
        GemmProblem(4096, 4096, 4096, DType.FLOAT16, Layout.NT),
        GemmProblem(2048, 2048, 4096, DType.FLOAT16, Layout.NT),
    ),
    "host": (
        GemmProblem(1024, 1024, 1024, DType.FLOAT32, Layout.NT),
        GemmProblem(2048, 2048, 2048, DType.FLOAT32, Layout.NT),
    ),
}
Run = Callable[[], tuple[float, dict[str, float]]]


def operands(problem: GemmProblem) -> tuple[Any, Any]:
    """N(0, 1) operands as stored."""
    random = np.random.default_rng(0)
    stored = numpy_type(problem.dtype)
    a, b = (
        random.standard_normal(shape, "f4").astype(stored) for shape in (problem.a_shape, problem.b_shape)
    )
    return a, b


def parts(timing: str) -> dict[str, float]:
    """Milliseconds by part, of a ``Server-Timing`` header."""
    return {
        name: float(value) for name, _, value in (p.strip().partition(";dur=") for p in timing.split(","))
    }


def through_client(client: Client, a: Any, b: Any, *, shared: bool, out: Any = None) -> Run:
    """``Client.gemm``."""

    def run() -> tuple[float, dict[str, float]]:
        answer: GemmAnswer = client.gemm(a, b, transpose_b=True, shared=shared, out=out)
        return answer.kernel_us / 1e3, answer.timing

    return run


def made_there(client: Client, problem: GemmProblem, a: Any, b: Any) -> Run:
    """The same where operands and result lie in shared memory for good."""
    there = [client.shared_empty(array.shape, array.dtype) for array in (a, b)]
    for array, values in zip(there, (a, b), strict=True):
        array[...] = values
    out = client.shared_empty((problem.m, problem.n), numpy_type(problem.out))
    return through_client(client, *there, shared=True, out=out)


def raw(url: str, problem: GemmProblem, a: Any, b: Any) -> Run:
    """A raw body over ``http.client``, read into memory that lies ready."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    query = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout}
    body = a.tobytes() + b.tobytes()
    result = bytearray(problem.m * problem.n * problem.out.size)
    headers = {"Content-Type": "application/octet-stream"}

    def run() -> tuple[float, dict[str, float]]:
        connection.request("POST", f"/gemm?{urlencode(query)}", body, headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise RuntimeError(answer.read().decode())
        view = memoryview(result)
        while view:
            view = view[answer.readinto(view) :]
        answer.read()
        timing = parts(answer.headers["Server-Timing"])
        return float(answer.headers["Tilewright-Kernel-Us"]) / 1e3, timing

    return run


def cost(run: Run, repeats: int) -> dict[str, Any]:
    """Medians over the repeats; the first run, which loads the kernel, is left out."""
    run()
    rows: list[tuple[float, float, dict[str, float]]] = []
    for _ in range(repeats):
        started = time.perf_counter()
        kernel_ms, timing = run()
        rows.append((1e3 * (time.perf_counter() - started), kernel_ms, timing))
    total, kernel = statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)
    overhead = statistics.median(row[0] - row[1] for row in rows)
    named = {name: statistics.median(row[2][name] for row in rows) for name in rows[0][2]}
    return {
        "total_ms": round(total, 3),
        "kernel_ms": round(kernel, 3),
        "overhead_ms": round(overhead, 3),
        "parts_ms": {name: round(value, 3) for name, value in named.items()},
    }


def measure(url: str, repeats: int) -> dict[str, Any]:
    """Every problem in every way."""
    with Client(url, timeout=120.0, offline=True) as client:
        device = client.devices()[0]
        found: dict[str, Any] = {
            "device": device.model_dump(mode="json", include={"model", "arch", "driver"})
        }
        for problem in PROBLEMS[device.kind]:
            a, b = operands(problem)
            check(client, problem, a, b)
            ways = {
                "safetensors, Client.gemm": through_client(client, a, b, shared=False),
                "raw, http.client": raw(url, problem, a, b),
                "shared memory, Client.gemm": through_client(client, a, b, shared=True),
                "arrays made in shared memory, Client.gemm": made_there(client, problem, a, b),
            }
            sizes = {"body_mib": round((a.nbytes + b.nbytes) / 2**20, 1)}
            found[str(problem)] = sizes | {name: cost(run, repeats) for name, run in ways.items()}
    return found


def check(client: Client, problem: GemmProblem, a: Any, b: Any) -> None:
    """Both ways give the product."""
    expected = a[:64].astype("f8") @ b.T.astype("f8")
    for shared in (False, True):
        d = client.gemm(a, b, transpose_b=True, shared=shared).d[:64].astype("f8")
        error = float(np.linalg.norm(d - expected) / np.linalg.norm(expected))
        if not error < 1e-2:
            raise RuntimeError(f"{problem}: relative error {error}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = ("--device", arguments.device) if arguments.device else ()
    os.environ["TILEWRIGHT_SHARED_MEMORY"] = "1"
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(f"sqlite:///{folder}/empty.db", *device) as server,
    ):
        found = measure(server.url, arguments.repeats)
    result = {
        "date": now(),
        "command": "python -m benchmarks.service.gemm " + shlex.join(sys.argv[1:]),
        "python": platform.python_version(),
        "httpx2": httpx2.__version__,
        "load_average_1_min": round(os.getloadavg()[0], 2),
        **found,
    }
    tell(result, arguments.out)


if __name__ == "__main__":
    main()
