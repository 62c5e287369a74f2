"""The kernels that ``matmul`` has loaded: bounded, and never unloaded under a launch."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
from host_samples import artifact_of, config_of

from tilewright import Client, GemmProblem
from tilewright.artifact import Artifact
from tilewright.launch import Kernel
from tilewright.matmul import loaded
from tilewright.matmul.loaded import LoadedKernels
from tilewright.matmul.matmul import Choice, LocalMatmul

BASE = artifact_of(config_of(), GemmProblem(64, 64, 64, "float32", "nn"))


def numbered(number: int) -> Artifact:
    """The same kernel under another digest."""
    return dataclasses.replace(BASE, source_digest=f"{number:064x}")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests of the kernels that were unloaded, in their order."""
    found = list[str]()

    def load(artifact: Artifact, overlap: bool) -> Kernel:
        kernel = real(artifact, overlap)
        close = kernel.close

        def noted() -> None:
            found.append(artifact.digest)
            close()

        monkeypatch.setattr(kernel, "close", noted)
        return kernel

    real = loaded.load
    monkeypatch.setattr(loaded, "load", load)
    return found


class Serving:
    """What ``matmul`` looks up: kernels in turn, another one for each problem after each forget."""

    def __init__(self, room: int) -> None:
        self.number = 0
        self.matmul = LocalMatmul(self.choose, room * len(BASE.binary))

    def choose(self, _problem: GemmProblem, _device: int) -> Choice:
        return Choice(numbered(self.number), "exact")

    def run(self, number: int, m: int = 33) -> None:
        self.number = number
        a, b = np.ones((m, 20), "float32"), np.ones((20, 10), "float32")
        np.testing.assert_array_equal(self.matmul(a, b), a @ b)


def test_kernels_of_earlier_sets_are_unloaded_beyond_the_bound(closed: list[str]) -> None:
    serving = Serving(room=3)
    for number in range(10):
        serving.run(number)
        serving.matmul.forget()  # as another config set does
    assert closed == [numbered(number).digest for number in range(7)]
    assert set(serving.matmul.stats) == {"tuned: exact"}


def test_a_kernel_that_is_used_again_goes_last(closed: list[str]) -> None:
    serving = Serving(room=3)
    for number in (0, 1, 2, 0, 3, 4):
        serving.run(number)
        serving.matmul.forget()
    assert closed == [numbered(1).digest, numbered(2).digest]


def test_a_kernel_in_use_stays_whatever_the_bound(closed: list[str]) -> None:
    serving = Serving(room=1)
    for number in range(4):
        serving.run(number, m=30 + number)
    assert closed == []
    for _ in range(2):
        for number in range(4):
            serving.run(9, m=30 + number)  # by the launches that are there
    assert serving.matmul.stats == {"tuned: exact": 12}


def test_a_kernel_that_a_graph_may_hold_stays(closed: list[str]) -> None:
    kernels = LoadedKernels(1, False)

    class Plan:
        pass

    def held(kernel: Kernel) -> Plan:
        kernel.held = True
        return Plan()

    kernels.plan(numbered(0), -1, held)  # type: ignore[arg-type]
    for number in (1, 2):
        kernels.plan(numbered(number), -1, lambda _: Plan())  # type: ignore[arg-type, return-value]
    assert closed == [numbered(1).digest]
    assert kernels.size == 2 * len(BASE.binary)


def test_threads_that_load_and_forget_at_once_compute_what_is_right(closed: list[str]) -> None:
    serving = Serving(room=2)
    wrong = list[BaseException]()

    def work(thread: int) -> None:
        try:
            for step in range(40):
                serving.run(step % 7 + thread, m=20 + step % 5)
                serving.matmul.forget()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(closed) > 10


def test_the_client_hands_its_option_on(tmp_path: Path) -> None:
    with Client("http://127.0.0.1:9", cache_dir=tmp_path, kernel_bytes=12345) as tw:
        assert tw.matmul._kernels._most == 12345
