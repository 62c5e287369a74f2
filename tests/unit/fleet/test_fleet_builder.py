"""What a device believes of a compile node, and when it compiles itself; none of this needs Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_samples as host
import pytest

from service.settings import Settings
from tilewright import GemmProblem
from tilewright.errors import DeviceUnavailable
from tilewright.schema.trial import Outcome
from tuner.workers.builder import Compiled, compile_request

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
REQUEST = compile_request("host", host.config_of(), PROBLEM, host.DEVICE)
INVALID = Compiled(None, Outcome.INVALID, "spills there")
OTHERS = ({"source_digest": "0" * 64}, {"compiler": "cc 1.0"})


class FakeRay(types.ModuleType):
    """Runs the task of node N as ``nodes[N]``; an answer of None never comes."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.nodes: dict[str, Callable[[], Any]] = {}
        self.asked: list[str] = []
        self.cancelled: list[Any] = []

    def remote(self, **_: object) -> Callable[[object], FakeRay]:
        return lambda _task: self

    def options(self, scheduling_strategy: str) -> Any:
        return types.SimpleNamespace(remote=lambda *_: self._run(scheduling_strategy))

    def _run(self, node: str) -> Any:
        self.asked.append(node)
        return self.nodes[node]()

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        if refs != [None]:
            return refs, []
        time.sleep(timeout)
        return [], refs

    def get(self, ref: Any, timeout: float | None = None) -> Any:  # noqa: ARG002
        return ref

    def cancel(self, ref: Any) -> None:
        self.cancelled.append(ref)


