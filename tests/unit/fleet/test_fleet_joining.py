"""What keeps a service or a node from a fleet, each in one sentence; none of this needs Ray."""

from __future__ import annotations

import re
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from typer.testing import CliRunner

from service.cli import main
from service.errors import Kind, Refusal
from service.fleet import cluster
from service.fleet.engine import RayEngine, RemoteDevice
from service.settings import Settings
from tilewright import __version__
from tilewright.errors import DeviceUnavailable
from tuner.workers.process import WorkerTimeout


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceUnavailable, match=r"pip install 'tilewright-service\[fleet\]'"):
        cluster.join("127.0.0.1:1", "test")


class Refused(Exception):
    pass


def _ray_that(
    monkeypatch: pytest.MonkeyPatch, error: Exception, at_first: type[Exception] = TimeoutError
) -> None:
    def init(*_: object, **__: object) -> None:
        raise error

    def client(**_: object) -> None:
        raise at_first

    told = types.SimpleNamespace(AuthenticationError=Refused, RayError=TimeoutError)
    raylet = types.SimpleNamespace(GcsClient=client)
    ray = types.SimpleNamespace(init=init, __version__="2.60.0", exceptions=told, _raylet=raylet)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize("address", ["", "head", "head:", "auto", "ray://head"])
def test_an_address_has_a_port(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    _ray_that(monkeypatch, AssertionError("not asked"))
    with pytest.raises(DeviceUnavailable, match="--ray-address must be host:port"):
        cluster.join(address, "test")


def test_no_head_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _ray_that(monkeypatch, AssertionError("not asked"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DeviceUnavailable, match=f"no Ray head answers at 127.0.0.1:{port}"):
        cluster.join(f"127.0.0.1:{port}", "test")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Version mismatch: The cluster was started with:\n    Ray: 2.9.3",
            "another version than Ray 2.60.0",
        ),
        ("Can't find a `node_ip_address.json` file", "this machine is no node of the Ray cluster"),
    ],
)
def test_a_cluster_that_does_not_take_this_machine(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    _ray_that(monkeypatch, RuntimeError(said))
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        pytest.raises(DeviceUnavailable, match=told) as caught,
    ):
        cluster.join(f"127.0.0.1:{head.getsockname()[1]}", "test")
    assert "\n" not in str(caught.value)


def test_a_refused_token_is_told_at_the_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    _ray_that(monkeypatch, AssertionError("not asked"), at_first=Refused)
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        pytest.raises(DeviceUnavailable, match="set RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN"),
    ):
        cluster.join(f"127.0.0.1:{head.getsockname()[1]}", "test")


def test_a_probe_finds_this_release() -> None:
    assert cluster.why_refused("n1", {"version": __version__}) is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"missing": "No module named 'tilewright'"}, f"has no tilewright .*; install {__version__} there"),
        ({"version": "0.0.9"}, f"has tilewright 0.0.9; install {__version__} there"),
    ],
)
def test_a_node_is_refused_for(found: dict[str, str], told: str) -> None:
    reason = cluster.why_refused("n1", found)
    assert reason is not None
    assert re.match(f"node n1 {told}", reason)


def test_devices_are_not_named_for_a_fleet() -> None:
    engine = RayEngine(Settings(engine="ray", ray_address="127.0.0.1:1", devices=("host",)))
    with pytest.raises(DeviceUnavailable, match="--device is for --engine local"):
        engine.open()


def test_without_a_node_a_request_waits() -> None:
    engine = RayEngine(Settings(engine="ray", ray_address="127.0.0.1:1"))
    with pytest.raises(Refusal, match="no device has joined yet") as caught:
        engine.bench(None)
    assert caught.value.kind is Kind.NOT_READY


def test_what_a_look_could_not_tell_is_told_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sent = RayEngine(Settings(engine="ray", ray_address="127.0.0.1:1")), []

    def call(header: dict[str, Any], **_: float) -> types.SimpleNamespace:
        sent.append((header["cancel"], header["release"]))
        if len(sent) == 1:
            engine.cancel("asked meanwhile")
            raise WorkerTimeout("no answer")
        return types.SimpleNamespace(header={"devices": [], "refused": [], "compilers": [], "joining": False})

    monkeypatch.setattr(engine, "_watcher", types.SimpleNamespace(call=call))
    engine.cancel("job")
    engine._release.add("n1/host")
    with pytest.raises(WorkerTimeout):
        engine._look()
    engine._look()
    engine._look()
    assert sent == [(["job"], ["n1/host"]), (["asked meanwhile", "job"], ["n1/host"]), ([], [])]


def test_a_gemm_is_refused_by_the_name_of_its_node() -> None:
    device = RemoteDevice("n1/host", samples.HOST, "driver", {})
    with pytest.raises(Refusal, match="n1/host is on a node of the fleet"):
        device.gemm()


def test_serve_ends_with_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    given = ["serve", "--engine", "ray", "--ray-address", "nowhere", "--port", "0"]
    ended = CliRunner().invoke(main.app, given)
    assert ended.exit_code == 1
    assert "pip install" in ended.output or "must be host:port" in ended.output
