"""C to a shared library of the host by the system's C compiler."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernels.base.spec import SOURCES, BuildSpec, Built, CompileError
from tilewright.artifact import Resources
from tilewright.errors import DeviceUnavailable

TIMEOUT_S = 60.0
_LEFT_S = 3600.0
_ROOM_BYTES = 4 * 2**20  # many times what a compilation takes
_NO_ROOM = (
    "cc has no room in the folder for temporary files; make space there, or set TMPDIR to another one, and"
    " tune again"
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-s",
    "-Wl,--build-id=none",
)
_TARGET_FLAGS: dict[str, tuple[str, ...]] = {
    "x86_64": ("-march=x86-64",),
    "x86_64_v2": ("-march=x86-64-v2",),
    "x86_64_v3": ("-march=x86-64-v3",),
    "x86_64_v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "aarch64": ("-march=armv8-a",),
}


def compile_c(spec: BuildSpec) -> Built:
    """Compile a source under ``kernels`` to a shared library; the same spec gives the same bytes.

    Raises:
        CompileError: the compiler refused it (with its messages) or ran into the time limit.
        DeviceUnavailable: there is no C compiler, or no room on the disk for what it writes.
        ValueError: the target is unknown, or a define is not a plain name or number.
    """
    if spec.target not in _TARGET_FLAGS:
        raise ValueError(f"target must be one of {', '.join(_TARGET_FLAGS)}; got {spec.target!r}")
    defines = [_define(name, value) for name, value in spec.defines]
    command = [_compiler(), *_FLAGS, *_TARGET_FLAGS[spec.target], *defines, "-I.", spec.source]
    return Built(_library(command, spec), Resources(), cc_version())


@functools.cache
def cc_version() -> str:
    """First line of ``cc --version``, for instance ``cc (Debian 12.2.0-14) 12.2.0``.

    Raises:
        DeviceUnavailable: there is no C compiler, or it does not run.
    """
    command = [_compiler(), "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return result.stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise DeviceUnavailable(
            f"the C compiler does not tell its version ({type(error).__name__}); run cc --version, and"
            " install it again"
        ) from error


def remove_folders(pid: int) -> None:
    """Remove what the compiler kept on the disk for a process that was killed or is about to be."""
    for folder in _folders(pid):
        shutil.rmtree(folder, ignore_errors=True)


def remove_left() -> None:
    """Remove what compilers kept on the disk and nobody removed: older than any compilation can be."""
    # NOTE: by age alone, since containers that share the folder do not see the processes of each other.
    for folder in _folders("[0-9]*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFT_S:
                shutil.rmtree(folder)


def _folders(pid: int | str) -> Iterator[Path]:
    return Path(tempfile.gettempdir()).glob(f"tilewright-{pid}-*")


def _compiler() -> str:
    path = shutil.which("cc")
    if path is None:
        raise DeviceUnavailable(
            "no C compiler (cc) on the PATH; on Debian or Ubuntu: apt-get install gcc libc6-dev"
        )
    return path


def _define(name: str, value: int | str) -> str:
    plain = isinstance(value, int) or _IDENTIFIER.match(value)
    if not _IDENTIFIER.match(name) or not plain or isinstance(value, bool):
        raise ValueError(f"-D takes identifiers and integers only, got {name!r}={value!r}")
    return f"-D{name}={value}"


def _library(command: list[str], spec: BuildSpec) -> bytes:
    # NOTE: who kills this process removes the folder by its name, with what the compiler keeps there.
    try:
        made = tempfile.TemporaryDirectory(prefix=f"tilewright-{os.getpid()}-")
    except OSError as error:
        raise DeviceUnavailable(f"{_NO_ROOM} ({error.strerror})") from error
    with made as folder:
        output = Path(folder) / "kernel.so"
        command = [*command, "-o", str(output)]
        try:
            # NOTE: among the sources, so that its messages, which callers read, tell no path of this machine.
            result = subprocess.run(
                command,
                cwd=SOURCES,
                env={**os.environ, "TMPDIR": folder},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            limit = f"cc took more than {TIMEOUT_S:.0f} s"
            raise CompileError(f"{spec.source} for {spec.target}: {limit}") from error
        if result.returncode:
            _check_room(folder)
            raise CompileError(f"{spec.source} for {spec.target}: cc refused it:\n{result.stderr.strip()}")
        return output.read_bytes()


def _check_room(folder: str) -> None:
    """Tell a disk that is full, or a quota, from a source that the compiler refuses.

    Raises:
        DeviceUnavailable: there is no room.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(_ROOM_BYTES))
            room = probe.tell() == _ROOM_BYTES
    except OSError:
        room = False
    if not room:
        raise DeviceUnavailable(_NO_ROOM)
