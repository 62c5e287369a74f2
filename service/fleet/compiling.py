"""``FleetBuilder``: compiles as Ray tasks on the nodes that offer it, while no device is held for it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernels.compiler.build import ArtifactCache, source_digest
from kernels.registry import FAMILIES
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.workers.builder import Builder, Compiled, compile_in, compile_process
from tuner.workers.process import WorkerProcess

_LOOK_S = 1.0  # from one look whether a node is still there to the next
_AVOID_S = 10.0  # for which a node gets no work after it failed
log = logging.getLogger("tilewright.fleet")


class FleetBuilder(Builder):
    """A :class:`Builder` whose compilations run on other nodes, and in its own processes where there is none.

    It has at most as many under way as processes. A kernel is fetched by its digest, once for all devices of
    this node, into the node's artifact cache; one of other sources than this node has is compiled here.

    Attributes:
        nodes: ids of the nodes that compile, all of this release.
    """

    def __init__(self, settings: Settings) -> None:
        self.nodes: tuple[str, ...] = ()
        self._kernels = ArtifactCache(settings.cache_dir, settings.cache_bytes)
        self._busy: collections.Counter[str] = collections.Counter()
        self._avoid: dict[str, float] = {}
        self._choice = threading.Lock()
        super().__init__(settings.compile_processes, settings.cache_dir, cache_bytes=settings.cache_bytes)

    def compile(self, process: WorkerProcess, request: dict[str, Any], limit_s: float) -> Compiled:
        """What the node with the least work of this device makes of a request, or the next one if it fails;
        else as :class:`Builder`."""
        while True:
            with self._chosen() as node:
                if node is None:
                    return compile_in(process, request, limit_s)
                try:
                    found = self._on(node, request, limit_s)
                except (RayError, ArtifactError) as error:
                    reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                    log.warning("node %s did not compile: %s", node, reason[0])
                    found = None
            if found:
                return found
            self._avoid[node] = time.monotonic() + _AVOID_S

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[str | None]:
        now = time.monotonic()
        with self._choice:
            free = [node for node in self.nodes if self._avoid.get(node, 0.0) < now and not self._closed]
            node = min(free, key=self._busy.__getitem__, default=None)
            self._busy[node or ""] += 1
        try:
            yield node
        finally:
            with self._choice:
                self._busy[node or ""] -= 1

    def _on(self, node: str, request: dict[str, Any], limit_s: float) -> Compiled | None:
        """What a node makes of a request; None if it left meanwhile, or this builder was closed.

        Raises:
            RayError: the node, its Ray worker or the task failed.
            ArtifactError: the kernel is not what this node would build.
        """
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        ref = _there.options(scheduling_strategy=strategy).remote(request, limit_s)
        while not ray.wait([ref], timeout=_LOOK_S)[0]:
            if self._closed or node not in self.nodes:
                ray.cancel(ref)
                return None
        told: tuple[Compiled, str | None, Any] = ray.get(ref)
        compiled, digest, kernel = told
        if digest is None:
            return compiled
        return dataclasses.replace(compiled, artifact=self._fetched(digest, kernel, request))

    def _fetched(self, digest: str, kernel: Any, request: dict[str, Any]) -> Artifact:
        artifact = self._kernels.get(digest)
        if artifact is None:
            artifact = Artifact.from_bytes(ray.get(kernel), digest)
            expected = _source_digest(request)
            if artifact.source_digest != expected:
                theirs, ours = artifact.source_digest[:12], expected[:12]
                raise ArtifactError(f"its sources are {theirs}, ours {ours}; install the same release there")
            self._kernels.put(digest, artifact)
        return artifact


def _source_digest(request: dict[str, Any]) -> str:
    """Of the kernel's sources on this node."""
    given = Config.from_dict(request["config"]), GemmProblem.from_dict(request["problem"])
    device = DeviceSpec.from_dict(request["device"])
    return source_digest(FAMILIES[request["family"]].build_spec(*given, device).source)


def compile_here(request: dict[str, Any], limit_s: float) -> tuple[Compiled, str | None, Any]:
    """Compile in a supervised process of this Ray worker: the result without its kernel, which stays on this
    node until it is fetched; its digest and a reference to it, None for a failure."""
    compiled = compile_in(_process(), request, limit_s)
    if compiled.artifact is None:
        return compiled, None, None
    data = compiled.artifact.to_bytes()
    return dataclasses.replace(compiled, artifact=None), compiled.artifact.digest, ray.put(data)


_there = ray.remote(num_cpus=1, max_retries=0)(compile_here)


@functools.cache
def _process() -> WorkerProcess:
    """That of this Ray worker, with the artifact cache of its node's environment."""
    settings = Settings()
    return compile_process(settings.cache_dir, settings.cache_bytes)