class RayError(Exception):
    """As Ray's."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    modules = {
        "ray": fake,
        "ray.exceptions": types.SimpleNamespace(RayError=RayError),
        "ray.util.scheduling_strategies": types.SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: node  # noqa: ARG005
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.fixture
def compiling(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001
    """The module under test, with this Ray and its own compilations as :func:`own_answer`."""
    spec = importlib.util.find_spec("service.fleet.compiling")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # for its dataclass; not kept
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "compile_in", lambda *_: own_answer())
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    return module


@pytest.fixture
def builder(compiling: Any, tmp_path: Path) -> Iterator[Any]:
    with contextlib.closing(
        compiling.FleetBuilder(Settings(cache_dir=tmp_path, compile_processes=1))
    ) as made:
        made.nodes = {"a": 1}
        yield made


def own_answer() -> Compiled:
    return Compiled(host.artifact_of(host.config_of(), PROBLEM), Outcome.OK, "own")


def answer_of(compiling: Any, compiled: Compiled, **changes: str) -> Any:
    """What a node tells whose sources or compiler are ``changes``, else those of this one."""
    artifact = dataclasses.replace(host.artifact_of(host.config_of(), PROBLEM), **changes)
    told = compiling.Answer(compiled, (artifact.source_digest, artifact.compiler))
    if compiled.outcome is not Outcome.OK:
        return told
    return dataclasses.replace(told, digest=artifact.digest, kernel=artifact.to_bytes())


def compiled(builder: Any, limit_s: float = 5.0) -> Compiled:
    found: Compiled = builder.compile(None, REQUEST, limit_s)
    return found


def test_a_kernel_of_the_same_origin_is_taken(compiling: Any, builder: Any, ray: FakeRay) -> None:
    ray.nodes["a"] = lambda: answer_of(compiling, Compiled(None, Outcome.OK, "there"))
    for _ in ("fetched", "from the cache"):
        found = compiled(builder)
        assert (found.message, found.artifact) == ("there", own_answer().artifact)
    assert ray.asked == ["a", "a"]


def test_a_config_that_spills_there_spills_here(compiling: Any, builder: Any, ray: FakeRay) -> None:
    ray.nodes["a"] = lambda: answer_of(compiling, INVALID)
    assert compiled(builder) == INVALID


@pytest.mark.parametrize("outcome", [Outcome.COMPILE_ERROR, Outcome.TIMEOUT])
def test_after_a_failure_of_a_node_the_devices_own_compiler_counts(
    compiling: Any, builder: Any, ray: FakeRay, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.nodes["a"] = lambda: answer_of(compiling, Compiled(None, outcome, "there"))
    refused = Compiled(None, Outcome.COMPILE_ERROR, "own")
    monkeypatch.setattr(compiling, "compile_in", lambda *_: refused)
    assert [compiled(builder), compiled(builder)] == [refused] * 2
    assert ray.asked == ["a", "a"], "the config's own fault costs the node nothing"
    monkeypatch.setattr(compiling, "compile_in", lambda *_: own_answer())
    assert [compiled(builder), compiled(builder)] == [own_answer()] * 2
    assert ray.asked == ["a"] * 3, "a node that fails where the device does not is avoided"


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("result", [INVALID, Compiled(None, Outcome.OK)])
def test_other_sources_or_compilers_are_refused(
    compiling: Any, builder: Any, ray: FakeRay, change: dict[str, str], result: Compiled, caplog: Any
) -> None:
    ray.nodes["a"] = lambda: answer_of(compiling, result, **change)
    assert compiled(builder) == own_answer()
    assert "install the same release and compiler there" in caplog.text
    assert compiled(builder) == own_answer()
    assert ray.asked == ["a"]


OTHER_PLAN = dataclasses.replace(host.artifact_of(host.config_of(), PROBLEM).plan, target="aarch64")


@pytest.mark.parametrize("change", [*OTHERS, {"plan": OTHER_PLAN}])
@pytest.mark.parametrize("kept", [False, True])
def test_a_kernel_is_checked_itself(
    compiling: Any, builder: Any, ray: FakeRay, change: dict[str, Any], kept: bool
) -> None:
    """Fetched or kept: a node may have it from a cache that others wrote."""
    other = dataclasses.replace(host.artifact_of(host.config_of(), PROBLEM), **change)
    if kept:
        builder._kernels.put(other.digest, other)
    told = answer_of(compiling, Compiled(None, Outcome.OK, "there"))
    ray.nodes["a"] = lambda: dataclasses.replace(told, digest=other.digest, kernel=other.to_bytes())
    assert compiled(builder) == own_answer()
    assert (builder._kernels.get(other.digest) is not None) == kept


def test_nodes_that_fail_are_avoided_for_a_while(builder: Any, ray: FakeRay) -> None:
    def fail() -> None:
        raise RayError("planted")

    builder.nodes = {"a": 1, "b": 1}
    ray.nodes = {"a": fail, "b": fail}
    assert [compiled(builder) for _ in range(3)] == [own_answer()] * 3
    assert sorted(ray.asked) == ["a", "b"]


def test_a_node_that_never_answers_is_given_up(
    compiling: Any, builder: Any, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(compiling, "_SPARE_S", 0.1)
    ray.nodes["a"] = lambda: None
    began = time.monotonic()
    assert compiled(builder, limit_s=0.2) == own_answer()
    assert 0.3 <= time.monotonic() - began < 5.0
    assert ray.cancelled == [None]
    assert "no answer in 0.3 s; see who holds its CPUs" in caplog.text
    assert compiled(builder) == own_answer()
    assert ray.asked == ["a"]


def test_a_node_gets_no_more_than_its_share(compiling: Any, builder: Any, ray: FakeRay) -> None:
    """A second request while the only CPU for this device is taken."""
    inner: list[Compiled] = []

    def busy() -> Any:
        inner.append(compiled(builder))
        return answer_of(compiling, Compiled(None, Outcome.OK, "there"))

    ray.nodes["a"] = busy
    assert compiled(builder).message == "there"
    assert inner == [own_answer()]
    assert compiled(builder).message == "there", "the share is free again"


def test_without_a_compiler_it_says_what_to_install(
    compiling: Any, builder: Any, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_language: str) -> str:
        raise DeviceUnavailable("no C compiler")

    answer = answer_of(compiling, INVALID)
    ray.nodes["a"] = lambda: answer
    monkeypatch.setattr(compiling, "compiler_version", missing)
    with pytest.raises(DeviceUnavailable, match="no C compiler"):
        compiled(builder)
