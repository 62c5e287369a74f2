"""Host artifacts: loaded by the dynamic linker, run on threads that stay alive between launches."""

from __future__ import annotations

import collections
import ctypes
import functools
import os
import platform
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tilewright.artifact import Artifact, CtaOrder, Operand, PackedPointer, Pointer, TensorMap
from tilewright.errors import ArtifactError, LaunchError, PreconditionFailed
from tilewright.launch.arguments import Operands, check_preconditions, scalar_values
from tilewright.launch.slots import PointerSlot, Slots
from tilewright.schema.problem import GemmProblem

_Done = SimpleQueue[BaseException | None]
_Inbox = SimpleQueue[tuple[Callable[[], object], _Done]]

_inboxes: list[_Inbox] = []
_growing = threading.RLock()  # NOTE: a signal handler may multiply while a worker starts


def run_together(calls: Sequence[Callable[[], object]]) -> None:
    """Run all calls at the same time, the first on the caller's thread, and return when all are done.

    The calls must release the GIL to overlap. Launches from several threads may share the workers.

    Raises:
        BaseException: one of the calls raised it.
        LaunchError: the system starts no more threads, or the interpreter is ending.
    """
    done: _Done = SimpleQueue()
    others = [(call, done) for call in calls[1:]]
    handed_over = map(SimpleQueue.put, _workers(len(others)), others)
    try:
        # NOTE: in one step of the interpreter, so that a signal's handler raises before or after all of them.
        collections.deque(handed_over, maxlen=0)
        calls[0]()
    finally:
        errors = _outcomes(done, len(others))
    for error in errors:
        if error is not None:
            raise error


def _outcomes(done: _Done, count: int) -> list[BaseException | None]:
    """What ``count`` calls raised, once all of them have ended.

    NOTE: they write to the caller's memory, so what a signal's handler raises meanwhile, such as
    KeyboardInterrupt, waits for them.
    """
    found: list[BaseException | None] = []
    interrupt: BaseException | None = None
    while len(found) < count:
        try:
            found.extend(map(SimpleQueue.get, [done] * (count - len(found))))
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return found


