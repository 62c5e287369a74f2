"""Kernels that break their device, one after the other through the supervised worker, and what is left.

    PYTHONPATH=.:client:tests/support/samples python tests/faults/soak/fault_kernels.py \\
        --trials 1000 --seconds 220 --out fault-kernels.json

On the first device: a GPU where there is one, else the host. So many workers as ``--workers`` says each run
one broken kernel of a class at a time, then the right kernel. Each trial must end as its class has it, and
the next one be right. Where the class ends the worker, the GPU's memory must be free again before the next
worker starts. A file of ``--out`` that is there already, for instance from ``benchmarks/results``, is gone on
with; an item of its ``slices`` is one run. Exits with 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import logging
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import host_kernels

from kernels.compiler import nvrtc
from tilewright.artifact import Artifact, Grid, LaunchPlan, Pointer, Resources, Scalar, Serves
from tilewright.artifact.plan import Workspace
from tilewright.schema.trial import Outcome
from tuner.workers.bench import Bench, list_devices

PROBLEM = host_kernels.PROBLEM
HANG_S = 3.0
TRIAL_S = 60.0
FREE_S = 5.0  # in which the memory of a killed worker must be free again
FREE_BYTES = 64 << 20  # NOTE: the driver itself gives and takes some megabytes
WORKSPACE_BYTES = 1024
GPU_WORKERS = 12


@dataclasses.dataclass(frozen=True)
class Fault:
    """A class of broken kernels.

    Attributes:
        statement: what the kernel does besides its product; it sees its arguments and ``thread``, which is 0
            for one thread of the grid.
        outcome: how its trials end.
        ends_worker: whether the device worker ends with it.
        changes: how its artifact differs from that of the right kernel.
    """

    name: str
    statement: str
    outcome: Outcome = Outcome.LAUNCH_ERROR
    ends_worker: bool = True
    changes: Callable[[Artifact], Artifact] = lambda artifact: artifact


def _damaged(artifact: Artifact) -> Artifact:
    return dataclasses.replace(artifact, binary=b"not a binary\0")


def _too_much_smem(artifact: Artifact) -> Artifact:
    return dataclasses.replace(artifact, plan=dataclasses.replace(artifact.plan, dynamic_smem=1 << 20))


_HANG = {"outcome": Outcome.TIMEOUT}
_LIE = {"outcome": Outcome.WRONG_RESULT, "ends_worker": False}
_REFUSED = {"ends_worker": False}
_OVERRUN = f"workspace[{WORKSPACE_BYTES} / sizeof(float)] = 1.0f;"

GPU_FAULTS = (
    Fault("illegal address", "*(volatile int*)16 = 1;"),
    Fault("address far behind D", "*(volatile float*)(d + (1LL << 40)) = 1.0f;"),
    Fault("misaligned address", "*(volatile int*)((char*)d + 1) = 1;"),
    Fault(
        "shared memory out of range", 'asm volatile("st.shared.u32 [%0], %0;" :: "r"(1 << 22) : "memory");'
    ),
    Fault("trap", 'asm volatile("trap;");'),
    Fault("assertion", '__assertfail("wrong on purpose", "kernel.cu", 1, "kernel", 1);'),
    Fault("stack overflow", "d[0] = descend(d, m);"),
    Fault("endless loop", "for (volatile int i = 0;; ++i) {}", **_HANG),  # type: ignore[arg-type]
    Fault(
        "huge loop", 'for (long long i = 0; i < 1LL << 50; ++i) asm volatile("nanosleep.u32 1;");', **_HANG
    ),  # type: ignore[arg-type]
    Fault(
        "barrier that nobody else reaches",
        'if (!thread) asm volatile("barrier.sync 1, 512;" ::: "memory");',
        **_HANG,  # type: ignore[arg-type]
    ),
    Fault("workspace overrun", f"if (!thread) {_OVERRUN}", **_LIE),  # type: ignore[arg-type]
    Fault("write behind D", "if (!thread) d[(long long)m * n] = 1.0f;", **_LIE),  # type: ignore[arg-type]
    Fault("one wrong element", "if (!thread) alpha += 1.0f;", **_LIE),  # type: ignore[arg-type]
    Fault("too much shared memory", "", **_REFUSED, changes=_too_much_smem),  # type: ignore[arg-type]
    Fault("damaged binary", "", **_REFUSED, changes=_damaged),  # type: ignore[arg-type]
)
HOST_FAULTS = (
    Fault("illegal address", host_kernels.SEGFAULT),
    Fault("abort", host_kernels.ABORT),
    Fault("exit", host_kernels.EXIT),
    Fault("endless loop", host_kernels.HANG, **_HANG),  # type: ignore[arg-type]
    Fault("workspace overrun", _OVERRUN, **_LIE),  # type: ignore[arg-type]
    Fault("write behind D", host_kernels.OUT_OF_BOUNDS, **_LIE),  # type: ignore[arg-type]
    Fault("one wrong element", host_kernels.OFF_BY_ONE, **_LIE),  # type: ignore[arg-type]
    Fault("damaged binary", "", **_REFUSED, changes=_damaged),  # type: ignore[arg-type]
)
RIGHT = Fault("none", "", Outcome.OK, ends_worker=False)

_SOURCE = """
extern "C" __device__ void __assertfail(
    const char* text, const char* file, unsigned line, const char* function, size_t size);

