"""What goes from the client's cache on disk and what stays, also while others use it."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving

from tilewright import Artifact, Client, GemmProblem
from tilewright.artifact.cache import DAY_S, FETCH_S, PAUSE_S, UNNAMED_S, VERSION, Bounds, DiskCache, prune
from tilewright.errors import InvalidProblem

NOW = 1_800_000_000.0
SMALL = GemmProblem(64, 64, 64, "float32", "nn")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def aged(path: Path, days: float) -> None:
    os.utime(path, (NOW - days * DAY_S, NOW - days * DAY_S))


class CacheFolder:
    """A cache whose entries have ages in days."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.root = DiskCache(folder), folder / VERSION

    def kernel(self, content: bytes, days: float) -> str:
        digest = digest_of(content)
        assert self.cache.put(digest, content)
        aged(self.place(digest), days)
        return digest

    def place(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def set(self, name: str, kernels: Iterable[str], days: float) -> None:
        text = ",".join(f'{{"artifact":"{digest}"}}' for digest in kernels)
        assert self.cache.name(name, text.encode())
        aged(self.root / "named" / digest_of(name.encode()), days)

    def prune(self, bounds: Bounds | None = None) -> None:
        prune(self.root, bounds or Bounds(), NOW)


@pytest.fixture
def cache_folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path)


def test_a_set_in_use_keeps_its_kernels_however_old_they_are(cache_folder: CacheFolder) -> None:
    kernels = [cache_folder.kernel(bytes([i]), days=300) for i in range(3)]
    cache_folder.set("current", kernels, days=29)
    cache_folder.prune()
    assert cache_folder.cache.named("current") is not None
    assert [cache_folder.cache.has(digest) for digest in kernels] == [True] * 3


