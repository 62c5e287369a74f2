"""From a config to an artifact: compile what the family describes, once, and keep it by content."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from kernels.base.family import Family
from kernels.compiler import cc, nvrtc
from kernels.compiler.spec import SOURCES, BuildSpec, Built, Language
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class ArtifactCache:
    """Artifacts on disk, keyed by everything that decides their bytes.

    Writes are atomic (temporary file, then rename); a damaged entry is a miss, and a folder that cannot be
    written keeps nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Artifact | None:
        """The artifact stored under ``key``, or None."""
        try:
            data = (self.folder / key[:2] / key).read_bytes()
            return Artifact.from_bytes(data[64:], data[:64].decode("ascii"))
        except (OSError, ArtifactError, UnicodeDecodeError):
            return None

    def put(self, key: str, artifact: Artifact) -> None:
        """Store ``artifact`` under ``key`` if the folder can be written."""
        with contextlib.suppress(OSError):
            self._put(key, artifact.digest.encode("ascii") + artifact.to_bytes())

    def _put(self, key: str, data: bytes) -> None:
        folder = self.folder / key[:2]
        folder.mkdir(parents=True, exist_ok=True)
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
        CompileError: the compiler refused it, or the result spills registers.
    """
    spec = family.build_spec(config, problem, device)
    plan = family.plan(config, problem, device)
    digest = source_digest(spec.source)
    key = _key(spec, plan.to_dict(), digest)
    artifact = cache.get(key) if cache else None
    if artifact is None:
        built = compile_spec(spec)
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
    everything = [dataclasses.asdict(spec), plan, digest, compiler_version(spec.language)]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
