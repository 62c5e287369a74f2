"""Published trees: start-up from a file server or a folder, what a second publish writes, who may sign."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import functools
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving, tampered
from signers import signer

from service.results import publishing
from service.results.publishing import NothingToPublish, publish
from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.artifact.cache import default_folder
from tilewright.errors import ArtifactError, InvalidProblem, ServiceError, TilewrightError, TrustError
from tilewright.http import transport
from tilewright.http.calls import Call, Reply
from tilewright.http.fetch import Fetcher
from tilewright.http.sets import INDEX, Index, SetAnswer, is_index, kernel_path
from tilewright.launch import local_device
from tilewright.trust import About, ServiceKey

HOST = local_device.device_class(local_device.HOST).id
TUNED = GemmProblem(96, 80, 64, "float32", "nn")
LARGER = dataclasses.replace(TUNED, m=4096)
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), dataclasses.replace(TUNED, m=64, n=64, k=64))
OTHER = artifact_of(config_of(kc=48, mc=32, nc=64), dataclasses.replace(TUNED, m=64, n=64, k=64))
BOTH = [entry(TUNED, KERNEL), entry(LARGER, OTHER)]


class Listing(Client):
    """A client of a service of sets that says which classes it has; ``SetService`` lists nothing."""

    def config_list(self, **_: Any) -> wire.BestConfigList:  # type: ignore[override]
        return wire.BestConfigList(items=[])

    def config_sets(self, *_: Any, **__: Any) -> wire.SetList:  # type: ignore[override]
        info = {"arch": "a", "created_at": "2026-01-01T00:00:00Z", "entries": 1}
        return wire.SetList(items=[wire.SetInfo(digest="d", device_class=HOST, **info)])  # type: ignore[arg-type]


@pytest.fixture
def service() -> Iterator[SetService]:
    with serving(SetService(config_set([entry(TUNED, KERNEL)]), [KERNEL, OTHER])) as running:
        yield running


@pytest.fixture
def source(service: SetService, tmp_path: Path) -> Iterator[Client]:
    with Listing(service.url, cache_dir=tmp_path / "publisher") as client:
        yield client


@pytest.fixture
def tree(source: Client, tmp_path: Path) -> Path:
    publish(source, tmp_path / "a tree")
    return tmp_path / "a tree"


class _Files(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_: object) -> None:
        self.asked.append(f"{self.command} {self.path.partition('?')[0]}")


@pytest.fixture
def files(tree: Path) -> Iterator[tuple[str, list[str]]]:
    """The tree behind what ``python -m http.server`` runs: its URL, and what was asked for."""
    handler = type("Handler", (_Files,), {"asked": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(tree))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler.asked  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def multiplies(tw: Client, problem: GemmProblem = TUNED) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype("float32") for shape in (problem.a_shape, problem.b_shape))
    np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_file_server_is_enough_for_tuned_products(files: tuple[str, list[str]], tmp_path: Path) -> None:
    url, asked = files
    with Client(url, cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        multiplies(tw.start())
        multiplies(tw, dataclasses.replace(TUNED, n=96))
        assert tw.refresh(10.0)
        assert tw.stats == {"tuned: exact": 1, "vendor: no tuned kernel": 1}
    [index, first, kernel, again] = asked  # no report of the miss
    assert index == again == f"GET {INDEX}"
    assert first.startswith("GET /config-sets/sha256:")
    assert kernel == f"GET /artifacts/{KERNEL.digest}"


def test_a_folder_is_enough_too(tree: Path, tmp_path: Path) -> None:
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        multiplies(tw.start())
        assert tw.refresh(10.0)
        assert tw.stats == {"tuned: exact": 1}
        with pytest.raises(ServiceError, match="use the URL of a service"):
            tw.devices()
        with pytest.raises(ServiceError, match="another has no published set"):
            tw.current_set("another")


def test_a_folder_may_be_named_from_a_folder_beside_it(tree: Path, tmp_path: Path) -> None:
    for way in ("beside/..", "."):
        url = f"{tree.parent.as_uri()}/{way}/{tree.name}"
        with (
            Client(url, cache_dir=tmp_path / "cache") as tw,
            pytest.raises(ServiceError, match="no published"),
        ):
            tw.current_set("another")


def test_a_coroutine_reads_a_folder(tree: Path) -> None:
    async def read() -> None:
        async with AsyncClient(tree.as_uri(), trust=signer(1).public_key) as tw:
            answer = await tw.current_set(HOST)
            assert answer is not None
            assert tw.published
            assert await tw.current_set(HOST, answer.etag) is None

    asyncio.run(read())


def test_a_tree_has_the_kernel_of_a_row_that_ties_with_the_vendor_library(
    service: SetService, source: Client, tmp_path: Path
) -> None:
    """It may run what lies between two rows; one that loses its row may not."""
    on_row = [{"artifact": OTHER.digest, "regret": 0.0, "speedup": 0.995}]
    tie = entry(LARGER, OTHER, use_vendor=True, verdict="tie", kernels=on_row)
    for changes, kernels in (({"verdict": "vendor"}, {KERNEL}), ({}, {KERNEL, OTHER})):
        service.content = config_set([entry(TUNED, KERNEL), tie | changes])
        publish(source, tmp_path / "made")
        made = {name for name in names(tmp_path / "made") if "artifacts" in name}
        assert made == {kernel_path(kernel.digest).strip("/") for kernel in kernels}


def test_a_second_publish_writes_what_changed_and_keeps_the_rest(
    service: SetService, source: Client, tree: Path, tmp_path: Path
) -> None:
    before = {name: (tree / name).stat() for name in names(tree)}
    assert publish(source, tree).bytes == 0
    assert {name: (tree / name).stat().st_ino for name in names(tree)} == {
        name: status.st_ino for name, status in before.items()
    }
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        multiplies(tw.start())
        service.content = config_set(BOTH)
        written = publish(source, tree)
        assert (written.sets, written.kernels) == (1, 1)
        assert names(tree) - before.keys() == {
            f"config-sets/{service.digest}",
            f"artifacts/{OTHER.digest}",
        }
        assert tw.refresh(10.0)
        multiplies(tw, LARGER)
        assert tw.stats == {"tuned: exact": 2}


def test_a_kernel_that_was_cut_short_is_written_again(source: Client, tree: Path) -> None:
    kernel = tree / "artifacts" / KERNEL.digest
    whole = kernel.read_bytes()
    kernel.write_bytes(whole[:-1])
    assert publish(source, tree).kernels == 1
    assert kernel.read_bytes() == whole


def test_the_index_comes_last_and_no_file_shows_in_part(
    service: SetService, source: Client, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.content = config_set(BOTH)
    replaced, real = list[str](), os.replace

    def replace(beside: Path, target: Path) -> None:
        if not Path(target).is_relative_to(tree):  # a cache
            return real(beside, target)
        with Client(tree.as_uri(), cache_dir=tmp_path / f"cache-{len(replaced)}", start_timeout=10.0) as tw:
            multiplies(tw.start())  # a reader at this very moment
            assert tw.stats == {"tuned: exact": 1}
        replaced.append(str(target.relative_to(tree)))
        return real(beside, target)

    monkeypatch.setattr(publishing.os, "replace", replace)
    publish(source, tree)
    assert replaced == [
        f"artifacts/{OTHER.digest}",
        f"config-sets/{service.digest}",
        INDEX.lstrip("/"),
    ]
    assert not [name for name in names(tree) if ".new" in name]


def test_nothing_tuned_leaves_the_tree_as_it_is(service: SetService, source: Client, tree: Path) -> None:
    there = names(tree)
    service.content = None
    with pytest.raises(NothingToPublish, match="tune first"):
        publish(source, tree)
    assert names(tree) == there


def test_a_pinned_set_comes_from_the_tree_after_another_was_published(
    service: SetService, source: Client, tree: Path, tmp_path: Path
) -> None:
    pin, cache = service.digest, tmp_path / "cache"
    service.content = config_set(BOTH)
    publish(source, tree)
    with Client(tree.as_uri(), cache_dir=cache, start_timeout=10.0, pin=pin) as tw:
        multiplies(tw.start())
        assert tw.lookup(LARGER).kind == "vendor"
        assert tw.stats == {"tuned: exact": 1}
    next(cache.rglob(KERNEL.digest)).unlink()  # the set stays, so nothing said yet who answers
    with Client(tree.as_uri(), cache_dir=cache, start_timeout=10.0, pin=pin) as tw:
        assert tw.start().refresh(10.0)
        multiplies(tw)
        assert tw.stats == {"tuned: exact": 1}


def test_only_the_first_key_or_the_given_one_counts(
    service: SetService, tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        multiplies(tw.start())
        assert tw.service_key.known == signer(1).public_key
    service.signs_with, service.content = 2, config_set(BOTH)
    with Listing(service.url, cache_dir=tmp_path / "other publisher") as other:
        publish(other, tree)
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        assert not tw.start().refresh(10.0)
        assert tw.lookup(LARGER).kind == "vendor"
        multiplies(tw)
        assert tw.stats == {"tuned: exact": 1}
    assert "the key to trust is" in caplog.text
    given = signer(2).public_key
    with Client(tree.as_uri(), cache_dir=tmp_path / "new", start_timeout=10.0, trust=given) as tw:
        assert tw.start().lookup(LARGER).kind == "exact"


def test_a_changed_set_or_kernel_does_not_run(tree: Path, tmp_path: Path) -> None:
    kernel, index = tree / "artifacts" / KERNEL.digest, Index.from_bytes((tree / INDEX[1:]).read_bytes())
    kernel.write_bytes(tampered(kernel.read_bytes()))
    with Client(tree.as_uri(), cache_dir=tmp_path / "one", start_timeout=10.0) as tw:
        multiplies(tw.start())
        assert tw.stats == {"vendor: its kernel is not here": 1}
    file = tree / "config-sets" / index.sets[HOST]
    file.write_bytes(file.read_bytes().replace(b'"use_vendor": false', b'"use_vendor": true'))
    with (
        Client(tree.as_uri(), cache_dir=tmp_path / "two") as tw,
        pytest.raises(ArtifactError, match="fetch it again"),
    ):
        tw.current_set(HOST)


def test_a_set_of_another_class_is_refused_and_so_is_a_foreign_signature(tree: Path, tmp_path: Path) -> None:
    file = next(path for path in (tree / "config-sets").iterdir() if path.name != "current")
    signature, _, content = file.read_bytes().partition(b"\n")
    foreign = signature[:-2] + (b"00" if signature[-2:] != b"00" else b"11")
    with pytest.raises(TrustError, match="not what it signed"):
        SetAnswer.read(Reply(200, {}, foreign + b"\n" + content), ServiceKey("http://x", tmp_path))
    index = tree / INDEX[1:]
    index.write_bytes(index.read_bytes().replace(HOST.encode(), b"another"))
    with (
        Client(tree.as_uri(), cache_dir=tmp_path / "cache") as tw,
        pytest.raises(ArtifactError, match=f"a config set of {HOST} was sent for another"),
    ):
        tw.current_set("another")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"published":2,"sets":{}}', "newer release"),
        (b'{"published":1,"sets":{"a":1}}', "publish' again"),
        (b'{"published":1', "publish' again"),
        (b'{"published":1,"sets":3}', "publish' again"),
        (b'{"published":1,"sets":{},"served":{"a":1}}', "publish' again"),
        (b'{"published":1,"sets":{},"served":3}', "publish' again"),
    ],
)
def test_a_damaged_index_is_refused(content: bytes, says: str) -> None:
    assert is_index(Reply(200, {}, content))
    with pytest.raises(ArtifactError, match=says):
        Index.from_bytes(content)


def test_an_index_of_unknown_sets_gives_no_path_out_of_the_folder(tree: Path, tmp_path: Path) -> None:
    (tree.parent / "secret").write_text("x")
    (tree / INDEX[1:]).write_bytes(Index({HOST: "../../secret"}).to_bytes())
    with (
        Client(tree.as_uri(), cache_dir=tmp_path / "c") as tw,
        pytest.raises(ServiceError, match="folder answers no"),
    ):
        tw.current_set(HOST)


def test_an_earlier_index_is_refused_by_those_who_saw_a_later_one(
    service: SetService, source: Client, tmp_path: Path
) -> None:
    tree, service.serial = tmp_path / "tree", 5
    publish(source, tree)
    index = tree / INDEX[1:]
    old, service.content, service.serial = index.read_bytes(), config_set(BOTH), 6
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache") as tw:
        assert tw.current_set(HOST) is not None
        publish(source, tree)
        new = tw.current_set(HOST)
        assert new is not None
        assert (new.config_set.digest, tw.current_set(HOST, new.etag)) == (service.digest, None)
    stripped = dataclasses.replace(Index.from_bytes(old), served={}).to_bytes()
    lied = dataclasses.replace(Index.from_bytes(old), served=Index.from_bytes(index.read_bytes()).served)
    refused = {old: "earlier config set", stripped: "must sign when", lied.to_bytes(): "sent"}
    for content, says in refused.items():
        index.write_bytes(content)
        with Client(tree.as_uri(), cache_dir=tmp_path / "cache") as tw:
            for etag in (None, new.etag, f'"{Index.from_bytes(old).sets[HOST]}"'):
                with pytest.raises(TrustError, match=says):
                    tw.current_set(HOST, etag)


class Overtaken(Listing):
    """A publisher; ``meanwhile`` happens between its look at the set and its index."""

    meanwhile: Callable[[], object]

    def artifacts(self, *given: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        found = super().artifacts(*given, **options)
        self.meanwhile()
        return found


def test_a_publisher_that_was_overtaken_leaves_the_later_set(
    service: SetService, source: Client, tmp_path: Path
) -> None:
    tree, service.serial = tmp_path / "tree", 5

    def overtake() -> None:
        service.content, service.serial = config_set(BOTH), 6
        assert publish(source, tree).kept == []

    with Overtaken(service.url, cache_dir=tmp_path / "slow") as slow:
        slow.meanwhile = overtake
        written = publish(slow, tree)
    assert (written.kept, written.served) == ([HOST], {HOST: service.digest})
    assert Index.from_bytes((tree / INDEX[1:]).read_bytes()).served[HOST].startswith("6 ")
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache") as tw:
        found = tw.current_set(HOST)
        assert found is not None
        assert found.config_set.digest == service.digest


def test_a_class_that_an_overtaking_publisher_added_stays(service: SetService, tmp_path: Path) -> None:
    tree, service.serial = tmp_path / "tree", 5

    def overtake() -> None:
        signed = {name: signer(number) for name, number in (("added", 1), ("a stranger's", 2))}
        served = {
            name: f"3 {key.sign(About.SERVED, name, service.digest, '3')}" for name, key in signed.items()
        }
        sets = dict.fromkeys((*signed, "unsigned"), service.digest)
        (tree / INDEX[1:]).parent.mkdir(parents=True)
        (tree / INDEX[1:]).write_bytes(Index(sets, served).to_bytes())

    with Overtaken(service.url, cache_dir=tmp_path / "slow") as slow:
        slow.meanwhile = overtake
        written = publish(slow, tree)
    assert (written.kept, written.served) == ([], dict.fromkeys((HOST, "added"), service.digest))
    index = Index.from_bytes((tree / INDEX[1:]).read_bytes())
    assert (index.sets, index.served["added"][:2]) == (written.served, "3 ")


@pytest.mark.parametrize("forged", ["unsigned", "another key", "another set", "nonsense", "no index"])
def test_a_serial_that_the_service_did_not_sign_keeps_no_tree_back(
    service: SetService, source: Client, tree: Path, forged: str
) -> None:
    index, service.serial = tree / INDEX[1:], 5
    earlier = Index.from_bytes(index.read_bytes())
    service.content = config_set(BOTH)
    other_key, other_set = (
        signer(number).sign(About.SERVED, HOST, digest, "9")
        for number, digest in ((2, earlier.sets[HOST]), (1, service.digest))
    )
    header = {"another key": f"9 {other_key}", "another set": f"9 {other_set}", "nonsense": "9 x\ny"}
    told = dataclasses.replace(
        earlier, served={HOST: header.get(forged, f"9 ed25519:{'0' * 64}:{'0' * 128}")}
    )
    index.write_bytes(b"\xff" if forged == "no index" else told.to_bytes())
    assert publish(source, tree).served == {HOST: service.digest}
    assert Index.from_bytes(index.read_bytes()).served[HOST].startswith("5 ")


def test_publishers_change_the_index_one_after_the_other(source: Client, tree: Path) -> None:
    lock = os.open(tree / ".publishing", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    thread = threading.Thread(target=publish, args=(source, tree))
    (tree / INDEX[1:]).unlink()
    thread.start()
    try:
        thread.join(0.5)
        assert not (tree / INDEX[1:]).exists()
    finally:
        os.close(lock)
        thread.join(30.0)
    assert (tree / INDEX[1:]).exists()


def test_several_users_publish_to_a_folder(
    source: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = os.open, list[bool]()

    def of_another(path: Any, flags: int, *mode: int) -> int:
        if Path(path).name == ".publishing" and flags & os.O_ACCMODE != os.O_RDONLY:
            asked.append(True)
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *mode)

    (tree / INDEX[1:]).unlink()
    monkeypatch.setattr(publishing.os, "open", of_another)
    assert publish(source, tree).served
    assert (asked, (tree / INDEX[1:]).exists()) == ([True], True)


def test_a_folder_that_cannot_be_written_is_told_before_kernels_are_fetched(
    service: SetService, source: Client, tmp_path: Path
) -> None:
    (tmp_path / "tree/.publishing").mkdir(parents=True)
    with pytest.raises(TilewrightError, match=r"tree/\.publishing: Is a directory; use a folder"):
        publish(source, tmp_path / "tree")
    assert not [asked for asked in service.asked if "artifacts" in asked]


def test_nothing_more_of_a_tree_is_asked_for_after_a_failure(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.2)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    asked, send = list[str](), transport.send

    def fails(connection: Any, call: Call[Any], *options: Any) -> Any:
        asked.append(call.path)
        if call.path == kernel_path("0" * 64):
            raise MemoryError
        return send(connection, call, *options)

    monkeypatch.setattr(transport, "send", fails)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Slow, directory=str(tree)))
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    wanted = [f"{number:064x}" for number in range(2000)]
    with Client(f"http://127.0.0.1:{server.server_address[1]}", cache_dir=tmp_path / "c") as tw:
        fetcher = Fetcher(tw.url, {}, tw.service_key)
        fetcher.published = True
        try:
            with pytest.raises(MemoryError):
                fetcher.bundle("sha256:" + "0" * 64, wanted, everything=False)
            time.sleep(1.0)
            assert len(asked) <= 16, "at most one more by each of the threads"
        finally:
            server.shutdown()
            server.server_close()


@pytest.mark.long
def test_a_process_ends_while_kernels_of_a_tree_do_not_come(tree: Path, tmp_path: Path) -> None:
    class Hanging(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/artifacts"):
                asked.set()
                over.wait(60.0)
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    asked, over = threading.Event(), threading.Event()
    handler = functools.partial(Hanging, directory=str(tree))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    program = (
        "import sys, tilewright; "
        f"tilewright.Client({url!r}, cache_dir={str(tmp_path / 'c')!r}).start('host'); sys.stdin.read()"
    )
    try:
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
            assert asked.wait(30.0)
            began = time.monotonic()
            process.communicate(timeout=60.0)
        took = time.monotonic() - began
    finally:
        over.set()
        server.shutdown()
        server.server_close()
    assert process.returncode == 0
    assert took < 15.0, f"the process ended after {took:.1f} s"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("name", ["index", "kernel"])
@pytest.mark.parametrize("stands_there", [_pipe, _device, _endless, Path.mkdir])
def test_what_is_no_file_of_a_tree_is_neither_waited_for_nor_read(
    source: Client, tree: Path, tmp_path: Path, stands_there: Callable[[Path], None], name: str
) -> None:
    path = tree / (INDEX[1:] if name == "index" else f"artifacts/{KERNEL.digest}")
    path.unlink()
    stands_there(path)
    began = time.monotonic()
    with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
        tw.start("host")
        assert tw.lookup(TUNED).kind == "vendor"
    assert time.monotonic() - began < 5.0
    if stands_there is not Path.mkdir:
        publish(source, tree)
        with Client(tree.as_uri(), cache_dir=tmp_path / "cache", start_timeout=10.0) as tw:
            multiplies(tw.start("host"))


@pytest.mark.parametrize("url", ["file:srv/kernels", "file://host/srv", "file://", "file:///srv/a%00b"])
def test_a_folder_is_named_in_full(url: str) -> None:
    assert default_folder()
    with pytest.raises(InvalidProblem, match="file:///srv/kernels"):
        Client(url)
