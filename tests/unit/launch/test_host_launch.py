"""The host launcher: what it refuses, and that loading, closing and threads hold together."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import Case, artifact_of, config_of

from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, LaunchError, PreconditionFailed
from tilewright.launch import Operands, host, load
from tilewright.launch.host import HostKernel, can_run, host_arch, run_together, x86_level
from tilewright.matmul.matmul import Choice, LocalMatmul
from tilewright.schema.problem import GemmProblem

PROBLEM = GemmProblem(64, 64, 64, "float32")
V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = "avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.fixture
def artifact() -> Artifact:
    return artifact_of(config_of(threads=2), PROBLEM)


def _operands(**changes: Any) -> Operands:
    return dataclasses.replace(Operands(a=4096, b=4096, d=4096, workspace=4096), **changes)


def test_levels_need_all_flags_of_those_below() -> None:
    assert x86_level(["sse", "sse2"]) == "x86_64"
    assert x86_level(V2.split()) == "x86_64_v2"
    assert x86_level(f"{V2} {V3}".split()) == "x86_64_v3"
    assert x86_level(f"{V2} {V3} {V4}".split()) == "x86_64_v4"
    assert x86_level(f"{V2} {V4}".split()) == "x86_64_v2"
    assert x86_level(f"{V2} {V3} {V4}".replace("avx512vl", "").split()) == "x86_64_v3"


def test_code_runs_on_its_level_and_above() -> None:
    assert can_run("x86_64_v3", "x86_64_v4")
    assert can_run("aarch64", "aarch64")
    assert not can_run("x86_64_v4", "x86_64_v3")
    assert not can_run("aarch64", "x86_64_v4")
    assert not can_run("sm_90a", "x86_64_v4")


@pytest.mark.parametrize("target", ["sm_80", "x86_64_v9"])
def test_refuses_a_foreign_target(artifact: Artifact, target: str) -> None:
    foreign = dataclasses.replace(artifact, plan=dataclasses.replace(artifact.plan, target=target))
    with pytest.raises(PreconditionFailed, match=f"compiled for {target}, this CPU is {host_arch()}; tune"):
        HostKernel(foreign)


def test_refuses_a_damaged_library(artifact: Artifact) -> None:
    with pytest.raises(LaunchError, match="dynamic linker refused"):
        HostKernel(dataclasses.replace(artifact, binary=artifact.binary[:100]))


def test_refuses_a_library_without_the_entry(artifact: Artifact) -> None:
    plan = dataclasses.replace(artifact.plan, entry="no_such_entry")
    with pytest.raises(ArtifactError, match="no entry no_such_entry"):
        HostKernel(dataclasses.replace(artifact, plan=plan))


@pytest.mark.parametrize(
    ("problem", "operands", "words"),
    [
        (PROBLEM, _operands(a=4098), "address of a must be a multiple of 4"),
        (PROBLEM, _operands(workspace=0), "needs a workspace"),
        (PROBLEM, _operands(lda=63), "lda must be at least the 64 columns"),
        (PROBLEM, _operands(beta=1.0), "beta must be 0"),
        (GemmProblem(64, 64, 64, "float64"), _operands(), "serves"),
        (GemmProblem(64, 64, 64, "float32", "nn"), _operands(), "serves"),
    ],
)
def test_refuses_to_bind(artifact: Artifact, problem: GemmProblem, operands: Operands, words: str) -> None:
    kernel = load(artifact)
    with pytest.raises(PreconditionFailed, match=words):
        kernel.bind(problem, operands)
    kernel.close()


def test_a_closed_kernel_neither_binds_nor_launches(artifact: Artifact) -> None:
    kernel = HostKernel(artifact)
    launch = kernel.bind(PROBLEM, _operands())
    kernel.close()
    kernel.close()
    with pytest.raises(LaunchError, match="closed"):
        launch()
    with pytest.raises(LaunchError, match="closed"):
        kernel.bind(PROBLEM, _operands())


def test_a_loaded_kernel_keeps_no_descriptor_and_closing_gives_back_the_library(artifact: Artifact) -> None:
    descriptors, mapped = sorted(os.listdir("/proc/self/fd")), _mapped_kernels()
    for _ in range(5):
        kernel = HostKernel(artifact)
        assert sorted(os.listdir("/proc/self/fd")) == descriptors
        kernel.close()
    assert _mapped_kernels() <= mapped


def test_a_kernel_that_nothing_refers_to_gives_it_back_too(artifact: Artifact) -> None:
    mapped = _mapped_kernels()
    for _ in range(5):
        kernel = HostKernel(artifact)
        launch = kernel.bind(PROBLEM, _operands())
        assert _mapped_kernels() > mapped
        del kernel, launch
    assert _mapped_kernels() <= mapped


def test_a_later_kernel_is_not_taken_for_a_closed_one() -> None:
    for layout in ("nn", "nt", "tn", "nn"):
        case = Case(GemmProblem(30, 31, 32, "float32", layout))
        case.run(config_of())
        case.check()


@pytest.mark.timeout(30)
def test_a_product_in_a_signal_handler_runs_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start, ran = threading.Thread.start, list[int]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if not ran:  # as a handler that the signal interrupts the start with
            ran.append(0)
            run_together([lambda: ran.append(1)] * 2)

    monkeypatch.setattr(host, "_inboxes", [])
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    run_together([lambda: ran.append(2)] * 2)
    assert ran == [0, 1, 1, 2, 2]


def test_a_kernel_is_not_taken_for_a_loaded_one_after_all_descriptors_were_closed() -> None:
    case, loaded = (Case(GemmProblem(64, 64, 64, "float32", layout)) for layout in ("nt", "nn"))
    artifacts = [artifact_of(config_of(), one.problem) for one in (case, loaded)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.closerange(3, 256)
            kernel = HostKernel(artifacts[1])
            os.closerange(3, 256)  # as a process that becomes a daemon does
            case.run(config_of())
            case.check()
            os._exit(kernel.closed)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_that_took_the_descriptor_is_neither_run_nor_reported(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, path = artifact_of(config_of(), GemmProblem(64, 64, 64, "float64")), host._path

    def overtaken(descriptor: int, inode: int) -> str:
        foreign = os.memfd_create("tilewright")
        os.write(foreign, other.binary)
        os.dup2(foreign, descriptor)
        os.close(foreign)
        return path(descriptor, inode)

    monkeypatch.setattr(host, "_path", overtaken)
    kernel = HostKernel(artifact)
    assert "/tilewright-" in kernel._library._name
    kernel.close()


def test_without_memfd_it_loads_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(host.os, "memfd_create")
    case = Case(GemmProblem(30, 31, 32, "float32", "nn"))
    case.run(config_of())
    case.check()


def test_launches_from_several_threads_share_the_workers() -> None:
    cases = [Case(GemmProblem(90 + i, 80, 70, "float32")) for i in range(4)]
    artifact_of(config_of(threads=3), PROBLEM)
    starts = [threading.Thread(target=case.run, args=(config_of(threads=3),)) for case in cases]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    for case in cases:
        case.check()


def test_an_error_on_a_worker_reaches_the_caller_and_spares_the_worker() -> None:
    with pytest.raises(ZeroDivisionError):
        run_together([lambda: None, lambda: 1 // 0])
    seen: list[str] = []
    run_together([lambda: seen.append("caller"), lambda: seen.append(threading.current_thread().name)])
    assert sorted(seen) == ["caller", "tilewright-1"]


def test_an_interrupt_waits_for_the_workers_which_write_to_memory_of_the_caller() -> None:
    ended = threading.Event()

    def work() -> None:
        time.sleep(0.2)
        ended.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_together([lambda: None, lambda: signal.pthread_kill(main, signal.SIGUSR1), work])
        assert ended.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_another_thread_the_product_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    kernel = artifact_of(config_of(threads=2), PROBLEM)
    monkeypatch.setattr(host, "_inboxes", [])
    monkeypatch.setattr(threading.Thread, "start", refused)
    matmul, a = LocalMatmul(lambda *_: Choice(kernel, "exact")), np.ones((64, 64), "float32")
    np.testing.assert_array_equal(matmul(a, a.T), a @ a.T)
    assert matmul.stats == {"vendor: the kernel runs on 2 threads: can't start new thread; allow more": 1}


_LATE = """
from tilewright.errors import LaunchError
from tilewright.launch.host import run_together

