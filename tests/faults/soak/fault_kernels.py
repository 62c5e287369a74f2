"""Kernels that break their device, one after the other through supervised workers, and what is left.

    PYTHONPATH=.:client:tests/support/faults:tests/support/samples \\
        python tests/faults/soak/fault_kernels.py --trials 1000 --stop-after 300 --out fault-kernels.json

On all GPUs, or on the host where there is none. So many workers a device as ``--workers`` says each run one
broken kernel after the other, of another class each time, and the right kernel after each. A trial must end
as its class has it, and the next one be right. ``struck`` counts right kernels whose process ended with a
broken kernel of another worker: the result must say that it was not their own fault, and a second trial be
right. On a GPU all workers meet after a few trials for one of a class that ends them; then the memory of
the GPUs must be free again before the next workers start.

Then one worker alone measures the right kernel twice, and once more after each broken one. The second median
should lie in the interval of the first, and the third in that of the second: ``inside`` says how many did,
with nothing in between and after a broken kernel. Chance leaves some outside; too many of the latter are an
error. Last, NVRTC overflows its stack in a compile process: that config alone must be a compile error.

A file of ``--out`` that is there already, for instance from ``benchmarks/results``, is gone on with; an item
of its ``slices`` is one run. Exits with 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import functools
import itertools
import json
import logging
import math
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import host_kernels
from crashing_nvrtc import crashing
from device_samples import HOPPER

from kernels.compiler import nvrtc
from kernels.simt.family import SIMT
from tilewright.artifact import Artifact, Grid, LaunchPlan, Pointer, Resources, Scalar, Serves
from tilewright.artifact.plan import Workspace
from tilewright.schema.trial import Outcome, Timing
from tuner.workers.bench import Bench, list_devices

PROBLEM = host_kernels.PROBLEM
HANG_S = 1.0
TRIAL_S = 60.0
FREE_S = 5.0  # in which the memory of a killed worker must be free again
FREE_BYTES = 64 << 20  # NOTE: the driver itself gives and takes some megabytes
WORKSPACE_BYTES = 1024
GPU_WORKERS = 16  # a device, as many as it has cores
APART = 4  # trials of each worker between two looks at the memory
NVRTC_CRASH = "crash of NVRTC"
CHANCE = 3.0  # standard deviations by which chance may differ


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


def _too_much_memory(artifact: Artifact) -> Artifact:
    workspace = Workspace(fixed_bytes=1 << 46)  # no device has as much
    return dataclasses.replace(artifact, plan=dataclasses.replace(artifact.plan, workspace=workspace))


_HANG = {"outcome": Outcome.TIMEOUT}
_LIE = {"outcome": Outcome.WRONG_RESULT, "ends_worker": False}
_REFUSED = {"ends_worker": False}
_NO_MEMORY = "*(volatile char*)malloc(1ULL << 46) = 1;"
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
    Fault("no memory in the kernel", _NO_MEMORY),
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
    Fault("out of memory", "", **_REFUSED, changes=_too_much_memory),  # type: ignore[arg-type]
    Fault("damaged binary", "", **_REFUSED, changes=_damaged),  # type: ignore[arg-type]
)
HOST_FAULTS = (
    Fault("illegal address", host_kernels.SEGFAULT),
    Fault("abort", host_kernels.ABORT),
    Fault("exit", host_kernels.EXIT),
    Fault("no memory in the kernel", _NO_MEMORY),
    Fault("endless loop", host_kernels.HANG, **_HANG),  # type: ignore[arg-type]
    Fault("workspace overrun", _OVERRUN, **_LIE),  # type: ignore[arg-type]
    Fault("write behind D", host_kernels.OUT_OF_BOUNDS, **_LIE),  # type: ignore[arg-type]
    Fault("one wrong element", host_kernels.OFF_BY_ONE, **_LIE),  # type: ignore[arg-type]
    Fault("out of memory", "", **_REFUSED, changes=_too_much_memory),  # type: ignore[arg-type]
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


def host_artifact(arch: str, fault: Fault) -> Artifact:
    """The host's product with the statement after it."""
    built = host_kernels.artifact(arch, after=fault.statement, workspace=WORKSPACE_BYTES)
    return fault.changes(built)


def _nothing() -> dict[str, Any]:
    found = {"trials": 0, "struck": 0, "back_s": [], "free_s": [], "said": collections.Counter()}
    return found | {"wrong": []}


def too_few(with_nothing: int, after_fault: int, trials: int) -> bool:
    """Whether fewer measurements lie inside after a broken kernel than chance explains."""
    chance = (with_nothing + after_fault) / (2 * trials)
    deviation = math.sqrt(2 * trials * chance * (1 - chance))
    return with_nothing - after_fault > CHANCE * deviation


