"""Settings: defaults, the environment, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.http.access import Exposed, check_exposure
from service.settings import Settings
from tuner.store.access import keys
from tuner.store.database import Store


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TILEWRIGHT_{name.upper()}", raising=False)


def test_defaults_are_local() -> None:
    settings = Settings()
    assert settings.service_url == "http://127.0.0.1:8080"
    assert settings.database_url.startswith("sqlite:///")
    assert settings.database_url.endswith("tilewright.db")
    assert settings.devices == ()


@pytest.mark.parametrize("folder", ["a?b", "a%20b"])
def test_the_database_lies_in_a_home_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / folder))
    settings = Settings()
    Store.open(settings.database_url).close()
    assert (tmp_path / folder / "tilewright" / "tilewright.db").exists()
    assert settings.signing_key == tmp_path / folder / "tilewright" / "signing.key"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEVICES", "cuda:0, host")
    monkeypatch.setenv("TILEWRIGHT_PORT", "9")
    settings = Settings()
    assert settings.devices == ("cuda:0", "host")
    assert settings.service_url == "http://127.0.0.1:9"
    assert Settings(url="http://fleet:1").service_url == "http://fleet:1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/keys.db")
    opened.migrate()
    yield opened
    opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str, store: Store) -> None:
    check_exposure(Settings(host=host), store)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_the_network_needs_an_active_key_or_a_word(host: str, store: Store) -> None:
    with pytest.raises(Exposed, match="keys create"):
        check_exposure(Settings(host=host), store)
    check_exposure(Settings(host=host, allow_remote=True), store)
    with store.begin() as session:
        record, _ = keys.create(session, "me", frozenset({"read"}))
    check_exposure(Settings(host=host), store)
    with store.begin() as session:
        keys.revoke(session, record.id)
    with pytest.raises(Exposed):
        check_exposure(Settings(host=host), store)


def test_a_key_is_not_shown() -> None:
    assert "tw_1_2" not in repr(Settings(key="tw_1_2"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"port": 65536}, {"max_trials": 0}, {"log_level": "loud"}, {"max_gemms": 0}]
)
def test_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("queue", "mine"), [(1000, 800), (100, 80), (6, 5), (1, 1), (0, 0)])
def test_one_caller_may_not_fill_a_queue_of_any_size(queue: int, mine: int) -> None:
    assert Settings(max_queue=queue).max_caller_queue == mine
    assert Settings(max_queue=queue, max_caller_queue=7).max_caller_queue == 7
