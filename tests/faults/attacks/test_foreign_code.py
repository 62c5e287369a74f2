"""Code of others: a shared object whose constructor leaves a mark is smuggled in, and is never loaded."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from api_server import Server, admin_key, environment, finish, start, trust
from signers import signed_export, signer
from typer.testing import CliRunner

from service.cli.main import app
from service.signing import Signer
from tilewright import Artifact, Client, GemmProblem
from tilewright.errors import ServiceError
from tilewright.http.calls import NDJSON
from tilewright.trust import Signature
from tilewright.wire import BestConfigView

PROBLEM = GemmProblem(96, 80, 64, "float32", "nn")
_SOURCE = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open(MARK, O_CREAT | O_WRONLY, 0600)); }
void ENTRY(void) {}
"""


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that tells that the object was loaded."""
    return tmp_path_factory.mktemp("mark") / "code-ran"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that tuned the problem."""
    running = start(tmp_path_factory.mktemp("source"))
    with Client(running.url, timeout=60.0) as client:
        client.tune(PROBLEM, max_trials=3, seed=1)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def exported(source: Server) -> bytes:
    file = io.BytesIO()
    with Client(source.url, timeout=60.0) as client:
        client.export(file)
    return file.getvalue()


def swapped(exported: bytes, mark: Path, folder: Path) -> bytes:
    """The export with another object in the place of the winner's kernel, and a speed-up that beats any."""
    found = [json.loads(line) for line in exported.splitlines()]
    (kernel,) = (line for line in found if line["kind"] == "artifact")
    honest = Artifact.from_bytes(base64.b64decode(kernel["data"]))
    evil = dataclasses.replace(honest, binary=compiled(honest.plan.entry, mark, folder)).to_bytes()
    digest = hashlib.sha256(evil).hexdigest()
    for line in found:
        if line["kind"] == "artifact":
            line |= {"digest": digest, "data": base64.b64encode(evil).decode()}
        elif line["kind"] == "best":
            line |= {"artifact": digest, "speedup": 99.0, "speedup_low": 98.0, "speedup_high": 100.0}
            line["created"] = "2100-01-01T00:00:00+00:00"
            line["timing"].pop("disturbed", None)  # as on a machine with nothing else to do
    return b"".join(json.dumps(line).encode() + b"\n" for line in found)


def compiled(entry: str, mark: Path, folder: Path) -> bytes:
    library = folder / "evil.so"
    defines = f'-DMARK="{mark}"', f"-DENTRY={entry}"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", *defines, "-o", library]
    subprocess.run(command, input=_SOURCE.encode(), check=True)
    return library.read_bytes()


def unsigned(content: bytes) -> bytes:
    return b"".join(line for line in content.splitlines(keepends=True) if b'"signature"' not in line)


def signed(liar: Signer, content: bytes) -> bytes:
    """The lines with one signature over all of them, in place of those there are."""
    return signed_export(liar, unsigned(content))


def signer_of(exported: bytes) -> str:
    """The key that signed an export."""
    return Signature.parse(json.loads(exported.splitlines()[-1])["signature"]).key


def operands() -> list[Any]:
    return [np.random.default_rng(1).random(shape, "float32") for shape in (PROBLEM.a_shape, PROBLEM.b_shape)]


def products_are_right(url: str, folder: Path, **options: Any) -> None:
    """What the service and a client compute."""
    a, b = operands()
    with Client(url, timeout=60.0, cache_dir=folder, **options) as client:
        np.testing.assert_allclose(client.gemm(a, b).d, a @ b, rtol=1e-4)
        np.testing.assert_allclose(client.start("host").matmul(a, b), a @ b, rtol=1e-4)


