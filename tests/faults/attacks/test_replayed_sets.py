"""A client takes no earlier config set than it has seen: the service signs a serial with what it serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving
from signers import signer

from tilewright import Client, GemmProblem
from tilewright.errors import TrustError
from tilewright.launch import local_device
from tilewright.trust import About, ServiceKey

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
OLD = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
NEW = artifact_of(config_of(kc=48, mc=32, nc=64), TUNED)
HOST = local_device.device_class(local_device.HOST).id
OLD_SET, NEW_SET = (config_set([entry(TUNED, kernel)]) for kernel in (OLD, NEW))
OLD_SERIAL, NEW_SERIAL = 1_700_000_000, 1_700_000_300


@pytest.fixture
def service() -> Iterator[SetService]:
    """It has gone on from the old set to the new one."""
    with serving(SetService(NEW_SET, [OLD, NEW], serial=NEW_SERIAL)) as running:
        yield running


def kernel_of(tw: Client) -> str | None:
    found = tw.lookup(TUNED).entry
    return found.artifact if found else None


def client_of(service: SetService, folder: Path) -> Client:
    return Client(service.url, cache_dir=folder).start("host")


def replay_the_old_set(service: SetService) -> None:
    """What a proxy that kept the answer of then would send."""
    service.content, service.serial = OLD_SET, OLD_SERIAL


def test_a_set_that_was_replayed_is_refused(
    service: SetService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(service, tmp_path) as tw:
        assert kernel_of(tw) == NEW.digest
        replay_the_old_set(service)
        assert not tw.refresh(5.0)
        assert kernel_of(tw) == NEW.digest
        assert "an earlier config set" in caplog.text
        with pytest.raises(TrustError, match="earlier"):
            tw.current_set(HOST)


def test_other_processes_and_later_ones_refuse_it_too(service: SetService, tmp_path: Path) -> None:
    with Client(service.url, cache_dir=tmp_path) as earlier:
        with client_of(service, tmp_path):
            pass
        replay_the_old_set(service)
        with pytest.raises(TrustError, match="earlier"):
            earlier.current_set(HOST)
    for file in (tmp_path / "v1" / "named").iterdir():
        file.unlink()  # a process that has no set yet
    with client_of(service, tmp_path) as tw:
        assert tw.lookup(TUNED).kind == "vendor"


def test_where_nothing_can_be_written_a_process_remembers(service: SetService, tmp_path: Path) -> None:
    (tmp_path / "served").write_text("not a folder")
    with Client(service.url, cache_dir=tmp_path) as tw:
        tw.current_set(HOST)
        replay_the_old_set(service)
        with pytest.raises(TrustError, match="earlier"):
            tw.current_set(HOST)


@pytest.mark.parametrize("how", ["its operator pins it", "the file is deleted", "another class"])
def test_going_back_on_purpose_is_possible(service: SetService, tmp_path: Path, how: str) -> None:
    with client_of(service, tmp_path):
        pass
    replay_the_old_set(service)
    if how == "its operator pins it":
        service.serial = NEW_SERIAL + 1
    elif how == "the file is deleted":
        (file,) = (tmp_path / "served").iterdir()
        assert file.name.endswith(f".{NEW_SERIAL}")
        file.unlink()
    else:
        (file,) = (tmp_path / "served").iterdir()
        file.rename(file.with_name("0" * 32 + f".{NEW_SERIAL}"))
    with client_of(service, tmp_path) as tw:
        assert tw.refresh(5.0)
        assert kernel_of(tw) == OLD.digest


def test_a_pinned_set_may_be_of_any_age(service: SetService, tmp_path: Path) -> None:
    with client_of(service, tmp_path):
        pass
    replay_the_old_set(service)
    with Client(service.url, cache_dir=tmp_path, pin=service.digest).start("host") as tw:
        assert kernel_of(tw) == OLD.digest


@pytest.mark.parametrize("told", ["none", "no number", "other set", "other key", "other serial", "too long"])
def test_a_serial_that_is_not_signed_is_refused(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    with client_of(service, tmp_path):
        pass
    served, old = service.served, dataclasses.replace(service, content=OLD_SET, serial=OLD_SERIAL)
    signed = old.served.partition(" ")[2]
    headers = {
        "none": "",
        "no number": f"+{NEW_SERIAL} {signed}",
        "other set": served,
        "other key": f"9 {signer(2).sign(About.SERVED, HOST, old.digest, '9')}",
        "other serial": f"{NEW_SERIAL} {signed}",
        "too long": f"{'9' * 30} {signer(1).sign(About.SERVED, HOST, old.digest, '9' * 30)}",
    }
    replay_the_old_set(service)
    monkeypatch.setattr(SetService, "served", headers[told])
    with Client(service.url, cache_dir=tmp_path) as tw, pytest.raises(TrustError):
        tw.current_set(HOST)


@pytest.mark.parametrize("mode", ["tree", "file"])
def test_no_tree_stands_in_for_a_service(service: SetService, tmp_path: Path, mode: str) -> None:
    with client_of(service, tmp_path):
        pass
    replay_the_old_set(service)
    service.mode = mode
    with Client(service.url, cache_dir=tmp_path) as tw, pytest.raises(TrustError, match="must sign when"):
        tw.current_set(HOST)


def test_a_newer_set_that_came_meanwhile_does_not_make_an_answer_old(tmp_path: Path) -> None:
    slow, quick = ServiceKey("http://x", tmp_path), ServiceKey("http://x", tmp_path)
    old, new = (SetService(content, [], serial=n) for content, n in ((OLD_SET, 5), (NEW_SET, 6)))
    asked_at = slow.newest_served(HOST)
    quick.check_served(new.served, HOST, new.digest, quick.newest_served(HOST))
    slow.check_served(old.served, HOST, old.digest, asked_at)
    for key in (slow, quick, ServiceKey("http://x", tmp_path)):
        with pytest.raises(TrustError, match="earlier"):
            key.check_served(old.served, HOST, old.digest, key.newest_served(HOST))


def test_an_older_release_serves_clients_that_never_saw_a_serial(service: SetService, tmp_path: Path) -> None:
    service.serial = None
    with client_of(service, tmp_path) as tw:
        assert kernel_of(tw) == NEW.digest
        service.content = OLD_SET
        assert tw.refresh(5.0)
        service.serial = NEW_SERIAL
        service.content = NEW_SET
        assert tw.refresh(5.0)
        service.serial, service.content = None, OLD_SET
        assert not tw.refresh(5.0), "no way around it by leaving it out"
        assert kernel_of(tw) == NEW.digest


def test_files_of_others_count_for_nothing(service: SetService, tmp_path: Path) -> None:
    with client_of(service, tmp_path):
        pass
    (file,) = (tmp_path / "served").iterdir()
    for end in ("", "x", "-1", "٣", "9" * 40, "1"):
        file.with_name(f"{file.stem}.{end}").touch()
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.current_set(HOST) is not None