def _workers(count: int) -> list[_Inbox]:
    if count and sys.is_finalizing():  # the workers are gone, and a call that one took would never end
        raise LaunchError(
            f"the kernel needs {count + 1} threads and the interpreter is ending; run it earlier"
        )
    if len(_inboxes) < count:
        with _growing:
            while len(_inboxes) < count:
                inbox: _Inbox = SimpleQueue()
                name = f"tilewright-{len(_inboxes) + 1}"
                thread = threading.Thread(target=_work, args=(inbox,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    reason = f"the kernel runs on {count + 1} threads: {error}; allow more"
                    raise LaunchError(reason) from error
                _inboxes.append(inbox)
    return _inboxes[:count]


def _work(inbox: _Inbox) -> None:
    while True:
        call, done = inbox.get()
        try:
            call()
        except BaseException as error:  # handed to the launching thread, which raises it
            done.put(error)
        else:
            done.put(None)


def _forget() -> None:
    """Make a new lock and no threads in a forked child, which has none of its parent's threads."""
    global _growing
    _growing = threading.RLock()
    _inboxes.clear()


os.register_at_fork(after_in_child=_forget)


_LEVELS = (
    ("x86_64", ()),
    ("x86_64_v2", ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")),
    ("x86_64_v3", ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")),
    ("x86_64_v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)
_C_TYPES: dict[str, Callable[[Any], Any]] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


@functools.cache
def host_arch() -> str:
    """The architecture of this CPU: ``x86_64`` with the highest level it reaches (``x86_64_v2`` to
    ``x86_64_v4``), ``aarch64``, or the operating system's name for it."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return x86_level(cpu_info("flags").split()) if machine == "x86_64" else machine


def x86_level(flags: list[str]) -> str:
    """The highest x86-64 level whose instructions, and those of all below, are among ``flags``."""
    best = _LEVELS[0][0]
    for name, needed in _LEVELS:
        if not set(needed) <= set(flags):
            break
        best = name
    return best


def cpu_info(field: str) -> str:
    """The first value of a field of ``/proc/cpuinfo``; empty if there is none."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


def can_run(target: str, arch: str) -> bool:
    """Whether code compiled for ``target`` runs on a CPU of ``arch``: its own level or a lower one."""
    levels = [name for name, _ in _LEVELS]
    if target in levels and arch in levels:
        return levels.index(target) <= levels.index(arch)
    return target == arch


class HostLaunch:
    """A host kernel with all of its arguments in place."""

    def __init__(self, kernel: HostKernel, calls: list[Callable[[], object]], slots: Slots) -> None:
        self._kernel = kernel
        self._calls = calls
        self.move = slots.move

    def __call__(self, stream: int = 0) -> None:  # noqa: ARG002
        """Run on all threads of the plan and return when the result is complete.

        Raises:
            LaunchError: the kernel was closed.
        """
        if self._kernel.closed:
            raise LaunchError("the kernel was closed; load the artifact again")
        run_together(self._calls)


class HostKernel:
    """An artifact loaded into this process, until :meth:`close` or until nothing refers to it.

    Raises:
        PreconditionFailed: this CPU cannot run the target of the artifact.
        ArtifactError: the binary has no such entry.
        LaunchError: the dynamic linker refused the binary.
    """

    def __init__(self, artifact: Artifact) -> None:
        plan = artifact.plan
        if not can_run(plan.target, host_arch()):
            raise PreconditionFailed(
                f"{plan.entry} was compiled for {plan.target}, this CPU is {host_arch()}; tune it here"
            )
        self.artifact = artifact
        self._library = _load(artifact.binary)
        self._unload = weakref.finalize(self, _unload, self._library)
        self._unload.atexit = False  # a thread may be at a launch
        self.closed = False
        self.held = False
        try:
            self._entry = self._library[plan.entry]
        except AttributeError as error:
            self.close()
            raise ArtifactError(f"the binary has no entry {plan.entry}; fetch the artifact again") from error
        self._entry.restype = None

    def bind(self, problem: GemmProblem, operands: Operands) -> HostLaunch:
        """Fix the arguments.

        Raises:
            PreconditionFailed: problem, addresses or strides break the plan's preconditions.
            LaunchError: the kernel was closed.
        """
        if self.closed:
            raise LaunchError("the kernel was closed; load the artifact again")
        plan = self.artifact.plan
        check_preconditions(plan, problem, operands)
        values = scalar_values(problem, operands)
        threads = plan.block[0]
        # NOTE: the calls of all threads share one cell for each pointer, so that a move applies to all of
        # them.
        pointers = {
            item.operand: ctypes.c_void_p(getattr(operands, item.operand))
            for item in plan.args
            if isinstance(item, Pointer)
        }
        calls: list[Callable[[], object]] = []
        for thread in range(threads):
            mine = {**values, "thread": thread, "threads": threads}
            calls.append(functools.partial(self._entry, *self._arguments(mine, pointers)))
        slots = [PointerSlot(operand, cell) for operand, cell in pointers.items()]
        return HostLaunch(self, calls, Slots(plan, operands, slots))

    def close(self) -> None:
        """Unload the library; later launches are an error, and none may be running."""
        self.closed = True
        self._unload()

    def _arguments(
        self, values: dict[str, int | float], pointers: dict[Operand, ctypes.c_void_p]
    ) -> list[Any]:
        arguments = []
        for argument in self.artifact.plan.args:
            if isinstance(argument, (CtaOrder, PackedPointer, TensorMap)):
                raise ArtifactError("a host artifact has no tensor maps, CTA order or copies; fetch it again")
            if isinstance(argument, Pointer):
                arguments.append(pointers[argument.operand])
            else:
                arguments.append(_C_TYPES[argument.kind](values[argument.name]))
        return arguments


def _unload(library: ctypes.CDLL) -> None:
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))


def _load(binary: bytes) -> ctypes.CDLL:
    try:
        return _load_from_memory(binary)
    except (OSError, AttributeError):  # no memfd_create here, or its files may not be executed
        return _load_from_file(binary)


def _load_from_memory(binary: bytes) -> ctypes.CDLL:
    with open(os.memfd_create("tilewright", os.MFD_CLOEXEC), "wb") as file:
        file.write(binary)
        file.flush()
        made = os.fstat(file.fileno())
        library = ctypes.CDLL(_path(file.fileno(), made.st_ino))
        if not os.path.samestat(made, os.fstat(file.fileno())):
            raise OSError("another thread closed the descriptor, so that the linker read another file")
    return library


def _path(descriptor: int, inode: int) -> str:
    """A path of an open file, with the bits of its inode number written as ``./`` and ``/``.

    NOTE: the linker reuses a loaded library if the path is equal. Descriptor numbers repeat, the inode number
    does not before that library is unloaded.
    """
    bits = f"{inode:b}".replace("0", "/").replace("1", "./")
    return f"/proc/self/fd/{bits}{descriptor}"


def _load_from_file(binary: bytes) -> ctypes.CDLL:
    try:
        with tempfile.NamedTemporaryFile(prefix="tilewright-", suffix=".so") as file:
            file.write(binary)
            file.flush()
            return ctypes.CDLL(file.name)
    except OSError as error:
        reason = error.strerror or str(error).partition(": ")[2]  # the linker's is "PATH: reason"
        raise LaunchError(f"the dynamic linker refused the binary: {reason}; fetch it again") from error