@pytest.mark.long
def test_a_winner_that_was_raced_here_keeps_its_place(
    source: Server, exported: bytes, mark: Path, tmp_path: Path
) -> None:
    """The attack as it was found, with a speed-up that is made up: any user of the machine of a service with
    its default settings; then who may write its database, and the holder of a key that it trusts."""
    content, cache = swapped(exported, mark, tmp_path), tmp_path / "cache"
    with Client(source.url, timeout=60.0) as client:
        device_class = client.devices()[0].device_class
        before = client.best_config(PROBLEM, device_class=device_class)
    headers = {"Content-Type": NDJSON}
    answer = httpx2.post(f"{source.url}/trials", content=content, headers=headers, timeout=60.0)
    try:
        products_are_right(source.url, cache)
    finally:
        assert not mark.exists(), "the constructor ran"
    assert answer.status_code == 401

    file = tmp_path / "swapped.ndjson"
    file.write_bytes(unsigned(content))
    done = CliRunner().invoke(app, ["import", str(file), "--json"], env=environment(source.folder))
    assert (done.exit_code, json.loads(done.stdout)["dropped"]) == (0, 1)
    products_are_right(source.url, cache)

    liar, key = signer(9), admin_key(source)
    trust(source, liar.public_key)
    with Client(source.url, timeout=60.0, key=key) as client:
        merged = client.import_results(io.BytesIO(signed(liar, content)))
        assert (merged.trusted, merged.added.artifacts, merged.added.best) == (True, 1, 0)
        products_are_right(source.url, cache, key=key)
        assert client.best_config(PROBLEM, device_class=device_class) == before
        client.delete_import(merged.import_id or "")
        assert client.best_config(PROBLEM, device_class=device_class) == before
    assert not mark.exists(), "the constructor ran"


@pytest.mark.long
def test_an_admin_who_imports_it_brings_configs_in_and_no_code(
    exported: bytes, mark: Path, tmp_path: Path
) -> None:
    """The file keeps the signatures of a service that is trusted, and the speed-up is made up. What is served
    in the end was built, checked and raced here."""
    (tmp_path / "service").mkdir()
    server, content = start(tmp_path / "service"), swapped(exported, mark, tmp_path)
    trust(server, signer_of(exported))
    key = admin_key(server)
    try:
        with Client(server.url, timeout=60.0, key=key) as client:
            device_class = client.devices()[0].device_class
            answer = client.import_results(io.BytesIO(content))
            assert (answer.trusted, answer.added.artifacts, answer.added.best) == (False, 0, 0)
            assert "changed after they were signed" in answer.reason
            assert (answer.dropped, answer.waiting) == (1, 1)
            (waits,) = client.get_import(answer.import_id or "").waits
            assert waits.speedup.value == 99.0  # as another store says
            products_are_right(server.url, tmp_path / "cache", key=key)
            won = raced_here(client, device_class)
            assert won.import_id is None
            assert won.speedup.value < 99.0
            assert won.verdict == "disturbed" or client.get_import(answer.import_id or "").waits == []
            assert str(mark).encode() not in client.artifact(won.artifact.digest).binary
        products_are_right(server.url, tmp_path / "new-cache", key=key)
        assert not mark.exists(), "the constructor ran"
    finally:
        finish(server)


def raced_here(client: Client, device_class: str) -> BestConfigView:
    """The winner of the problem, once the idle device built and raced what was imported."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        with contextlib.suppress(ServiceError):
            return client.best_config(PROBLEM, device_class=device_class)
        time.sleep(0.2)
    raise AssertionError("nothing was raced")


def test_a_trusted_key_that_lied_is_undone_by_one_deletion(
    exported: bytes, mark: Path, tmp_path: Path
) -> None:
    """The object comes from the holder of a key that is trusted: it runs, and nothing of it stays."""
    (tmp_path / "service").mkdir()
    server, liar = start(tmp_path / "service", retune_stale=False), signer(9)
    trust(server, liar.public_key)
    key = admin_key(server)
    content = signed(liar, swapped(exported, mark, tmp_path))
    a, b = operands()
    try:
        with Client(server.url, timeout=60.0, key=key, cache_dir=tmp_path / "cache") as client:
            device_class = client.devices()[0].device_class
            answer = client.import_results(io.BytesIO(content))
            assert (answer.trusted, answer.added.best) == (True, 1)
            assert client.best_config(PROBLEM, device_class=device_class).import_id == answer.import_id
            found = client.current_set(device_class)
            assert found is not None
            client.pin(device_class, found.config_set.digest)
            client.start("host").matmul(a, b)
            assert client.stats == {"tuned: exact": 1}
            assert mark.exists(), "so that the other tests would see it"
            mark.unlink()
            assert client.delete_import(answer.import_id or "").artifacts == 1
            assert client.refresh(5.0)
            np.testing.assert_allclose(client.matmul(a, b), a @ b, rtol=1e-4)
            assert client.stats["vendor: no tuned kernel"] == 1
            np.testing.assert_allclose(client.gemm(a, b).d, a @ b, rtol=1e-4)
            assert client.config_list(device_class=device_class).items == []
            assert client.imports().items == []
        products_are_right(server.url, tmp_path / "cache", key=key)
        assert not mark.exists(), "the constructor ran again"
    finally:
        finish(server)
