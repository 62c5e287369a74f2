"""What a process pays before its first tuned GEMM: import, cold start from a service, warm start from disk.

    python -m benchmarks.client.startup --out FILE [--configs 500] [--kernels 8]

A real service answers on loopback from a real database: ``--configs`` problems, each with an artifact of its
own. ``--kernels`` of them are compiled for this machine (for its GPU where there is one, else for the CPU);
the others carry the same binaries under source digests of their own, so that sizes, digests and everything
that is fetched and checked are those of as many different kernels. Each figure is taken in fresh processes;
the median and every sample are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.results import now, write_json
from kernels.compiler.build import build
from kernels.registry import FAMILIES
from service.cli.demo import running_service
from tilewright import Artifact, Config, DeviceSpec, GemmProblem
from tilewright.launch import driver
from tilewright.schema.problem import DType, Layout
from tilewright.schema.trial import Baseline, BestConfig, Provenance, Timing
from tuner.devices.host import HostDevice
from tuner.measure import race
from tuner.store import best
from tuner.store import entities as stored
from tuner.store.database import Store

ROUNDS = 7

_IMPORT = """
import json, time
start = time.perf_counter()
import tilewright
package = time.perf_counter() - start
from tilewright import Client
print(json.dumps({"import_ms": package * 1e3, "import_client_ms": (time.perf_counter() - start) * 1e3}))
"""

_START = """
import json, pathlib, sys, time, timeit
from tilewright import Client, GemmProblem
from tilewright.schema.match import MatchLimits
from tilewright.launch import local_device
url, folder, problem = sys.argv[1], pathlib.Path(sys.argv[2]), GemmProblem(**json.loads(sys.argv[3]))
start = time.perf_counter()
device = local_device.default_device()
name = local_device.device_class(device).id
found = time.perf_counter()
cpu = time.process_time()
tw = Client(url, cache_dir=folder, start_timeout=60.0).start(device)
started = time.perf_counter()
cpu = time.process_time() - cpu
result = tw.lookup(problem, device)
kernel = tw._local.choose(problem, device).artifact
first = time.perf_counter()
refresher = tw._local.refresher(device)
limits = MatchLimits()
times = timeit.repeat(lambda: refresher.catalog.lookup(problem, limits), number=20000, repeat=5)
print(json.dumps({
    "device_ms": (found - start) * 1e3,
    "start_ms": (started - found) * 1e3,
    "start_cpu_ms": cpu * 1e3,
    "first_kernel_ms": (first - started) * 1e3,
    "lookup_us": min(times) / 20000 * 1e6,
    "configs": len(refresher.config_set.entries),
    "answer": result.kind,
    "kernel_bytes": len(kernel.binary),
}))
tw.close()
"""


def first_device() -> Any:
    """The GPU where there is one, else the CPU."""
    if driver.device_count():
        from tuner.devices.cuda import CudaDevice

        return CudaDevice(0)
    return HostDevice()


def problems(spec: DeviceSpec, count: int) -> list[GemmProblem]:
    """Different problems that one kernel serves."""
    dtype = DType.FLOAT32 if spec.kind == "host" else DType.FLOAT16
    extents = itertools.product(range(64, 64 * 9, 64), range(64, 64 * 9, 64), range(64, 64 * 9, 64))
    return [GemmProblem(m, n, k, dtype, Layout.NT) for m, n, k in itertools.islice(extents, count)]


def artifacts(spec: DeviceSpec, problem: GemmProblem, kernels: int) -> Iterator[tuple[Config, Artifact]]:
    """Compiled kernels with their configs, then again under other source digests, without end."""
    family = FAMILIES["host" if spec.kind == "host" else "wgmma" if spec.arch == "sm_90" else "mma_sync"]
    configs = family.heuristic_configs(problem, spec)[:kernels]
    built = [(config, build(family, config, problem, spec)) for config in configs]
    for number in itertools.count():
        for config, artifact in built:
            changed = f"{artifact.source_digest[:48]}{number:016x}"
            yield config, artifact if number == 0 else dataclasses.replace(artifact, source_digest=changed)


def fill(folder: Path, device: Any, wanted: list[GemmProblem], kernels: int) -> None:
    """Fill a database with a winner for every problem, none of them stale."""
    store = Store.open(f"sqlite:///{folder / 'tilewright.db'}")
    store.migrate()
    made = artifacts(device.spec, wanted[0], kernels)
    _, first = next(artifacts(device.spec, wanted[0], 1))
    name = device.spec.device_class.id
    origin = Provenance(first.source_digest, first.compiler, device.driver, name, "0.1.0", race.METHOD)
    try:
        with store.begin() as session:
            for problem, (config, artifact) in zip(wanted, made, strict=False):
                stored.put_artifact(session, artifact)
                best.put(session, _winner(device.spec.arch, problem, (config, artifact), origin))
    finally:
        store.close()


def _winner(arch: str, problem: GemmProblem, won: tuple[Config, Artifact], origin: Provenance) -> BestConfig:
    config, artifact = won
    return BestConfig(
        problem=problem,
        device_class=origin.device_class,
        arch=arch,
        config=config,
        artifact=artifact.digest,
        timing=Timing((1.0, 1.1, 1.2), 1.1, 1.0, 1.2, race.METHOD),
        ties=(),
        baseline=Baseline("not raced", 1.5),
        speedup=1.4,
        speedup_low=1.3,
        speedup_high=1.5,
        confidence=0.99,
        provenance=origin,
        resources=artifact.resources,
    )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run as one JSON document."""
    device = first_device()
    spec = device.spec
    wanted = problems(spec, arguments.configs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, device, wanted, arguments.kernels)
        with running_service(folder, "host" if spec.kind == "host" else "cuda:0") as url:
            first = [_start(url, folder / "first", wanted[-1])]  # the service makes the snapshot for this one
            cold = [_start(url, folder / f"cold-{number}", wanted[-1]) for number in range(ROUNDS)]
            warm = [_start(url, folder / "first", wanted[-1]) for _ in range(ROUNDS)]
        down = [_start(url, folder / "first", wanted[-1]) for _ in range(ROUNDS)]
    return {
        "date": now(),
        "command": "python -m benchmarks.client.startup " + shlex.join(sys.argv[1:]),
        "device": spec.to_dict() | {"device_class": spec.device_class.id},
        "configs": arguments.configs,
        "import": _summary([_run(_IMPORT) for _ in range(ROUNDS)]),
        "cold_with_a_new_snapshot": _summary(first),
        "cold": _summary(cold),
        "warm": _summary(warm),
        "warm_service_down": _summary(down),
        "limits": {"import_ms": 200, "cold_start_ms": 1000, "warm_start_ms": 150, "lookup_us": 2},
    }


def _start(url: str, cache: Path, problem: GemmProblem) -> dict[str, Any]:
    return _run(_START, url, str(cache), json.dumps(problem.to_dict()))


def _run(program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a measured process failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The median and all samples of each measured figure; other values as they are, since all runs agree on
    them."""
    figures = {
        name: statistics.median(sample[name] for sample in samples) if isinstance(value, float) else value
        for name, value in samples[0].items()
    }
    return figures | {"samples": samples}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--configs", type=int, default=500)
    parser.add_argument("--kernels", type=int, default=8)
    arguments = parser.parse_args()
    result = measure(arguments)
    write_json(arguments.out, result)
    for name in ("import", "cold", "warm", "warm_service_down"):
        shown = {key: value for key, value in result[name].items() if key != "samples"}
        sys.stdout.write(f"{name}: {json.dumps(shown)}\n")


if __name__ == "__main__":
    main()
