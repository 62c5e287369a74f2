"""The process that owns one device: ``python -m tuner.workers.device_worker --device cuda:0``.

A trial that breaks the device ends this process only; see :mod:`tuner.workers.process`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from kernels.compiler.build import build
from kernels.simt.family import SIMT
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, DeviceUnavailable, LaunchError
from tilewright.launch import Kernel, load
from tilewright.schema.codec import decode, encode
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Outcome, TrialResult
from tuner.devices.base import Device
from tuner.measure import correctness, operands
from tuner.measure.race import Race, RaceRules, race
from tuner.measure.timing import measure
from tuner.measure.vendor import vendor_tile_hints
from tuner.workers.frames import Frame
from tuner.workers.gemm import Gemms
from tuner.workers.server import serve
from tuner.workers.shared_memory import Region

_KEPT_KERNELS = 8
_SLICE_S = 1.0
# CUresult of what a kernel does itself: illegal address, time limit, assert, stack, instruction, alignment,
# address space, program counter, launch failed. Others, such as ECC errors, are the machine's.
_KERNEL_FAULTS = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})


class DeviceServer:
    """Serves ``trial``, ``tile_hints``, ``race``, ``gemm``, ``rehearse`` and ``conditions`` on one device."""

    def __init__(self, device_name: str) -> None:
        self._device = open_device(device_name)
        self._kernels = KernelCache()
        self._gemms = Gemms(self._device)
        self._driver_errors = driver_errors(self._device)
        self._tuned: GemmProblem | None = None
        self._race: Race | None = None
        self._disturbed = False
        self._operations: dict[str, Callable[[Frame], Frame]] = {
            "trial": self._trial,
            "tile_hints": self._tile_hints,
            "race": self._run_race,
            "end_race": self._end_race,
            "gemm": self._gemm,
            "rehearse": self._rehearse,
            "conditions": self._conditions,
        }

    def greeting(self) -> dict[str, Any]:
        """The description of the device."""
        device = self._device
        return {"spec": device.spec.to_dict(), "driver": device.driver, "identity": device.identity}

    def handle(self, request: Frame) -> Frame:
        """Run one operation.

        Raises:
            LaunchError: the driver failed; ``sticky`` if this process must end.
        """
        if self._race is None:  # its kernels must stay loaded
            self._kernels.trim(_KEPT_KERNELS)
        if request.header["op"] != "race":
            self._disturbed = True
        with self._launch_errors():
            self._gemms.trim()
            return self._operations[request.header["op"]](request)

    def rest(self) -> None:
        """Unmap memory that its owner has released."""
        self._gemms.trim()

    def _rehearse(self, request: Frame) -> Frame:
        """Check and time the plainest kernel on a small problem, and race it for one round with the vendor
        library: the libraries load, and CuPy compiles the array code of the type."""
        problem = GemmProblem(64, 64, 64, DType(request.header["dtype"]))
        device = self._device
        kernel = load(build(SIMT, SIMT.heuristic_configs(problem, device.spec)[0], problem, device.spec))
        try:
            if correctness.check(device, kernel, problem) is None:
                correctness.repeats(device, kernel, problem)
                measure(device, kernel, problem, None, 1)
                race(device, [kernel], problem, RaceRules(1, 0, passes=0, quick=True))
        finally:
            kernel.close()
            self._forget()
        return Frame({"kind": "ok"})

    def _conditions(self, _request: Frame) -> Frame:
        return Frame({"kind": "ok", "conditions": encode(self._device.conditions())})

    def _trial(self, request: Frame) -> Frame:
        self._race = None
        problem = self._problem(request)
        clock, dying = _Clock(), False
        try:
            with self._launch_errors():
                result = self._check_and_measure(request, problem, clock)
        except (LaunchError, ArtifactError) as error:
            dying = isinstance(error, LaunchError) and error.sticky
            by_kernel = isinstance(error, LaunchError) and error.code in _KERNEL_FAULTS
            result = TrialResult(outcome=Outcome.LAUNCH_ERROR, message=str(error), own_fault=by_kernel)
        return Frame({"kind": "ok", "result": encode(result) | clock.seconds, "dying": dying})

    def _problem(self, request: Frame) -> GemmProblem:
        """The problem of a request; operands kept for another problem are released first."""
        problem = GemmProblem.from_dict(request.header["problem"])
        if problem != self._tuned:
            self._forget()
            self._tuned = problem
        return problem

    def _forget(self) -> None:
        self._tuned = None
        correctness.forget()
        operands.forget()

    def _check_and_measure(self, request: Frame, problem: GemmProblem, clock: _Clock) -> TrialResult:
        kernel = self._kernels.get(request.payloads[0])
        with clock.part("check_s"):
            reason = correctness.check(self._device, kernel, problem)
            repeatable = None if reason else correctness.repeats(self._device, kernel, problem)
        if reason is not None:
            return self._wrong(reason, problem, kernel)
        with clock.part("measure_s"):
            header = request.header
            found = measure(self._device, kernel, problem, header["incumbent_us"], header["fewest_samples"])
        if found.wrong is not None:
            return self._wrong(found.wrong, problem, kernel)
        outcome = Outcome.PRUNED if found.pruned else Outcome.OK
        return TrialResult(outcome=outcome, timing=found.timing, repeatable=repeatable)

    def _wrong(self, reason: str, problem: GemmProblem, kernel: Kernel) -> TrialResult:
        """A wrong result: the config's own fault, unless the plainest kernel is wrong here as well."""
        sound = self._device.spec.kind == "host" or self._is_sound(problem, kernel)
        message = reason if sound else f"{reason}; the plainest kernel is wrong here too: look at the device"
        return TrialResult(outcome=Outcome.WRONG_RESULT, message=message, own_fault=sound)

    def _is_sound(self, problem: GemmProblem, wrong: Kernel) -> bool:
        """Whether the plainest kernel is right on a problem. Also True if that is unknown: the plainest
        kernel does not compute the problem, or is itself the one that was wrong."""
        spec = self._device.spec
        if SIMT.why_unsupported(problem, spec):
            return True
        artifact = build(SIMT, SIMT.heuristic_configs(problem, spec)[0], problem, spec)
        kernel = load(artifact)
        try:
            same = artifact.digest == wrong.artifact.digest
            return same or correctness.check(self._device, kernel, problem) is None
        except LaunchError as error:
            told = f"the plainest kernel fails too, look at the device: {error}"
            raise LaunchError(told, sticky=error.sticky) from error
        finally:
            kernel.close()

    def _tile_hints(self, request: Frame) -> Frame:
        self._race = None
        hints = vendor_tile_hints(self._device, self._problem(request))
        return Frame({"kind": "ok", "tile_hints": encode(hints)})

    def _run_race(self, request: Frame) -> Frame:
        """Prepare a race, or run a slice of the prepared one; other requests may run in between."""
        header, contest, self._race = request.header, self._race, None
        if not header["resume"]:
            problem = self._problem(request)
            kernels = [self._kernels.get(payload) for payload in request.payloads]
            contest = Race(self._device, kernels, problem, decode(RaceRules, header["rules"]))
            self._disturbed = True
        elif contest:
            if self._disturbed:
                contest.warm_up()
            contest.run(_SLICE_S)
            self._disturbed = False
        if contest and contest.done:
            return Frame({"kind": "ok", "state": "done", "samples": encode(contest.samples())})
        self._race = contest
        return Frame({"kind": "ok", "state": "open" if contest else "lost"})

    def _end_race(self, _request: Frame) -> Frame:
        """Drop a race that nobody waits for any more."""
        self._race = None
        return Frame({"kind": "ok"})

    def _gemm(self, request: Frame) -> Frame:
        header = request.header
        problem = GemmProblem.from_dict(header["problem"])
        kernel = self._kernels.get(request.payloads[0]) if request.payloads else None
        regions = {name: decode(Region, fields) for name, fields in header["regions"].items()}
        scalars = (header["alpha"], header["beta"])
        run = self._gemms.run(kernel, problem, regions, scalars)
        return Frame({"kind": "ok", "run": encode(run)})

    @contextlib.contextmanager
    def _launch_errors(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise LaunchError(f"out of memory on the device, use a smaller problem: {error}") from error
        except self._driver_errors as error:
            told = f"the driver failed, look at its log (dmesg): {error}"
            raise LaunchError(told, code=getattr(error, "status", None), sticky=True) from error


class KernelCache:
    """Loaded kernels by the digest of their artifact, least recently used first."""

    def __init__(self) -> None:
        self._kernels: collections.OrderedDict[str, Kernel] = collections.OrderedDict()

    def get(self, artifact: bytes) -> Kernel:
        """The kernel of an artifact, loaded if it is not yet.

        Raises:
            ArtifactError, LaunchError: the artifact is damaged or the driver refuses it.
        """
        digest = hashlib.sha256(artifact).hexdigest()
        if digest not in self._kernels:
            self._kernels[digest] = load(Artifact.from_bytes(artifact))
        self._kernels.move_to_end(digest)
        return self._kernels[digest]

    def trim(self, kept: int) -> None:
        """Unload all kernels but the ``kept`` that were used last; none may be running."""
        while len(self._kernels) > kept:
            _, kernel = self._kernels.popitem(last=False)
            kernel.close()


class _Clock:
    """Seconds spent in named parts, also in parts that fail."""

    def __init__(self) -> None:
        self.seconds = {"check_s": 0.0, "measure_s": 0.0}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start


def open_device(name: str) -> Device:
    """The device called ``host`` or ``cuda:INDEX``.

    Raises:
        DeviceUnavailable: the machine has no such device.
    """
    kind, _, index = name.partition(":")
    if name == "host":
        return _make("tuner.devices.host", "HostDevice")
    if kind == "cuda" and index.isdecimal():
        return _make("tuner.devices.cuda", "CudaDevice", int(index))
    raise DeviceUnavailable(f"a device must be named host, cuda:0, cuda:1 and so on; got {name!r}")


def _make(module: str, name: str, *arguments: int) -> Device:
    try:
        device: Device = getattr(importlib.import_module(module), name)(*arguments)
    except ModuleNotFoundError as error:
        raise DeviceUnavailable(
            f"{error.name} is missing; install this package with its extra 'gpu'"
        ) from error
    return device


def driver_errors(device: Device) -> tuple[type[Exception], ...]:
    """The errors of the driver that end the process of a device."""
    if device.spec.kind == "host":
        return ()
    cuda = importlib.import_module("cupy").cuda
    return cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError


def main(server: Callable[[str], DeviceServer] | None = None) -> None:
    """Answer requests by a ``server`` of the device that is named, until the parent closes its end."""
    parser = argparse.ArgumentParser(description="Owns one device; started by its parent.")
    parser.add_argument("--device", required=True, help="host or cuda:INDEX")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    serve(arguments.pipes, lambda: (server or DeviceServer)(arguments.device))


if __name__ == "__main__":
    main()
