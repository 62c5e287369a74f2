"""Start-up, cache, pins, near matches and miss reports against a real local service of config sets."""

from __future__ import annotations

import copy
import dataclasses
import errno
import gc
import json
import math
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving

from tilewright import AsyncClient, Client, GemmProblem
from tilewright.artifact.cache import ArtifactStore, DiskCache
from tilewright.backoff import LONGEST_S, OPENS_AFTER, Backoff
from tilewright.config_sets.counters import LaunchCounter
from tilewright.config_sets.miss_reports import MissReports
from tilewright.errors import ArtifactError, InvalidProblem, ServiceError, TilewrightError
from tilewright.http.fetch import Fetcher

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
LARGER = dataclasses.replace(TUNED, m=192)
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), dataclasses.replace(TUNED, m=64, n=64, k=64))
OTHER = artifact_of(config_of(kc=48, mc=32, nc=64), dataclasses.replace(TUNED, m=64, n=64, k=64))
RANDOM = np.random.default_rng(1)
BANDS = [
    {"max_distance": 0.5, "expected": 0.02, "p90": 0.1, "pairs": 9},
    {"max_distance": 2.0, "expected": 0.2, "p90": 0.4, "pairs": 30},
]


def operands(problem: GemmProblem) -> tuple[Any, Any]:
    return tuple(  # type: ignore[return-value]
        RANDOM.standard_normal(shape).astype("float32") for shape in (problem.a_shape, problem.b_shape)
    )


@pytest.fixture
def service() -> Iterator[SetService]:
    made = SetService(config_set([entry(TUNED, KERNEL)], BANDS), [KERNEL, OTHER])
    with serving(made) as running:
        yield running


def test_a_cold_start_takes_one_request_for_the_set_and_one_for_the_kernels(
    service: SetService, tmp_path: Path
) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.start()
        assert service.asked == ["GET /config-sets/current", f"GET /config-sets/{service.digest}/bundle"]
        a, b = operands(TUNED)
        np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
        assert tw.stats == {"tuned: exact": 1}
    assert len(service.asked) == 2


STARTED = """
import sys, time
begun = time.monotonic()
from pathlib import Path
from tilewright import Client
with Client(sys.argv[1], cache_dir=Path(sys.argv[2]), start_timeout=60.0) as tw:
    tw.start()
    print(time.monotonic() - begun)
"""