class Campaign:
    """Workers of devices, and what their broken kernels led to."""

    def __init__(self, devices: Sequence[str], workers: int) -> None:
        self._pool = ThreadPoolExecutor(len(devices) * workers)
        first = list(self._pool.map(Bench, devices))
        self.spec = first[0].spec
        gpu = self.spec.kind == "cuda"
        self.faults = GPU_FAULTS if gpu else HOST_FAULTS
        make = gpu_artifact if gpu else host_artifact
        self._artifacts = {fault: make(self.spec.arch, fault) for fault in (RIGHT, *self.faults)}
        list(self._pool.map(self._right, first))  # so that the others find compiled what CuPy compiles
        self._used_bytes = _memory(first) if gpu else None
        list(self._pool.map(Bench.close, first))
        if gpu:
            time.sleep(1.0)  # until the driver has taken their memory back
        self._empty = self._used_bytes() if self._used_bytes else 0
        self.benches = list(self._pool.map(Bench, [name for name in devices for _ in range(workers)]))
        self.classes: dict[str, dict[str, Any]] = {fault.name: _nothing() for fault in self.faults}
        self.inside: dict[str, int] = {}
        self.too_few_inside: list[str] = []
        self._lock = threading.Lock()
        self._left, self._until = 0, 0.0

    def run(self, trials: int, seconds: float) -> None:
        """Let each worker go through the classes, until so many trials were run or the time is over."""
        self._left, self._until = trials, time.monotonic() + seconds
        list(self._pool.map(self._right, self.benches))
        size = len(self.faults)
        orders = [
            itertools.cycle(self.faults[i % size :] + self.faults[: i % size])
            for i in range(len(self.benches))
        ]
        together = itertools.cycle(fault for fault in self.faults if fault.ends_worker)
        while self._left > 0 and time.monotonic() < self._until:
            list(self._pool.map(self._apart, self.benches, orders))
            if self._used_bytes:
                self._together(next(together))

    def measure_again(self, trials: int) -> None:
        """Let one worker measure the right kernel before and after so many broken ones."""
        bench, inside = self.benches[0], collections.Counter[str]()
        for fault in itertools.islice(itertools.cycle(self.faults), trials):
            first, second = self._timing(bench), self._timing(bench)
            self._trial(fault, bench)
            third = self._timing(bench)
            inside["with nothing in between"] += first.low_us <= second.median_us <= first.high_us
            inside["after a broken kernel"] += second.low_us <= third.median_us <= second.high_us
        self.inside = {"trials": trials, **inside}
        if trials and too_few(inside["with nothing in between"], inside["after a broken kernel"], trials):
            self.too_few_inside.append(f"too few measurements repeat after broken kernels: {self.inside}")

    def _timing(self, bench: Bench) -> Timing:
        result = bench.trial(self._artifacts[RIGHT], PROBLEM, None, TRIAL_S)
        if result.timing is None:
            raise RuntimeError(f"the right kernel ended as {result.outcome.value}: {result.message}")
        return result.timing

    def crash_compilers(self, folder: Path, trials: int) -> None:
        """Let NVRTC crash so many times in a compile process, and compile the right kernel after each."""
        device = self.spec if self.spec.kind == "cuda" else HOPPER
        config = SIMT.heuristic_configs(PROBLEM, device)[0]
        into = self.classes[NVRTC_CRASH] = _nothing()
        with crashing(folder) as (builder, crash):
            for _ in range(trials):
                crash.touch()
                broken = builder.submit("simt", config, PROBLEM, device).result(TRIAL_S)
                began = time.monotonic()
                after = builder.submit("simt", config, PROBLEM, device).result(TRIAL_S)
                into["back_s"].append(round(time.monotonic() - began, 2))
                into["trials"] += 1
                into["said"][f"{broken.outcome.value}: {broken.message[:120]}"] += 1
                crashed = broken.outcome is Outcome.COMPILE_ERROR and "SIGSEGV" in broken.message
                for name, one, right in (("it", broken, crashed), ("the next", after, after.artifact)):
                    if not right:
                        into["wrong"].append(f"{name} ended as {one.outcome.value}: {one.message[:200]}")

    def _apart(self, bench: Bench, order: Iterator[Fault]) -> None:
        """Some trials of one worker."""
        for fault in itertools.islice(order, APART):
            if not self._take():
                return
            before = bench.restarts
            result = self._trial(fault, bench)
            self._judge(fault, bench, result, before, time.monotonic())

    def _together(self, fault: Fault) -> None:
        """Each worker runs a broken kernel, and the right one when memory was looked at."""
        benches = self.benches
        if self._left < len(benches) or time.monotonic() > self._until:
            return
        self._left -= len(benches)
        before = [bench.restarts for bench in benches]
        results = list(self._pool.map(functools.partial(self._trial, fault), benches))
        ended = time.monotonic()
        left = self._await_memory()
        into = self.classes[fault.name]
        into["free_s"].append(round(time.monotonic() - ended, 3))
        if left > FREE_BYTES:
            into["wrong"].append(f"{left >> 20} MiB of memory are in use {FREE_S:g} s after the kills")
        again = [time.monotonic()] * len(benches)
        list(self._pool.map(functools.partial(self._judge, fault), benches, results, before, again))

    def _take(self) -> bool:
        """Whether one more trial may begin."""
        with self._lock:
            more = self._left > 0 and time.monotonic() < self._until
            self._left -= more
        return more

    def _judge(self, fault: Fault, bench: Bench, result: Any, restarts: int, since: float) -> None:
        """Run the right kernel after a broken one, and note what was not as it must be."""
        wrong = []
        if result.outcome is not fault.outcome:
            wrong.append(f"ended as {result.outcome.value}: {result.message[:200]}")
        after = self._right(bench)
        # A broken kernel of another worker may end this process too, which is not the right kernel's fault.
        struck = after.outcome is Outcome.LAUNCH_ERROR and after.own_fault is False
        if struck:
            restarts, after = restarts + 1, self._right(bench)
        back_s = round(time.monotonic() - since, 2)
        if after.outcome is not Outcome.OK:
            wrong.append(f"the next trial ended as {after.outcome.value}: {after.message[:200]}")
        # A new process repeats what may be the kernel's doing.
        if bench.restarts != restarts + fault.ends_worker * (2 if result.own_fault else 1):
            wrong.append(f"{bench.restarts - restarts} restarts of the worker")
        with self._lock:
            into = self.classes[fault.name]
            into["trials"] += 1
            into["struck"] += struck
            into["said"][f"{result.outcome.value}: {result.message[:120]}"] += 1
            into["wrong"] += wrong
            if fault.ends_worker:
                into["back_s"].append(back_s)

    def _trial(self, fault: Fault, bench: Bench) -> Any:
        timeout_s = HANG_S if fault.outcome is Outcome.TIMEOUT else TRIAL_S
        return bench.trial(self._artifacts[fault], PROBLEM, None, timeout_s, fewest_samples=3)

    def _right(self, bench: Bench) -> Any:
        return self._trial(RIGHT, bench)

    def _await_memory(self) -> int:
        """Bytes in use beyond those from before the first worker, when they are few or the time is over."""
        assert self._used_bytes is not None
        until = time.monotonic() + FREE_S
        while (left := self._used_bytes() - self._empty) > FREE_BYTES and time.monotonic() < until:
            time.sleep(0.01)
        return left

    def close(self) -> None:
        """End the workers."""
        list(self._pool.map(Bench.close, self.benches))
        self._pool.shutdown()


