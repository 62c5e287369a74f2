"""A client loads what the key of its service signed: from the network, from the cache, and offline."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving
from signers import signer

from tilewright import AsyncClient, Client, GemmProblem
from tilewright.errors import ArtifactError, InvalidProblem, ServiceUnreachable, TrustError
from tilewright.http.calls import checked_url
from tilewright.launch import local_device
from tilewright.schema.config_set import ConfigSet
from tilewright.trust import About, ServiceKey

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
OTHER = artifact_of(config_of(kc=48, mc=32, nc=64), TUNED)
HOST = local_device.device_class(local_device.HOST).id


@pytest.fixture
def service() -> Iterator[SetService]:
    with serving(SetService(config_set([entry(TUNED, KERNEL)]), [KERNEL, OTHER])) as running:
        yield running


def runs_as(tw: Client) -> str:
    """How a product runs, which is right in any case."""
    a, b = (np.random.default_rng(1).random(shape, "float32") for shape in (TUNED.a_shape, TUNED.b_shape))
    before = tw.stats
    np.testing.assert_allclose(tw.start("host").matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
    (reason,) = tw.stats - before
    return reason


def test_the_first_key_is_pinned_and_another_one_is_refused(
    service: SetService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert runs_as(tw) == "tuned: exact"
        assert tw.service_key.known == signer(1).public_key
        service.signs_with, service.content = 2, config_set([entry(TUNED, OTHER)])
        assert not tw.refresh(5.0)
        assert runs_as(tw) == "tuned: exact"  # with the set that the first key signed
        assert not tw.refresh(5.0)
        assert "the key to trust is" in caplog.text
        assert caplog.text.count("ask its operator") == 1
        with pytest.raises(TrustError, match=signer(2).public_key):
            tw.current_set(HOST)
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.start("host").lookup(TUNED).entry.artifact == KERNEL.digest  # type: ignore[union-attr]
    with Client(service.url, cache_dir=tmp_path, trust=signer(2).public_key) as tw:
        assert tw.start("host").lookup(TUNED).entry.artifact == OTHER.digest  # type: ignore[union-attr]


def test_a_given_key_lets_no_other_in(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path, trust=signer(3).public_key) as tw:
        assert runs_as(tw) == "vendor: no config set yet"
        assert "GET /config-sets/current" in service.asked
        assert not [one for one in service.asked if "/bundle" in one]
    service.signs_with = 3
    with Client(service.url, cache_dir=tmp_path, trust=signer(3).public_key) as tw:
        assert runs_as(tw) == "tuned: exact"
    assert [one for one in service.asked if "/bundle" in one]  # so the first client would have been seen


def test_what_nobody_signed_is_not_loaded(service: SetService, tmp_path: Path) -> None:
    service.mode = "unsigned"
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert runs_as(tw) == "vendor: no config set yet"
        with pytest.raises(TrustError, match="signs nothing"):
            tw.config_set(service.digest)
    with Client(service.url, cache_dir=tmp_path, pin=service.digest) as tw:
        assert runs_as(tw) == "vendor: no config set yet"


def kept_set(folder: Path) -> Path:
    (file,) = (folder / "v1" / "named").iterdir()
    return file


def planted(folder: Path, signature: str, *entries: dict[str, Any]) -> None:
    """Put another set into a cache, as somebody would who may write there."""
    content = config_set(entries)
    kept_set(folder).write_bytes(f"{signature}\n".encode() + content)


def test_a_set_that_was_planted_in_the_cache_is_not_loaded(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start("host").close()
    (tmp_path / "v1" / OTHER.digest[:2]).mkdir(exist_ok=True)
    (tmp_path / "v1" / OTHER.digest[:2] / OTHER.digest).write_bytes(OTHER.to_bytes())
    forged = ConfigSet.from_bytes(config_set([entry(TUNED, OTHER)]))
    by_another = signer(2).sign(About.CONFIG_SET, HOST, forged.digest)
    for signature in ("", service.signature, by_another):
        planted(tmp_path, signature, entry(TUNED, OTHER))
        with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
            assert runs_as(tw) == "vendor: no config set yet"
    planted(tmp_path, signer(1).sign(About.CONFIG_SET, HOST, forged.digest), entry(TUNED, OTHER))
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        assert runs_as(tw) == "tuned: exact"  # so that the refusals above are due to the signatures


def test_a_cache_without_signatures_is_fetched_again(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start("host").close()
    assert service.content is not None
    kept_set(tmp_path).write_bytes(service.digest.encode() + b"\n" + service.content)  # as releases before
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        assert runs_as(tw) == "vendor: no config set yet"
    service.asked.clear()
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert runs_as(tw) == "tuned: exact"
    assert service.asked[0] == "GET /config-sets/current"
    assert kept_set(tmp_path).read_bytes().startswith(service.signature.encode())


def test_a_cache_whose_key_was_forgotten_is_fetched_again(service: SetService, tmp_path: Path) -> None:
    Client(service.url, cache_dir=tmp_path).start("host").close()
    (key,) = (tmp_path / "keys").iterdir()
    key.unlink()
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        assert runs_as(tw) == "vendor: no config set yet"
    service.signs_with = 2
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert runs_as(tw) == "tuned: exact"
        assert tw.service_key.known == signer(2).public_key


@pytest.mark.parametrize("offline", [True, False])
def test_while_the_file_of_the_first_key_is_damaged_the_vendor_library_runs_and_the_log_says_why(
    service: SetService, tmp_path: Path, caplog: pytest.LogCaptureFixture, offline: bool
) -> None:
    """Every start took the next key, without a word."""
    Client(service.url, cache_dir=tmp_path).start("host").close()
    (key,) = (tmp_path / "keys").iterdir()
    whole = key.read_bytes()
    key.write_bytes(whole[:40])
    for signs_with in (2, 3):
        service.signs_with, service.content = signs_with, config_set([entry(TUNED, OTHER)])
        caplog.clear()
        with Client(service.url, cache_dir=tmp_path, offline=offline) as tw:
            assert runs_as(tw) == "vendor: no config set yet"
            assert not tw.refresh(5.0)
        assert caplog.text.count(f"{key} should hold the first key of {service.url}") == 1
    key.write_bytes(whole)
    with Client(service.url, cache_dir=tmp_path, offline=offline) as tw:
        assert runs_as(tw) == "tuned: exact"


def test_an_earlier_set_is_refused_where_it_comes_as_that_of_another_class(
    service: SetService, tmp_path: Path
) -> None:
    earlier, service.content, service.serial = service.content, config_set([entry(TUNED, OTHER)]), 6
    with Client(service.url, cache_dir=tmp_path, trust=signer(1).public_key) as tw:
        assert tw.current_set(HOST) is not None
        service.content, service.serial = earlier, 5
        with pytest.raises(ArtifactError, match=f"a config set of {HOST} was sent for another"):
            tw.current_set("another")


def test_the_async_client_takes_a_key_too(service: SetService) -> None:
    async def ask(number: int) -> str:
        async with AsyncClient(service.url, trust=signer(number).public_key) as tw:
            answer = await tw.current_set(HOST)
        assert answer is not None
        return answer.config_set.digest

    assert asyncio.run(ask(1)) == service.digest
    with pytest.raises(TrustError, match="the key to trust is"):
        asyncio.run(ask(2))


def test_a_kernel_of_another_set_is_refused(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.artifacts(service.digest, [KERNEL.digest]).keys() == {KERNEL.digest}
        with pytest.raises(ArtifactError, match="not of that set"):
            tw.artifacts(service.digest, [OTHER.digest])


def test_the_password_of_a_url_is_sent_and_stands_in_no_message_and_no_file(
    service: SetService, tmp_path: Path
) -> None:
    url = service.url.replace("//", "//me:se%2Fcret@")
    with Client(url, cache_dir=tmp_path) as tw:
        assert runs_as(tw) == "tuned: exact"
        assert service.keys == {f"Basic {base64.b64encode(b'me:se/cret').decode()}"}
        service.signs_with = 2
        with pytest.raises(TrustError, match=service.url) as other_key:
            tw.current_set(HOST)
    dead = url.rpartition(":")[0] + ":1"

    async def ask() -> None:
        await AsyncClient(dead).current_set(HOST)

    told = [str(other_key.value), tw.url]
    for asks in (lambda: Client(dead).current_set(HOST), lambda: asyncio.run(ask())):
        with pytest.raises(ServiceUnreachable, match=r"no answer from http://127\.0\.0\.1:1") as unreachable:
            asks()
        told.append(str(unreachable.value))
    told += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in told if "cret" in text]


def test_the_async_client_sends_the_user_of_a_url(service: SetService) -> None:
    async def ask() -> str:
        url = service.url.replace("//", "//me:secret@")
        async with AsyncClient(url, trust=signer(1).public_key) as tw:
            return (await tw.current_set(HOST)).config_set.digest

    assert asyncio.run(ask()) == service.digest
    assert service.keys == {f"Basic {base64.b64encode(b'me:secret').decode()}"}


def test_the_key_that_was_kept_with_a_password_is_kept_without_it(
    service: SetService, tmp_path: Path
) -> None:
    url = service.url.replace("//", "//me:secret@")
    ServiceKey(url, tmp_path)._keep(signer(2).public_key)
    with Client(url, cache_dir=tmp_path) as tw:
        assert tw.service_key.known == signer(2).public_key
        with pytest.raises(TrustError, match="the key to trust is"):
            tw.current_set(HOST)
    assert [path.read_text() for path in (tmp_path / "keys").iterdir()] == [
        f"{signer(2).public_key} {service.url}\n"
    ]


@pytest.mark.parametrize("url", ["http://@gpu:8080", "http://:@gpu:8080/"])
def test_an_empty_user_of_a_url_takes_no_key_its_place(url: str) -> None:
    assert checked_url(url, "tw_key") == ("http://gpu:8080", {"Authorization": "Bearer tw_key"})


def test_a_user_and_a_key_are_refused_together() -> None:
    with pytest.raises(InvalidProblem, match="remove the user from the URL, or the key"):
        Client("http://me:secret@gpu", key="tw_key")


def test_bytes_of_a_password_are_sent_as_they_are() -> None:
    _, headers = checked_url("http://me:p%FFw@gpu", None)
    assert headers == {"Authorization": f"Basic {base64.b64encode(b'me:p' + bytes([255]) + b'w').decode()}"}


@pytest.mark.parametrize(
    "url",
    [
        "me:secret@gpu:8080",
        "http://me:secret/2@gpu",
        "http://me:1234/secret@gpu",
        "http://me:secret#2@gpu",
        "http://me:secret\udcff@gpu",
    ],
)
def test_the_password_of_what_is_no_url_is_not_told(url: str) -> None:
    with pytest.raises(InvalidProblem, match=r"got '\*\*\*@gpu") as refused:
        Client(url)
    assert "secret" not in str(refused.value)