@pytest.mark.long
def test_a_cold_start_with_500_kernels_takes_less_than_two_seconds(
    service: SetService, tmp_path: Path
) -> None:
    """In a new process, with its imports and the check of all that it fetched."""
    service.artifacts = [dataclasses.replace(KERNEL, source_digest=f"{i:064x}") for i in range(500)]
    won = [dataclasses.replace(TUNED, m=16 * (i + 1)) for i in range(500)]
    service.content = config_set([entry(*each) for each in zip(won, service.artifacts, strict=True)])
    seconds = list[float]()
    while not seconds or (min(seconds) >= 2.0 and len(seconds) < 5):  # NOTE: others may be at work here
        folder = tmp_path / str(len(seconds))
        command = [sys.executable, "-c", STARTED, service.url, str(folder)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        seconds.append(float(told))
        assert not ArtifactStore(DiskCache(folder)).missing(one.digest for one in service.artifacts)
    assert min(seconds) < 2.0


def test_the_key_goes_with_every_request(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path, key="tw_secret") as tw:
        assert tw.start().refresh(5.0)
    assert service.keys == {"Bearer tw_secret"}


def test_a_warm_start_asks_nothing_and_a_refresh_asks_by_etag(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    service.asked.clear()
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.start().lookup(TUNED).kind == "exact"
        assert service.asked == []
        assert tw.refresh(math.inf)
        assert service.asked == ["GET /config-sets/current"]  # 304: neither a set nor a bundle


def test_a_newer_set_is_taken_in_a_refresh_and_only_the_missing_kernel_is_fetched(
    service: SetService, tmp_path: Path
) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        a, b = operands(LARGER)
        tw.start().matmul(a, b)
        service.content = config_set([entry(TUNED, KERNEL), entry(LARGER, OTHER)], BANDS)
        assert tw.refresh(5.0)
        tw.matmul(a, b)
        assert tw.stats == {"vendor: no tuned kernel": 1, "tuned: exact": 1}
        assert [what for what in service.asked if "misses" not in what][2:] == [
            "GET /config-sets/current",
            f"POST /config-sets/{service.digest}/bundle",
        ]


def test_a_kernel_that_ties_on_its_row_is_here_for_what_lies_between_rows(
    service: SetService, tmp_path: Path
) -> None:
    service.content = config_set(tied_ladder())
    with Client(service.url, cache_dir=tmp_path) as tw:
        a, b = operands(dataclasses.replace(TUNED, m=128))
        tw.start().matmul(a, b)
        assert tw.stats == {"tuned: ladder": 1}
        tw.matmul(*operands(TUNED))
        assert tw.stats["vendor: the vendor library was faster in the race"] == 1


def tied_ladder() -> list[dict[str, Any]]:
    """Two rows; the kernel of the first is within its interval of the vendor library there."""

    def told(*speedups: float) -> list[dict[str, Any]]:
        kernels = zip((OTHER, KERNEL), (0.0, 0.05), speedups, strict=True)
        return [
            {"artifact": one.digest, "regret": regret, "speedup": ratio} for one, regret, ratio in kernels
        ]

    tie = {"value": 0.995, "low": 0.98, "high": 1.01, "confidence": 0.99}
    tied = {"speedup": tie, "verdict": "tie", "use_vendor": True, "kernels": told(0.995, 0.9)}
    return [entry(TUNED, OTHER, **tied), entry(LARGER, KERNEL, kernels=told(1.4, 1.5))]


def test_misses_are_reported_once_with_their_count(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        a, b = operands(LARGER)
        for _ in range(3):
            tw.start().matmul(a, b)
        tw.refresh(5.0)
        tw.refresh(5.0)
    # The refresh at the start may come before the last of the three: then there are two reports.
    misses = [miss for report in service.misses for miss in report["misses"]]
    assert {(miss["m"], miss["n"], miss["k"]) for miss in misses} == {(192, 80, 64)}
    assert sum(miss.get("count", 1) for miss in misses) == 3


def test_a_report_whose_answer_was_lost_is_sent_again_as_it_was(service: SetService, tmp_path: Path) -> None:
    a, b = operands(LARGER)
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.start()
        service.mode = "lost-answer"
        tw.matmul(a, b)
        for _ in range(2):
            assert tw.refresh(5.0)
            tw.matmul(a, b)
        service.mode = "ok"
        assert tw.refresh(5.0)
        assert tw.refresh(5.0)
    # A service counts each key once.
    counted = dict(zip(service.miss_keys, service.misses, strict=True))
    assert [counted[key] for key in service.miss_keys] == service.misses
    assert len(counted) == 2 < len(service.misses)
    assert sum(miss.get("count", 1) for report in counted.values() for miss in report["misses"]) == 3


class Refusing(Fetcher):
    """Answers reports of misses with these statuses, then takes them."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.asked = list(statuses), list[Any]()

    def _send(self, call: Any) -> Any:
        self.asked.append(json.loads(call.content))
        if self.statuses:
            raise ServiceError(self.statuses.pop(0), {"title": "no"})


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_report_that_is_refused_for_good_makes_way_for_newer_ones(status: int) -> None:
    fetcher, counter = Refusing(status), LaunchCounter("vendor: no tuned kernel", TUNED, miss=True, count=3)
    reports = MissReports(fetcher, "any", lambda: [counter])
    reports.send()
    reports.send()
    assert len(fetcher.asked) == 1
    counter.count = 5
    reports.send()
    assert fetcher.asked[1]["misses"][0]["count"] == 2


@pytest.mark.parametrize("status", [401, 403, 408, 409, 429, 500, 503])
def test_a_report_that_may_pass_later_goes_again(status: int) -> None:
    fetcher, counter = Refusing(status), LaunchCounter("vendor: no tuned kernel", TUNED, miss=True, count=3)
    reports = MissReports(fetcher, "any", lambda: [counter])
    reports.send()
    counter.count = 5
    reports.send()
    reports.send()
    assert [asked["misses"][0]["count"] for asked in fetcher.asked] == [3, 3, 2]


def test_misses_reach_a_service_that_tuned_nothing_yet(service: SetService, tmp_path: Path) -> None:
    service.content = None
    with Client(service.url, cache_dir=tmp_path) as tw:
        a, b = operands(TUNED)
        np.testing.assert_array_equal(tw.start().matmul(a, b), a @ b)
        assert tw.refresh(5.0)
    assert len(service.misses) == 1


def test_a_closed_client_asks_no_more_and_multiplies_with_what_the_cache_has(
    service: SetService, tmp_path: Path
) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.start()
    asked = list(service.asked)
    tw = Client(service.url, cache_dir=tmp_path)
    tw.close()
    a, b = operands(TUNED)
    np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert tw.stats == {"tuned: exact": 1}
    assert not tw.refresh(0.5)
    assert service.asked == asked
    with pytest.raises(TilewrightError, match="is closed; use a new one"):
        tw.start()


def test_a_pin_takes_that_set_and_no_other(service: SetService, tmp_path: Path) -> None:
    pin = service.digest
    with Client(service.url, cache_dir=tmp_path, pin=pin) as tw:
        assert tw.start().lookup(TUNED).kind == "exact"
        assert service.asked[0] == f"GET /config-sets/{pin}"
        service.content = config_set([entry(TUNED, OTHER)])
        assert tw.refresh(5.0)
        assert tw.lookup(TUNED).entry.artifact == KERNEL.digest  # type: ignore[union-attr]
    with Client(service.url, cache_dir=tmp_path / "new", pin=pin) as tw:
        found = tw.start().lookup(TUNED)  # now the service sends another one under that name
        assert (found.kind, found.reason) == ("vendor", "no config set yet")
    with pytest.raises(InvalidProblem, match="pin must be sha256:"):
        Client(service.url, pin="latest")


def test_a_start_from_the_cache_imports_neither_schemas_nor_http(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    program = (
        "import pathlib, sys; from tilewright import Client, GemmProblem\n"
        "tw = Client(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]), offline=True).start(-1)\n"
        f"print(tw.lookup(GemmProblem(**{TUNED.to_dict()}), -1).kind)\n"
        "print(sorted({'pydantic', 'httpx2', 'numpy', 'ml_dtypes', 'cupy', 'torch'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, service.url, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "exact\n[]\n"


def test_offline_takes_what_the_cache_has_and_asks_nobody(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    service.asked.clear()
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        a, b = operands(TUNED)
        tw.start().matmul(a, b)
        assert not tw.refresh(5.0)
        assert tw.stats == {"tuned: exact": 1}
    with Client(service.url, cache_dir=tmp_path / "empty", offline=True) as tw:
        assert tw.start().lookup(TUNED).reason == "no config set yet"
    assert service.asked == []


def test_a_cache_by_a_relative_path_stays_where_it_was(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Client(service.url, cache_dir="kept").start().close()
    with Client(service.url, cache_dir="kept", offline=True) as tw:
        tw.start()
        monkeypatch.chdir("/")
        tw.matmul(*operands(TUNED))
        assert tw.stats == {"tuned: exact": 1}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""]
)
def test_a_damaged_kernel_on_disk_is_a_miss_and_is_fetched_again(
    service: SetService, tmp_path: Path, damage: Any
) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    [file] = tmp_path.rglob(KERNEL.digest)
    file.write_bytes(damage(file.read_bytes()))
    a, b = operands(TUNED)
    with Client(service.url, cache_dir=tmp_path) as tw:
        np.testing.assert_array_equal(tw.start().matmul(a, b), a @ b)
        assert tw.stats == {"vendor: its kernel is not here": 1}
        assert tw.refresh(5.0)
        tw.matmul(a, b)
        assert tw.stats["tuned: exact"] == 1


def test_a_damaged_kernel_that_cannot_be_removed_is_fetched_all_the_same(
    service: SetService, tmp_path: Path
) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    [file] = tmp_path.rglob(KERNEL.digest)
    file.unlink()
    file.mkdir()  # as a file of a cache that is read-only: it is there, and stays
    a, b = operands(TUNED)
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.start().matmul(a, b)
        assert tw.refresh(5.0)
        tw.matmul(a, b)
        assert tw.stats == {"vendor: its kernel is not here": 1, "tuned: exact": 1}


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_kernel_that_cannot_be_read_for_a_moment_stays_on_disk(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was removed, and no later client found it without a service."""
    Client(service.url, cache_dir=tmp_path).start().close()
    [file] = tmp_path.rglob(KERNEL.digest)
    a, b = operands(TUNED)
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        tw.start()
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", no_descriptor)
            tw.matmul(a, b)
        assert file.read_bytes() == KERNEL.to_bytes()
        tw.matmul.forget()
        tw.matmul(a, b)
        assert tw.stats == {"vendor: its kernel is not here": 1, "tuned: exact": 1}
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        tw.start().matmul(a, b)
        assert tw.stats == {"tuned: exact": 1}


def test_a_kernel_that_could_not_be_read_is_fetched_by_the_next_look(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    a, b = operands(TUNED)
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.start()
        with monkeypatch.context() as patched:
            patched.setattr("tilewright.artifact.cache.without_waiting", no_descriptor)
            tw.matmul(a, b)
        assert tw.refresh(5.0)
        tw.matmul(a, b)
        assert tw.stats == {"vendor: its kernel is not here": 1, "tuned: exact": 1}


def test_a_cache_that_may_not_be_looked_at_does_not_stop_the_fetch(
    service: SetService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The system refuses to look at names of this length, as at the folders of another user."""
    with Client(service.url, cache_dir=tmp_path / ("x" * 300)) as tw:
        a, b = operands(TUNED)
        tw.start().matmul(a, b)
        assert tw.stats == {"tuned: exact": 1}
    assert caplog.text == ""


def test_a_damaged_set_on_disk_is_a_miss(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    [file] = (tmp_path / "v1" / "named").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"median_us": 2.0', b'"median_us": 1.0'))
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.start().lookup(TUNED).kind == "exact"
    assert service.asked.count("GET /config-sets/current") == 2


@pytest.mark.parametrize(
    "where", ["http.fetch.Fetcher._send", "artifact.cache.ArtifactStore.write", "artifact.cache.prune"]
)
def test_an_error_that_nobody_foresaw_costs_one_look(
    service: SetService,
    tmp_path: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of our own")

    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.start().refresh(5.0)
        service.content = config_set([entry(TUNED, KERNEL), entry(LARGER, OTHER)], BANDS)
        (tmp_path / "v1" / "pruned").unlink()  # so that it is due again
        with monkeypatch.context() as patched:
            patched.setattr(f"tilewright.{where}", broken)
            assert not tw.refresh(5.0)
        assert "a fault of our own" in caplog.text
        assert tw.lookup(TUNED).kind == "exact"
        assert tw.refresh(5.0)
        assert tw.lookup(LARGER).kind == "exact"
        begun = time.monotonic()
        tw.close()
        assert time.monotonic() - begun < 2.0  # nobody waits for what will never be written


def test_pauses_grow_with_jitter_and_the_circuit_opens() -> None:
    backoff, of_application = Backoff(), random.getstate()
    pauses = [backoff.failed() for _ in range(12)]
    assert random.getstate() == of_application
    for number, pause in enumerate(pauses):
        longest = min(LONGEST_S, 0.5 * 2**number)
        assert longest / 2 <= pause <= longest
    assert backoff.open
    backoff.succeeded()
    assert not backoff.open
    states = []
    for _ in range(OPENS_AFTER):
        backoff.failed()
        states.append(backoff.open)
    assert states == [False] * (OPENS_AFTER - 1) + [True]


@pytest.mark.parametrize("name", ["../victim", "{victim}", "a\0b", "ab12", "AB" * 32, "", "g" * 64])
def test_the_cache_names_nothing_but_digests(tmp_path: Path, name: str) -> None:
    cache, victim = DiskCache(tmp_path / "cache"), tmp_path / "victim"
    victim.touch()
    steps = (cache.get, cache.has, cache.drop, lambda digest: cache.put(digest, b"lie"))
    for step in steps:
        with pytest.raises(ArtifactError, match="names artifacts by a SHA-256"):
            step(name.format(victim=victim))
    assert list(tmp_path.iterdir()) == [victim]
    assert victim.read_bytes() == b""


def test_the_cache_tells_a_damaged_entry_from_a_sound_one(tmp_path: Path) -> None:
    cache, content = DiskCache(tmp_path), KERNEL.to_bytes()
    assert cache.get(KERNEL.digest) is None
    assert cache.put(KERNEL.digest, content)
    assert cache.get(KERNEL.digest) == content
    assert cache.put(OTHER.digest, content)
    assert cache.get(OTHER.digest) is None
    assert not cache.has(OTHER.digest)
    cache.drop(KERNEL.digest)
    assert not cache.has(KERNEL.digest)
    assert list(tmp_path.rglob(".new-*")) == []


def test_a_client_says_that_it_belongs_to_its_process(tmp_path: Path) -> None:
    with Client("http://127.0.0.1:1", cache_dir=tmp_path) as tw:
        for one in (tw, AsyncClient("http://127.0.0.1:1")):
            for twice in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="make one in each process"):
                    twice(one)


@pytest.mark.parametrize("waits", ["for its next look", "after a failed look"])
def test_a_client_without_a_close_ends_with_its_last_use(
    service: SetService, tmp_path: Path, waits: str
) -> None:
    service.mode = "ok" if waits == "for its next look" else "error"
    before = set(threading.enumerate())
    matmul = Client(service.url, cache_dir=tmp_path, start_timeout=20.0).start().matmul
    gc.collect()
    (thread,) = (one for one in set(threading.enumerate()) - before if one.name == "tilewright-sets")
    matmul(*operands(TUNED))  # keeps the kernels and what looks for newer ones
    assert thread.is_alive()
    del matmul
    until = time.monotonic() + 5.0
    while thread.is_alive() and time.monotonic() < until:
        gc.collect()  # again, as a look under way uses them, too
        thread.join(0.05)
    assert not thread.is_alive()


def test_a_refresh_before_the_start_asks_the_service(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.refresh(20.0)
        assert tw.lookup(TUNED).kind == "exact"
    with Client(service.url, cache_dir=tmp_path / "closed") as tw:
        tw.close()
        assert not tw.refresh(20.0)
    service.mode = "slow"
    begun = time.monotonic()
    with Client(service.url, cache_dir=tmp_path / "slow", start_timeout=60.0) as tw:
        assert not tw.refresh(0.1)
    assert time.monotonic() - begun < 10.0
