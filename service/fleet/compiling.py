"""``FleetBuilder``: compiles as Ray tasks on the nodes that offer it, while no device is held for it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernels.compiler.build import ArtifactCache, compiler_version, source_digest
from kernels.registry import FAMILIES
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.workers.builder import Builder, Compiled, compile_in, compile_process
from tuner.workers.process import WorkerProcess

_LOOK_S = 1.0  # from one look whether a node is still there to the next
_SPARE_S = 15.0  # beyond the limit of a compilation, for a Ray worker to start or a kernel to travel
_AVOID_S = 10.0  # for which a node gets no work after it failed
_AVOID_TIMES = 10.0  # as long as the failure took, so that a silent node costs a tenth of the time at most
log = logging.getLogger("tilewright.fleet")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a compile node tells.

    Attributes:
        compiled: the result without its kernel, which stays on that node until it is fetched.
        origin: as :func:`origin_of` there.
        digest, kernel: digest of the artifact, and a reference to its bytes; empty and None for a failure.
    """

    compiled: Compiled
    origin: tuple[str, str]
    digest: str = ""
    kernel: Any = None


class FleetBuilder(Builder):
    """A :class:`Builder` whose compilations run on other nodes, and in its own processes where those fail,
    are late, or have no CPU left for this device.

    It has at most as many under way as processes. A kernel is fetched by its digest, once for all devices of
    this node, into the node's artifact cache; one that this node would not have built just so is compiled
    here.

    Attributes:
        nodes: ids of the nodes that compile, all of this release, with the CPUs of each for this device.
    """

    def __init__(self, settings: Settings) -> None:
        self.nodes: Mapping[str, int] = {}
        self._kernels = ArtifactCache(settings.cache_dir, settings.cache_bytes)
        self._busy: collections.Counter[str] = collections.Counter()
        self._avoid: dict[str, float] = {}
        self._choice = threading.Lock()
        super().__init__(settings.compile_processes, settings.cache_dir, cache_bytes=settings.cache_bytes)

    def compile(self, process: WorkerProcess, request: dict[str, Any], limit_s: float) -> Compiled:
        """Compile a request on the node that has the least work of this device. If no node is free, if it
        fails, or if this node would build another kernel, compile here as :class:`Builder`."""
        with self._chosen() as node:
            found = self._asked(node, request, limit_s) if node else None
        if found:
            return found
        own = compile_in(process, request, limit_s)
        if node and own.outcome is Outcome.OK:
            self._avoid_for(node, _AVOID_S)
        return own

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[str | None]:
        now = time.monotonic()
        with self._choice:
            nodes = {} if self._closed else self.nodes
            free = [one for one in nodes if self._avoid.get(one, 0.0) < now and self._busy[one] < nodes[one]]
            node = min(free, key=self._busy.__getitem__, default=None)
            if node:
                self._busy[node] += 1
        try:
            yield node
        finally:
            if node:
                with self._choice:
                    self._busy[node] -= 1

    def _avoid_for(self, node: str, seconds: float) -> None:
        self._avoid[node] = max(self._avoid.get(node, 0.0), time.monotonic() + seconds)

    def _asked(self, node: str, request: dict[str, Any], limit_s: float) -> Compiled | None:
        """As :meth:`_on`; None also for a node that fails, which is avoided from then on."""
        began = time.monotonic()
        try:
            return self._on(node, request, limit_s)
        except (RayError, ArtifactError, TimeoutError) as error:
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            log.warning("node %s did not compile: %s", node, reason[0])
            self._avoid_for(node, max(_AVOID_S, _AVOID_TIMES * (time.monotonic() - began)))
            return None

    def _on(self, node: str, request: dict[str, Any], limit_s: float) -> Compiled | None:
        """The result of a request on a node; None if a failure may be the node's fault, the node left
        meanwhile, or this builder was closed.

        Raises:
            RayError: the node, its Ray worker or the task failed.
            TimeoutError: it did not answer in time.
            ArtifactError: its sources or its compiler are not those of this node, or its kernel is of another
            architecture or to be launched otherwise.
        """
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        deadline = time.monotonic() + limit_s + _SPARE_S
        ref = _there.options(scheduling_strategy=strategy).remote(request, limit_s)
        while not ray.wait([ref], timeout=_LOOK_S)[0]:
            if self._closed or node not in self.nodes:
                ray.cancel(ref)
                return None
            if time.monotonic() > deadline:
                ray.cancel(ref)
                raise TimeoutError(f"no answer in {limit_s + _SPARE_S:g} s; see who holds its CPUs")
        answer: Answer = ray.get(ref)
        if answer.compiled.outcome not in (Outcome.OK, Outcome.INVALID):
            return None
        ours = origin_of(request)
        _check_origin(answer.origin, ours)
        if answer.compiled.outcome is Outcome.INVALID:
            return answer.compiled
        return dataclasses.replace(answer.compiled, artifact=self._fetched(answer, request, ours))

    def _fetched(self, answer: Answer, request: dict[str, Any], ours: tuple[str, str]) -> Artifact:
        artifact = self._kernels.get(answer.digest)
        fetched = artifact is None
        if artifact is None:
            artifact = Artifact.from_bytes(ray.get(answer.kernel, timeout=_SPARE_S), answer.digest)
        _check_origin((artifact.source_digest, artifact.compiler), ours)
        if artifact.plan != FAMILIES[request["family"]].plan(*_given(request)):
            raise ArtifactError(
                f"its kernel is another one, for {artifact.plan.target}; remove its artifact cache"
            )
        if fetched:
            self._kernels.put(answer.digest, artifact)
        return artifact


def origin_of(request: dict[str, Any]) -> tuple[str, str]:
    """The digest of the kernel's sources on this node, and the compiler that this node would use.

    Raises:
        DeviceUnavailable: the compiler is not installed.
    """
    spec = FAMILIES[request["family"]].build_spec(*_given(request))
    return source_digest(spec.source), compiler_version(spec.language)


def _given(request: dict[str, Any]) -> tuple[Config, GemmProblem, DeviceSpec]:
    """The config, problem and device of a request."""
    of = Config.from_dict(request["config"]), GemmProblem.from_dict(request["problem"])
    return *of, DeviceSpec.from_dict(request["device"])


def _check_origin(theirs: tuple[str, str], ours: tuple[str, str]) -> None:
    if theirs != ours:
        sides = [f"sources {sources[:12]} and {compiler}" for sources, compiler in (theirs, ours)]
        raise ArtifactError(f"it has {sides[0]}, we {sides[1]}; install the same release and compiler there")


def compile_here(request: dict[str, Any], limit_s: float) -> Answer:
    """Compile in a supervised process of this Ray worker."""
    origin, compiled = origin_of(request), compile_in(_process(), request, limit_s)
    if compiled.artifact is None:
        return Answer(compiled, origin)
    kernel = ray.put(compiled.artifact.to_bytes())
    return Answer(dataclasses.replace(compiled, artifact=None), origin, compiled.artifact.digest, kernel)


_there = ray.remote(num_cpus=1, max_retries=0)(compile_here)


@functools.cache
def _process() -> WorkerProcess:
    """The compile process of this Ray worker, with the artifact cache of its node's environment."""
    settings = Settings()
    return compile_process(settings.cache_dir, settings.cache_bytes)
