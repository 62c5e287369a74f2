"""What a service that nobody trusts costs a client: its answers are not parsed before their signature is
checked, and are gone once they are refused."""

from __future__ import annotations

import contextlib
import gc
import json
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_samples import artifact_of, config_of
from set_server import config_set, entry
from signers import signer

from tilewright import Client, GemmProblem
from tilewright.errors import ArtifactError, ServiceUnreachable, TilewrightError
from tilewright.http.calls import Call, Reply
from tilewright.http.fetch import Fetcher
from tilewright.http.sets import Index, SetAnswer
from tilewright.launch import local_device
from tilewright.schema.config_set import ConfigSet, content_digest
from tilewright.trust import HEADER, About, ServiceKey

URL = "http://127.0.0.1:9"
HOST = local_device.device_class(local_device.HOST).id
TUNED = GemmProblem(96, 80, 64, "float32", "nn")
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
DIGEST = "sha256:" + "a" * 64
LISTS = b"[" + b"[]," * 2**20 + b"[]]"  # 3 MiB, and 70 MiB once it is parsed
MOST_BYTES = 3 * len(LISTS)


def bomb(digest: str = DIGEST) -> bytes:
    return f'{{"digest":"{digest}","device_class":"{HOST}","x":'.encode() + LISTS + b"}"


def signature(number: int, digest: str = DIGEST) -> str:
    return signer(number).sign(About.CONFIG_SET, HOST, digest)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("signed", "refusal"),
    [
        ("", "signs nothing"),
        ("ed25519:" + "0" * 64 + ":" + "0" * 128, "the key to trust is"),
        (signature(2), "the key to trust is"),
        (signature(1, "sha256:" + "b" * 64), "not what it signed"),
        (signature(1), "too many"),  # of another content, or by the operator of a service
    ],
)
def test_an_answer_costs_little_before_its_signature_is_checked(
    signed: str, refusal: str, tmp_path: Path
) -> None:
    key, content = ServiceKey(URL, tmp_path, signer(1).public_key), bomb()
    with little_memory(), pytest.raises(TilewrightError, match=refusal):
        SetAnswer.read(Reply(200, {HEADER.lower(): signed}, content), key)


def test_an_index_is_small() -> None:
    content = b'{"published":1,"sets":{},"x":' + LISTS + b"}"
    with little_memory(), pytest.raises(ArtifactError, match="at most 1048576 bytes"):
        Index.from_bytes(content)


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_of_the_cache_costs_little_too(number: int, tmp_path: Path) -> None:
    with Client(URL, cache_dir=tmp_path, offline=True, trust=signer(1).public_key) as tw:
        tw._local.refresher(local_device.HOST)._disk.name(
            f"{URL} {HOST} current", signature(number).encode() + b"\n" + bomb()
        )
    with Client(URL, cache_dir=tmp_path, offline=True, trust=signer(1).public_key) as tw, little_memory():
        assert tw.start("host").lookup(TUNED).kind == "vendor"


def test_an_unsound_set_teaches_no_key_and_a_sound_one_does(tmp_path: Path) -> None:
    key, content = ServiceKey(URL, tmp_path), config_set([entry(TUNED, KERNEL)])
    digest = ConfigSet.from_bytes(content).digest
    headers = {HEADER.lower(): signature(1, digest)}
    for unsound in (content.replace(b'"median_us": 2.0', b'"median_us": 1.0'), bomb(digest)):
        with pytest.raises(ArtifactError):
            SetAnswer.read(Reply(200, headers, unsound), key)
    assert key.known is None
    SetAnswer.read(Reply(200, headers, content), key)
    assert key.known == signer(1).public_key


def renamed(content: bytes, name: str, value: str) -> bytes:
    """A set that says otherwise first: JSON takes the last of two values."""
    return f'{{"{name}": "{value}", '.encode() + content[1:]


def test_the_names_at_the_head_are_those_of_the_set(tmp_path: Path) -> None:
    key, content = ServiceKey(URL, tmp_path, signer(1).public_key), config_set([entry(TUNED, KERNEL)])
    digest = ConfigSet.from_bytes(content).digest
    for name, value, signed in (
        ("device_class", "another", signer(1).sign(About.CONFIG_SET, "another", digest)),
        ("digest", DIGEST, signature(1)),
    ):
        with pytest.raises(ArtifactError, match="two device classes or digests"):
            SetAnswer.read(Reply(200, {HEADER.lower(): signed}, renamed(content, name, value)), key)
    with pytest.raises(ArtifactError, match="names no device class"):
        SetAnswer.read(Reply(200, {HEADER.lower(): signature(1)}, b"<html>"), key)


def test_a_large_set_is_read() -> None:
    one = entry(TUNED, KERNEL)
    raw = json.loads(config_set([one]))
    raw["entries"] = [one] * 3000
    raw["digest"] = content_digest(raw)
    content = json.dumps(raw, separators=(",", ":")).encode()
    assert len(content) > 2 * 2**20
    assert len(ConfigSet.from_bytes(content).entries) == 3000


def ended(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(condition())


def test_an_answer_that_was_refused_is_gone_without_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parsed:
        """Of an answer."""

    seen = list[weakref.ref[Parsed]]()

    def connected(*_: object) -> None:
        parsed = Parsed()
        seen.append(weakref.ref(parsed))
        raise ServiceUnreachable("refused")

    fetcher = Fetcher(URL, {}, ServiceKey(URL, tmp_path))
    monkeypatch.setattr(fetcher, "_connected", connected)
    gc.disable()
    try:
        with contextlib.suppress(ServiceUnreachable):
            fetcher._send(Call("GET", "/health", lambda reply: reply))
        assert ended(lambda: seen[0]() is None)
    finally:
        gc.enable()