def _memory(benches: Sequence[Bench]) -> Callable[[], int]:
    """Counts the bytes of GPUs in use, by all processes."""
    import pynvml

    pynvml.nvmlInit()
    names = [f"GPU-{uuid.UUID(bench.identity)}" for bench in benches]
    handles = [pynvml.nvmlDeviceGetHandleByUUID(name) for name in names]
    return lambda: sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


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
        "devices": len({bench.identity for bench in campaign.benches}),
        "driver": campaign.benches[0].driver,
        "workers": len(campaign.benches),
        "seconds": round(seconds, 1),
        "trials": sum(found["trials"] for found in classes.values()),
        "wrong": sum(len(found["wrong"]) for found in campaign.classes.values())
        + len(campaign.too_few_inside),
        "inside": campaign.inside,
        "classes": classes,
    }


def line(name: str, found: Mapping[str, Any]) -> str:
    """One class in words."""
    parts = [f"{name:34}{found['trials']:5} trials", f"{len(found['wrong'])} wrong"]
    parts += [f"{found['struck']} struck"] if found["struck"] else []
    for what, spread in (("back in", found["back_s"]), ("memory free in", found["free_s"])):
        if spread:
            parts.append(f"{what} {spread['median']} s, {spread['max']} s at most")
    return ", ".join(parts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--devices", nargs="+", help="host, or cuda:INDEX and more; by default all GPUs")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument(
        "--stop-after", type=float, default=300.0, help="seconds in all, but for the last trials"
    )
    parser.add_argument("--again", type=int, default=60, help="broken kernels between two measurements")
    parser.add_argument("--compilations", type=int, default=20, help="that NVRTC does not survive")
    parser.add_argument("--workers", type=int, help=f"a device: {GPU_WORKERS} by default, 1 on the host")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("tilewright.workers").setLevel(logging.ERROR)  # what the killed processes printed last
    found = list_devices()
    devices = arguments.devices or [name for name in found if name != "host"] or found
    slices: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        slices = json.loads(arguments.out.read_text())["slices"]
    done, started = sum(one["trials"] for one in slices), time.monotonic()
    campaign = Campaign(devices, arguments.workers or (1 if devices == ["host"] else GPU_WORKERS))
    try:
        campaign.run(arguments.trials - done, arguments.stop_after - (time.monotonic() - started))
        campaign.measure_again(arguments.again)
        with tempfile.TemporaryDirectory() as folder:
            campaign.crash_compilers(Path(folder), arguments.compilations)
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
    print(f"inside: {slices[-1]['inside']}", *campaign.too_few_inside, sep="\n    ", flush=True)  # noqa: T201
    print(f"{totals['trials']} of {arguments.trials} trials, {totals['wrong']} wrong", flush=True)  # noqa: T201
    sys.exit(totals["wrong"] > 0)


if __name__ == "__main__":
    main()