__device__ __noinline__ float descend(volatile float* d, int depth) {
    volatile float frame[256];
    for (int i = 0; i < 256; ++i) frame[i] = d[0] + depth;
    return depth < 0 ? frame[7] : descend(d, depth + 1) + frame[depth % 256];
}

extern "C" __global__ void kernel(const float* a, const float* b, float* d, float* workspace,
    int m, int n, int k, float alpha) {
    const int tiles_n = (n + 15) / 16;
    const int row = blockIdx.x / tiles_n * 16 + threadIdx.y;
    const int column = blockIdx.x % tiles_n * 16 + threadIdx.x;
    const int thread = (blockIdx.x * 16 + threadIdx.y) * 16 + threadIdx.x;
    STATEMENT
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    d[row * n + column] = alpha * sum;
}
"""


@functools.cache
def gpu_artifact(arch: str, fault: Fault) -> Artifact:
    """A product, 16 x 16 elements a CTA, with the statement before it."""
    built = nvrtc.compile_text(_SOURCE.replace("STATEMENT", fault.statement), arch, entry="kernel")
    plan = LaunchPlan(
        format="cubin",
        target=arch,
        entry="kernel",
        block=(16, 16, 1),
        grid=Grid(16, 16),
        args=(
            *(Pointer(name) for name in ("a", "b", "d", "workspace")),  # type: ignore[arg-type]
            *(Scalar(name, "int32") for name in ("m", "n", "k")),
            Scalar("alpha", "float32"),
        ),
        serves=Serves.of(PROBLEM),
        workspace=Workspace(fixed_bytes=WORKSPACE_BYTES),
    )
    return fault.changes(Artifact(plan, Resources(), "0" * 64, built.compiler, built.binary))


@functools.cache
def host_artifact(arch: str, fault: Fault) -> Artifact:
    """The host's product with the statement after it."""
    built = host_kernels.artifact(arch, after=fault.statement, workspace=WORKSPACE_BYTES)
    return fault.changes(built)


class Campaign:
    """Workers of one device, and what their broken kernels led to."""

    def __init__(self, device: str, workers: int) -> None:
        self._used_bytes = _memory(device)
        self._empty = self._used_bytes() if self._used_bytes else 0
        self.benches = [Bench(device) for _ in range(workers)]
        self.spec = self.benches[0].spec
        gpu = self.spec.kind == "cuda"
        self.faults, self._artifact = (GPU_FAULTS, gpu_artifact) if gpu else (HOST_FAULTS, host_artifact)
        self._pool = ThreadPoolExecutor(workers)
        self.classes: dict[str, dict[str, Any]] = {
            fault.name: {"trials": 0, "back_s": [], "free_s": [], "said": collections.Counter(), "wrong": []}
            for fault in self.faults
        }

    def run(self, trials: int, seconds: float) -> None:
        """Round after round, a class a round, until so many trials were run or the time is over."""
        until, run = time.monotonic() + seconds, 0
        self._each(self._right, [0.0] * len(self.benches))
        for fault in itertools.cycle(self.faults):
            if run >= trials or time.monotonic() > until:
                return
            self.round(fault)
            run += len(self.benches)

    def round(self, fault: Fault) -> None:
        """Each worker runs a broken kernel, and the right one when memory was looked at."""
        into = self.classes[fault.name]
        before = [bench.restarts for bench in self.benches]
        results = list(self._pool.map(functools.partial(self._trial, fault), self.benches))
        ended = time.monotonic()
        if fault.ends_worker and self._used_bytes and (left := self._await_memory()) > FREE_BYTES:
            into["wrong"].append(f"{left >> 20} MiB of memory are in use {FREE_S:g} s after the kills")
        if fault.ends_worker and self._used_bytes:
            into["free_s"].append(round(time.monotonic() - ended, 3))
        for result in results:
            into["trials"] += 1
            into["said"][f"{result.outcome.value}: {result.message[:120]}"] += 1
            if result.outcome is not fault.outcome:
                into["wrong"].append(f"ended as {result.outcome.value}: {result.message[:200]}")
        for took, bench, restarts in zip(
            self._each(self._right, [time.monotonic()] * len(results)), self.benches, before, strict=True
        ):
            if isinstance(took, str):
                into["wrong"].append(took)
            elif fault.ends_worker:
                into["back_s"].append(took)
            if bench.restarts != restarts + fault.ends_worker:
                into["wrong"].append(f"{bench.restarts - restarts} restarts of the worker")

    def _each(self, call: Callable[..., Any], values: Sequence[float]) -> list[Any]:
        return list(self._pool.map(call, self.benches, values))

    def _trial(self, fault: Fault, bench: Bench) -> Any:
        timeout_s = HANG_S if fault.outcome is Outcome.TIMEOUT else TRIAL_S
        return bench.trial(self._artifact(self.spec.arch, fault), PROBLEM, None, timeout_s, fewest_samples=3)

    def _right(self, bench: Bench, since: float) -> float | str:
        """Seconds to the end of a right trial, or what was wrong with it."""
        result = self._trial(RIGHT, bench)
        if result.outcome is Outcome.OK:
            return round(time.monotonic() - since, 2)
        return f"the next trial ended as {result.outcome.value}: {result.message[:200]}"

    def _await_memory(self) -> int:
        """Bytes in use beyond those from before the first worker, when they are few or the time is over."""
        assert self._used_bytes is not None
        until = time.monotonic() + FREE_S
        while (left := self._used_bytes() - self._empty) > FREE_BYTES and time.monotonic() < until:
            time.sleep(0.01)
        return left

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()
        for bench in self.benches:
            bench.close()


