"""Compile configs to artifacts, and cache the artifacts by everything that decides their bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels.base.family import Family
from kernels.base.spec import SOURCES, BuildSpec, Built, CompileError, Language
from kernels.compiler import cc, nvrtc
from kernels.compiler.overlap import why_unordered
from tilewright.artifact import Artifact, LaunchPlan
from tilewright.errors import ArtifactError
from tilewright.schema.codec import encode
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.trust import private_folder

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


CACHE_BYTES = 4 * 2**30
_KEY = re.compile("[0-9a-f]{64}")
_SLACK = 16  # NOTE: a look at 100,000 entries takes about 1 s: one for each sixteenth that is written
_LEFT_S = 86_400.0


class ArtifactCache:
    """Artifacts on disk, keyed by everything that decides their bytes, at most about ``most`` bytes of them.

    Writes are atomic (temporary file, then rename). A damaged entry is a miss. If the folder cannot be
    written, nothing is kept. The modification time of an entry is the time of its last use; those unused for
    longest go first. Every step is one operation on one file, and a missing entry is compiled again, so any
    number of processes may use a folder at once.
    """

    def __init__(self, folder: Path, most: int = CACHE_BYTES) -> None:
        self.folder = folder
        self._most = most
        self._unseen = most  # so that the first write looks

    def get(self, key: str) -> Artifact | None:
        """The artifact stored under ``key``, or None."""
        try:
            path = self.folder / key[:2] / key
            data = path.read_bytes()
            with contextlib.suppress(OSError):
                os.utime(path)
            return Artifact.from_bytes(data[64:], data[:64].decode("ascii"))
        except (OSError, ArtifactError, UnicodeDecodeError):
            return None

    def put(self, key: str, artifact: Artifact) -> None:
        """Store ``artifact`` under ``key`` if the folder can be written."""
        with contextlib.suppress(OSError):
            data = artifact.digest.encode("ascii") + artifact.to_bytes()
            self._put(key, data)
            self._unseen += len(data)
            if self._unseen > self._most // _SLACK:
                self._unseen = 0
                self.prune()

    def prune(self) -> None:
        """Remove the longest unused entries until the rest is in bounds, and files that killed writers left a
        day ago or earlier."""
        found = sorted(self._entries(), key=lambda entry: entry[0])
        left = sum(size for _, size, _ in found)
        for used, size, path in found:
            stale = not _KEY.fullmatch(path.name) and time.time() - used > _LEFT_S
            if left > self._most or stale:
                with contextlib.suppress(OSError):
                    path.unlink()
                left -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes and path of each entry, and of each temporary file of a writer."""
        for path in self.folder.glob("??/*"):
            entry = _KEY.fullmatch(path.name) and path.name.startswith(path.parent.name)
            if not entry and not path.name.startswith(tempfile.gettempprefix()):
                continue
            with contextlib.suppress(OSError):  # another process removed it
                status = path.stat()
                yield status.st_mtime, status.st_size, path

    def _put(self, key: str, data: bytes) -> None:
        folder = self.folder / key[:2]
        private_folder(folder)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.replace(file.name, folder / key)
            except OSError:
                os.unlink(file.name)
                raise


def build(
    family: Family[Any],
    config: Config,
    problem: GemmProblem,
    device: DeviceSpec,
    cache: ArtifactCache | None = None,
) -> Artifact:
    """Compile a valid config for a problem and a device, or take it from the cache.

    Raises:
        CompileError: the compiler refused it.
    """
    spec = family.build_spec(config, problem, device)
    plan = family.plan(config, problem, device)
    digest = source_digest(spec.source)
    key = _key(spec, plan.to_dict(), digest)
    artifact = cache.get(key) if cache else None
    if artifact is None:
        built = compile_spec(spec)
        _check_order(built, plan)
        resources = dataclasses.replace(built.resources, dynamic_smem=plan.dynamic_smem)
        artifact = Artifact(plan, resources, digest, built.compiler, built.binary)
        if cache:
            cache.put(key, artifact)
    return artifact


def compile_spec(spec: BuildSpec) -> Built:
    """Compile without a cache.

    Raises:
        CompileError: the compiler refused it.
    """
    return nvrtc.compile_cuda(spec) if spec.language == "cuda" else cc.compile_c(spec)


def _check_order(built: Built, plan: LaunchPlan) -> None:
    """Refuse a kernel that is launched while the kernel before it ends, and does not wait for its writes."""
    if not plan.programmatic:
        return
    overlapping = [step.entry for step in plan.repacks]
    overlapping += [plan.finish.entry] if plan.finish else []
    overlapping.append(plan.entry)
    if reason := why_unordered(built.binary, overlapping):
        raise CompileError(f"{plan.entry} for {plan.target}: {reason}")


def compiler_version(language: Language) -> str:
    """Name and version of the compiler for a language.

    Raises:
        DeviceUnavailable: it is not installed; the message says how to get it.
    """
    return nvrtc.nvrtc_version() if language == "cuda" else cc.cc_version()


@functools.cache
def include_closure(source: str) -> tuple[str, ...]:
    """A source under ``kernels`` and every file it includes, directly or not, sorted."""
    seen: set[str] = set()
    todo = [source]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += _INCLUDE.findall((SOURCES / name).read_text())
    return tuple(sorted(seen))


@functools.cache
def source_digest(source: str) -> str:
    """SHA-256 over a source with its include closure."""
    digest = hashlib.sha256()
    for name in include_closure(source):
        digest.update(f"{name}\0".encode() + (SOURCES / name).read_bytes() + b"\0")
    return digest.hexdigest()


def _key(spec: BuildSpec, plan: dict[str, Any], digest: str) -> str:
    # NOTE: updates of NVRTC share a version, and give other machine code.
    update = nvrtc.nvrtc_build() if spec.language == "cuda" else ""
    everything = [encode(spec), plan, digest, compiler_version(spec.language), update]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
