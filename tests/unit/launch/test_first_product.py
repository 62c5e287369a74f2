"""The first product of a process: beside a fork, and when a signal handler or a finalizer multiplies too."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving

from tilewright import Client, GemmProblem, forks
from tilewright.config_sets.refresher import ConfigSetRefresher

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
FORKED = """
import os, signal, sys, threading, time
import numpy as np
import tilewright
importing = threading.Event()
class Slow:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            importing.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
tw = tilewright.Client("http://127.0.0.1:9", cache_dir=sys.argv[2], offline=True)
a = np.ones((2, 2), "float32")
threading.Thread(target=lambda: tw.matmul(a, a)).start()
assert importing.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    tw.matmul(a, a)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("module", ["numpy.ma.core", "tilewright.matmul.numpy_arrays"])
def test_a_child_that_was_forked_during_the_first_product_multiplies(module: str, tmp_path: Path) -> None:
    """The child waited for ever for the end of an import of the other thread."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, module, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)


def in_time(work: Callable[[], object]) -> None:
    """Do some work, which must end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("during", ["__init__", "start", "_load", "_ensure_thread"])
def test_a_product_during_the_start_runs_and_starts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """A signal handler, or a finalizer of the garbage collector, waited for the lock of its own thread."""
    a, b = (np.random.default_rng(1).random(shape, "float32") for shape in (TUNED.a_shape, TUNED.b_shape))
    step, start = getattr(ConfigSetRefresher, during), forks.start_thread
    results, threads = list[Any](), list[str]()

    def interrupted(*arguments: Any) -> Any:
        if len(results) < 1:
            results.append(None)  # so that the product within is not interrupted
            results[0] = tw.matmul(a, b)
        return step(*arguments)

    def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
        threads.append(name)
        return start(target, name)

    monkeypatch.setattr(ConfigSetRefresher, during, interrupted)
    monkeypatch.setattr(forks, "start_thread", start_thread)
    with (
        serving(SetService(config_set([entry(TUNED, KERNEL)]), [KERNEL])) as service,
        Client(service.url, cache_dir=tmp_path, start_timeout=10.0) as tw,
    ):
        in_time(lambda: results.append(tw.matmul(a, b)))
    for result in results:
        np.testing.assert_allclose(result, a @ b, rtol=1e-4)
    assert len(results) == 2
    assert threads.count("tilewright-sets") == 1


def test_a_thread_that_cannot_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with (
        serving(SetService(config_set([entry(TUNED, KERNEL)]), [KERNEL])) as service,
        Client(service.url, cache_dir=tmp_path) as tw,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(forks, "start_thread", no_thread)
            with pytest.raises(RuntimeError, match="can't start"):
                tw.start("host")
        assert tw.start("host").refresh(20.0)


def test_a_value_that_is_asked_for_while_it_is_made_is_one() -> None:
    found = list[object]()

    def make() -> object:
        if not found:
            found.append(None)  # so that the one within is made at once
            found[0] = shared.get()
        return object()

    shared = forks.PerProcess(make)
    in_time(lambda: found.append(shared.get()))
    assert len(set(found)) == 1
    assert found == [shared.made] * 2
