"""Compiled kernels that the tests of this process, of others beside it and of later runs share.

What NVRTC or the C compiler made of a source, or why it refused it, is kept under everything that decides it:
the text with its includes, options, and the compiler's version.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from kernels.base.spec import SOURCES, BuildSpec, CompileError
from kernels.compiler import build, cc, nvrtc

UNUSED_DAYS = 14
# A C compiler that keeps the host's kernels. The key is all that decides one: flags, sources, the compiler.
# HOST_KERNEL_FLAGS: more flags, of servers whose kernels need not be fast.
CC = """#!/bin/sh
case "$*" in *" host/kernel.c -o "*) ;; *) exec {cc} "$@" ;; esac
for output; do :; done
set -- "$@" $HOST_KERNEL_FLAGS
kept={folder}/$({{ echo {version}; for word in "$@"; do [ "${{word%.so}}" = "$word" ] && echo "$word"; done
    cat host/*.c host/*.h; }} | sha256sum | cut -c1-64).so
cp "$kept" "$output" 2>/dev/null && exit
{cc} "$@" && cp "$output" "$kept.$$" && mv "$kept.$$" "$kept"
"""
_SHARED: list[KernelCache] = []


class KernelCache:
    """Binaries and the compiler's messages in a folder; an entry that was not used for two weeks goes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        delete_old(folder)

    def get(self, key: Sequence[object], make: Callable[[], tuple[bytes, str]]) -> tuple[bytes, str]:
        """The binary and the log that ``make`` returns for a key, or the CompileError that it raises."""
        path = self._folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()
        data = _read(path)
        if data is None:
            with _alone(path.with_suffix(".lock")):
                data = _read(path) or self._made(path, make)
        text, _, binary = data.partition(b"\n")
        if not binary:
            raise CompileError(json.loads(text))
        return binary, json.loads(text)

    def _made(self, path: Path, make: Callable[[], tuple[bytes, str]]) -> bytes:
        try:
            binary, log = make()
        except CompileError as error:
            if error.__cause__ is not None:  # a time limit, which depends on what else runs
                raise
            binary, log = b"", str(error)
        data = json.dumps(log).encode() + b"\n" + binary
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(zlib.compress(data, 1))
        os.replace(file.name, path)
        return data


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process compiles, and others wait for what it makes."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    """What an entry holds; None if there is none or it is damaged."""
    try:
        data = zlib.decompress(path.read_bytes())
        os.utime(path)
    except (OSError, zlib.error):
        return None
    return data


def delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - UNUSED_DAYS * 86_400:
            path.unlink(missing_ok=True)


def included(text: str, sources: Path) -> dict[str, str]:
    """The files that a source includes, directly or not, with their text."""
    found: dict[str, str] = {}
    todo = build._INCLUDE.findall(text)
    while todo:
        name = todo.pop()
        if name not in found and (sources / name).is_file():
            found[name] = (sources / name).read_text()
            todo += build._INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def kept(key: Sequence[object], make: Callable[[], bytes]) -> bytes:
    """What ``make`` returns or raises, kept under a key that holds what decides it."""
    return _SHARED[-1].get(key, lambda: (make(), ""))[0] if _SHARED else make()


def share_compiled_kernels(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let NVRTC and the C compiler of this process, and callers of ``kept``, take what the folder has."""
    shared, version = KernelCache(folder), metadata.version("nvidia-cuda-nvrtc")
    patch.setattr(sys.modules[__name__], "_SHARED", [shared])

    class Program(nvrtc._Program):
        def __init__(self, source: str, name: str) -> None:
            super().__init__(source, name)
            self._source = source, name

        def compile(self, options: Sequence[str]) -> tuple[bytes, str]:
            plain = [option for option in options if not option.startswith("--include-path=")]
            key = [version, *self._source, plain, included(self._source[0], nvrtc.SOURCES)]
            return shared.get(key, lambda: super(Program, self).compile(options))

    compile_library = cc._library

    def library(command: list[str], spec: BuildSpec) -> bytes:
        if cc.SOURCES != SOURCES:  # a test's own
            return compile_library(command, spec)
        text = (SOURCES / spec.source).read_text()
        key = [cc.cc_version(), command, text, included(text, SOURCES)]
        return kept(key, lambda: compile_library(command, spec))

    patch.setattr(nvrtc, "_Program", Program)
    patch.setattr(cc, "_library", library)


def share_host_kernels(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put a ``cc`` first on the PATH, for servers and their compilers too, that takes what the folder has."""
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != str(folder))
    real = shutil.which("cc", path=path)
    if real is None:
        return
    (libraries := folder / "libraries").mkdir(exist_ok=True)
    delete_old(libraries)
    version = subprocess.run([real, "--version"], capture_output=True, text=True, check=True).stdout
    words = {"cc": real, "folder": libraries, "version": version.splitlines()[0]}
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(CC.format_map({name: shlex.quote(str(word)) for name, word in words.items()}))
    os.chmod(file.name, 0o755)
    os.replace(file.name, folder / "cc")
    patch.setenv("PATH", f"{folder}{os.pathsep}{path}")