class Late:
    def __del__(self):
        try:
            run_together([int, int])
        except LaunchError as error:
            print(error)

run_together([int, int])
late = Late()
"""


def test_a_finalizer_at_the_end_of_the_interpreter_does_not_wait_for_workers_that_are_gone() -> None:
    ended = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True, timeout=30)
    said = "the kernel needs 2 threads and the interpreter is ending; run it earlier\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


def test_workers_start_anew_in_a_forked_child() -> None:
    run_together([lambda: None, lambda: None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        seen: list[int] = []
        run_together([lambda: seen.append(1), lambda: seen.append(2)])
        os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_numpy_is_not_needed_to_launch(artifact: Artifact) -> None:
    a, b, d = (array("f", [value]) * 4096 for value in (1.0, 2.0, np.nan))
    workspace = array("b", [0]) * artifact.plan.workspace_bytes(PROBLEM)
    addresses = [buffer.buffer_info()[0] for buffer in (a, b, d, workspace)]
    kernel = load(artifact)
    kernel.bind(PROBLEM, Operands(addresses[0], addresses[1], addresses[2], workspace=addresses[3]))()
    kernel.close()
    assert set(d) == {128.0}


def _mapped_kernels() -> int:
    """Mappings of kernels in this process, those that earlier tests keep included."""
    return Path("/proc/self/maps").read_text().count("memfd:tilewright")