def _memory(device: str) -> Callable[[], int] | None:
    """Counts the bytes of a GPU in use, by all processes; None for the host."""
    if device == "host":
        return None
    import pynvml

    with contextlib.closing(Bench(device)) as bench:
        name = f"GPU-{uuid.UUID(bench.identity)}"
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    return {"median": round(statistics.median(seconds), 2), "max": max(seconds)} if seconds else None


def report(campaign: Campaign, seconds: float) -> dict[str, Any]:
    """What one run found."""
    classes = {
        name: {
            **found,
            "back_s": _spread(found["back_s"]),
            "free_s": _spread(found["free_s"]),
            "said": dict(found["said"]),
            "wrong": found["wrong"][:20],
        }
        for name, found in campaign.classes.items()
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": campaign.spec.name,
        "driver": campaign.benches[0].driver,
        "workers": len(campaign.benches),
        "seconds": round(seconds, 1),
        "trials": sum(found["trials"] for found in classes.values()),
        "wrong": sum(len(found["wrong"]) for found in campaign.classes.values()),
        "classes": classes,
    }


def line(name: str, found: Mapping[str, Any]) -> str:
    """One class in words."""
    parts = [f"{name:34}{found['trials']:5} trials", f"{len(found['wrong'])} wrong"]
    for what, spread in (("back in", found["back_s"]), ("memory free in", found["free_s"])):
        if spread:
            parts.append(f"{what} {spread['median']} s, {spread['max']} s at most")
    return ", ".join(parts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", help="host or cuda:INDEX; by default the first one")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=220.0, help="no new round begins after them")
    parser.add_argument("--workers", type=int, help=f"at once: {GPU_WORKERS} by default, 1 on the host")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("tilewright.workers").setLevel(logging.ERROR)  # what the killed processes printed last
    device = arguments.device or list_devices()[0]
    slices: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        slices = json.loads(arguments.out.read_text())["slices"]
    done, started = sum(one["trials"] for one in slices), time.monotonic()
    campaign = Campaign(device, arguments.workers or (1 if device == "host" else GPU_WORKERS))
    try:
        campaign.run(arguments.trials - done, arguments.seconds)
    finally:
        slices.append(report(campaign, time.monotonic() - started))
        totals = {name: sum(one[name] for one in slices) for name in ("trials", "wrong")}
        if arguments.out:
            arguments.out.write_text(json.dumps({**totals, "slices": slices}, indent=1) + "\n")
        campaign.close()
    for name, found in slices[-1]["classes"].items():
        print(line(name, found), flush=True)  # noqa: T201
        for wrong in found["wrong"][:3]:
            print(f"    {wrong}", flush=True)  # noqa: T201
    print(f"{totals['trials']} of {arguments.trials} trials, {totals['wrong']} wrong", flush=True)  # noqa: T201
    sys.exit(totals["wrong"] > 0)


if __name__ == "__main__":
    main()