@pytest.mark.parametrize("step", ["open", "listdir"])
def test_while_a_set_cannot_be_read_no_kernel_goes(
    cache_folder: CacheFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its kernels counted as those of no set."""
    kernel, unnamed = cache_folder.kernel(b"named", days=9), cache_folder.kernel(b"of no set", days=9)
    cache_folder.set("current", [kernel], days=9)
    (cache_folder.root / "pruned").touch()
    aged(cache_folder.root / "pruned", days=9)
    works: Callable[..., object] = getattr(os, step)

    def fails(path: object, *others: object) -> object:
        if "named" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return works(path, *others)

    monkeypatch.setattr(time, "time", lambda: NOW)
    with monkeypatch.context() as patched:
        patched.setattr(os, step, fails)
        DiskCache(tmp_path).prune(Bounds(size=0))
    assert [cache_folder.cache.has(digest) for digest in (kernel, unnamed)] == [True, True]
    cache_folder.prune()
    assert [cache_folder.cache.has(digest) for digest in (kernel, unnamed)] == [True, False]


def test_a_set_that_nobody_used_goes_and_its_kernels_a_week_after_their_last_mark(
    cache_folder: CacheFolder,
) -> None:
    shared, alone = cache_folder.kernel(b"shared", days=300), cache_folder.kernel(b"alone", days=6)
    cache_folder.set("current", [shared], days=1)
    cache_folder.set("pinned", [shared, alone], days=31)
    cache_folder.prune()
    assert cache_folder.cache.named("pinned") is None
    assert (cache_folder.cache.has(shared), cache_folder.cache.has(alone)) == (True, True)
    prune(cache_folder.root, Bounds(), NOW + 2 * DAY_S)
    assert (cache_folder.cache.has(shared), cache_folder.cache.has(alone)) == (True, False)


def test_a_kernel_of_the_set_before_stays_for_a_week(cache_folder: CacheFolder) -> None:
    """While it is named it is marked, so that the week starts when it no longer is."""
    before = cache_folder.kernel(b"before", days=300)
    cache_folder.set("current", [before], days=0)
    cache_folder.prune()
    cache_folder.set("current", [], days=0)
    prune(cache_folder.root, Bounds(), NOW + UNNAMED_S - 1)
    assert cache_folder.cache.has(before)
    prune(cache_folder.root, Bounds(), NOW + UNNAMED_S + 1)
    assert not cache_folder.cache.has(before)


def test_over_the_size_the_longest_unused_goes_first(cache_folder: CacheFolder) -> None:
    loose = [cache_folder.kernel(bytes([i]) * 1000, days=6 - i) for i in range(3)]
    old, new, both = (cache_folder.kernel(name * 1000, days=0) for name in (b"o", b"n", b"b"))
    cache_folder.set("old", [old, both], days=20)
    cache_folder.set("new", [new, both], days=10)

    def here(bounds: Bounds) -> list[bool]:
        cache_folder.prune(bounds)
        return [cache_folder.cache.has(digest) for digest in (*loose, old, new, both)]

    assert here(Bounds(size=10_000)) == [True] * 6
    assert here(Bounds(size=5_500)) == [False, True, True, True, True, True]  # 5,000 of kernels and the sets
    assert here(Bounds(size=3_500)) == [False, False, False, True, True, True]
    assert here(Bounds(size=2_500)) == [False, False, False, False, True, True]
    assert (cache_folder.cache.named("old"), cache_folder.cache.named("new") is None) == (None, False)
    assert here(Bounds(size=10)) == [False, False, False, False, True, True]  # the last set stays


def test_over_the_size_kernels_stay_whose_set_may_be_on_its_way(cache_folder: CacheFolder) -> None:
    young = cache_folder.kernel(b"y" * 1000, days=0)
    cache_folder.set("current", [], days=20)
    prune(cache_folder.root, Bounds(size=10), NOW + FETCH_S)
    assert cache_folder.cache.has(young)
    prune(cache_folder.root, Bounds(size=10), NOW + FETCH_S + 1)
    assert not cache_folder.cache.has(young)


def test_bounds_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    assert Bounds(size=0, days=2).size == 0
    for days in (1.9, -1.0, float("nan")):
        with pytest.raises(InvalidProblem, match="cache_days must be"):
            Client("http://127.0.0.1:9", cache_dir=tmp_path, cache_days=days)
    with pytest.raises(
        InvalidProblem, match="cache_bytes must be a whole number that is not negative, got -1"
    ):
        Client("http://127.0.0.1:9", cache_dir=tmp_path, cache_bytes=-1)


def test_what_a_killed_writer_left_goes_after_a_day(cache_folder: CacheFolder) -> None:
    digest = cache_folder.kernel(b"kernel", days=0)
    cache_folder.set("current", [digest], days=0)
    for folder in (digest[:2], "named"):
        for name, days in ((".new-old", 1.1), (".new-young", 0.9)):
            (cache_folder.root / folder / name).write_bytes(b"half")
            aged(cache_folder.root / folder / name, days)
    cache_folder.prune()
    assert {path.name for path in cache_folder.root.rglob(".new-*")} == {".new-young"}
    assert len(list(cache_folder.root.rglob(".new-*"))) == 2
    assert cache_folder.cache.has(digest)


def test_one_of_many_prunes_in_an_hour(cache_folder: CacheFolder) -> None:
    old = cache_folder.kernel(b"old", days=9000)
    cache_folder.cache.prune(Bounds())
    assert not cache_folder.cache.has(old)
    old = cache_folder.kernel(b"old", days=9000)
    cache_folder.cache.prune(Bounds())
    assert cache_folder.cache.has(old)
    for other in (time.time() - PAUSE_S - 1, time.time() + 9000 * DAY_S):  # the last by a wrong clock
        os.utime(cache_folder.root / "pruned", (other, other))
        cache_folder.cache.prune(Bounds())
        assert not cache_folder.cache.has(old)
        old = cache_folder.kernel(b"old", days=9000)


def test_no_folder_and_a_damaged_one_are_left_alone(tmp_path: Path) -> None:
    DiskCache(tmp_path / "none").prune(Bounds())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / VERSION).write_bytes(b"a file")
    DiskCache(tmp_path).prune(Bounds())
    prune(tmp_path / VERSION, Bounds(), NOW)
    assert (tmp_path / VERSION).read_bytes() == b"a file"


def _use(folder: Path, seed: int) -> int:
    """Write, read and prune for a while, as if what is written were older than a fetch takes; how many reads
    gave something else than what was written."""
    cache, draw, wrong = DiskCache(folder), random.Random(seed), 0
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        content = bytes([draw.randrange(64)]) * 2000
        digest = digest_of(content)
        cache.put(digest, content)
        prune(folder / VERSION, Bounds(size=30_000), time.time() + 2 * FETCH_S)
        wrong += cache.get(digest) not in (None, content)
        cache.name(f"set {seed}", f'"{digest}"'.encode())
        wrong += cache.named(f"set {seed}") not in (None, f'"{digest}"'.encode())
    return wrong


@pytest.mark.long
def test_processes_and_threads_prune_write_and_read_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_use, [tmp_path] * 4, range(4)))
    assert found == [0] * 4
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(_use, [tmp_path] * 3, range(3))) == [0] * 3
    prune(tmp_path / VERSION, Bounds(size=30_000), time.time() + 2 * FETCH_S)
    left = [path for path in (tmp_path / VERSION).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in left) <= 30_000
    assert not [path for path in left if path.name.startswith(".new-")]


def kernel_of(kc: int) -> Artifact:
    return artifact_of(config_of(kc=kc, mc=32, nc=64), SMALL)


def test_a_client_prunes_after_it_looked_at_the_service(tmp_path: Path) -> None:
    mine, cache_folder = kernel_of(32), CacheFolder(tmp_path)
    old = cache_folder.kernel(b"of a set that is no more", days=9000)
    cache_folder.set("gone", [], days=9000)
    with serving(SetService(config_set([entry(SMALL, mine)]), [mine])) as service:
        with Client(service.url, cache_dir=tmp_path) as tw:
            assert tw.start().refresh(5.0)
        assert (cache_folder.cache.has(old), cache_folder.cache.named("gone")) == (False, None)
        assert cache_folder.cache.has(mine.digest)
        with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
            assert tw.start().lookup(SMALL).kind == "exact"


def test_a_kernel_that_went_under_a_running_client_is_fetched_again(tmp_path: Path) -> None:
    mine = kernel_of(48)
    made = SetService(config_set([entry(SMALL, mine)]), [mine])
    with serving(made) as service, Client(service.url, cache_dir=tmp_path) as tw:
        tw.start().refresh(5.0)
        DiskCache(tmp_path).drop(mine.digest)
        assert tw.refresh(5.0)
        assert DiskCache(tmp_path).has(mine.digest)


def the_set_file(folder: Path) -> Path:
    [file] = (folder / VERSION / "named").iterdir()
    return file


def test_a_set_that_went_under_a_running_client_is_written_again(tmp_path: Path) -> None:
    mine = kernel_of(48)
    made = SetService(config_set([entry(SMALL, mine)]), [mine])
    with serving(made) as service:
        for started in ("from the service", "from the cache"):
            with Client(service.url, cache_dir=tmp_path) as tw:
                tw.start().refresh(5.0)
                the_set_file(tmp_path).unlink()
                DiskCache(tmp_path).drop(mine.digest)
                assert tw.refresh(5.0)
            with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
                assert tw.start().lookup(SMALL).kind == "exact", started
                assert DiskCache(tmp_path).has(mine.digest)


def test_a_set_is_in_use_while_the_service_is_down(tmp_path: Path) -> None:
    mine, long_ago = kernel_of(32), time.time() - 5 * DAY_S
    made = SetService(config_set([entry(SMALL, mine)]), [mine])
    with serving(made) as service, Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.start().refresh(5.0)
        service.mode = "error"
        os.utime(the_set_file(tmp_path), (long_ago, long_ago))
        assert not tw.refresh(5.0)
        assert the_set_file(tmp_path).stat().st_mtime > long_ago + DAY_S


def test_a_set_is_in_use_while_its_kernels_are_read_offline(tmp_path: Path) -> None:
    mine, long_ago = kernel_of(32), time.time() - 5 * DAY_S
    with serving(SetService(config_set([entry(SMALL, mine)]), [mine])) as service:
        Client(service.url, cache_dir=tmp_path).start().close()
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        tw.start()
        os.utime(the_set_file(tmp_path), (long_ago, long_ago))
        a, b = (np.ones(shape, "float32") for shape in (SMALL.a_shape, SMALL.b_shape))
        tw.matmul(a, b)
        assert tw.stats == {"tuned: exact": 1}
        assert the_set_file(tmp_path).stat().st_mtime > long_ago + DAY_S


def test_the_bounds_are_options_of_the_client(tmp_path: Path) -> None:
    mine, cache_folder = kernel_of(64), CacheFolder(tmp_path)
    with serving(SetService(config_set([entry(SMALL, mine)]), [mine])) as service:
        loose = cache_folder.kernel(b"x" * 5000, days=0)
        os.utime(cache_folder.place(loose), (past := time.time() - FETCH_S - 60, past))
        with Client(service.url, cache_dir=tmp_path, cache_bytes=1) as tw:
            assert tw.start().refresh(5.0)
        assert (cache_folder.cache.has(loose), cache_folder.cache.has(mine.digest)) == (False, True)
