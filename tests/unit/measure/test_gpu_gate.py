"""The gate of ``tests/gpu``, on kernels of the CPU."""

from __future__ import annotations

import dataclasses

import gate
import pytest
from host_samples import config_of

from kernels.host.family import HOST
from tilewright import Artifact, GemmProblem
from tilewright.launch.host import HostKernel
from tuner.devices.host import HostDevice

DEVICE = HostDevice()
PROBLEM = GemmProblem(300, 70, 40, "float32", layout="nn")
TALLER = dataclasses.replace(PROBLEM, m=301)


@pytest.fixture(autouse=True)
def builds(monkeypatch: pytest.MonkeyPatch) -> list[GemmProblem]:
    """What is compiled in a test, which finds nothing compiled before."""
    seen: list[GemmProblem] = []
    build = gate.build

    def counting(family, config, problem, spec) -> Artifact:
        seen.append(problem)
        return build(family, config, problem, spec)

    monkeypatch.setattr(gate, "build", counting)
    monkeypatch.setattr(gate, "_BUILT", {})
    return seen


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[HostKernel]:
    """Kernels that were closed, in order."""
    seen: list[HostKernel] = []
    close = HostKernel.close

    def watched(kernel: HostKernel) -> None:
        seen.append(kernel)
        close(kernel)

    monkeypatch.setattr(HostKernel, "close", watched)
    return seen


def test_a_right_kernel_passes_and_is_closed(closed: list[HostKernel]) -> None:
    assert gate.wrong(DEVICE, HOST, config_of(), PROBLEM) is None
    assert len(closed) == 1


def test_a_wrong_kernel_is_caught_and_closed(
    monkeypatch: pytest.MonkeyPatch, closed: list[HostKernel]
) -> None:
    """A kernel compiled for nn multiplies operands stored as tt."""
    build = gate.build

    def other_layout(family, config, problem, spec) -> Artifact:
        artifact = build(family, config, dataclasses.replace(problem, layout="nn"), spec)
        return dataclasses.replace(artifact, plan=family.plan(config, problem, spec))

    monkeypatch.setattr(gate, "build", other_layout)
    square = GemmProblem(64, 64, 64, "float32", layout="tt")
    assert "elements are off" in (gate.wrong(DEVICE, HOST, config_of(), square) or "")
    assert len(closed) == 1


def test_a_check_that_raises_leaves_no_kernel_open(
    monkeypatch: pytest.MonkeyPatch, closed: list[HostKernel]
) -> None:
    def broken(*_) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(gate, "check", broken)
    with pytest.raises(RuntimeError, match="the device is gone"):
        gate.wrong(DEVICE, HOST, config_of(), PROBLEM)
    assert len(closed) == 1


def test_an_invalid_config_says_why_and_is_not_compiled(builds: list[GemmProblem]) -> None:
    with pytest.raises(AssertionError, match="vector registers"):
        gate.wrong(DEVICE, HOST, config_of(mr=16, nv=4), PROBLEM)
    assert builds == []


def test_problems_that_share_a_kernel_compile_it_once(builds: list[GemmProblem]) -> None:
    batched = dataclasses.replace(TALLER, has_bias=True)
    for problem in (PROBLEM, TALLER, PROBLEM, batched):
        assert gate.wrong(DEVICE, HOST, config_of(), problem) is None
    assert builds == [PROBLEM, batched]
