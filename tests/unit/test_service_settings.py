"""Settings: defaults, the environment, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.settings import Settings


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


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEVICES", "cuda:0, host")
    monkeypatch.setenv("TILEWRIGHT_PORT", "9")
    settings = Settings()
    assert settings.devices == ("cuda:0", "host")
    assert settings.service_url == "http://127.0.0.1:9"
    assert Settings(url="http://fleet:1").service_url == "http://fleet:1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_allowed(host: str) -> None:
    assert Settings(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_the_network_needs_to_be_asked_for(host: str) -> None:
    with pytest.raises(ValidationError, match="allow-remote"):
        Settings(host=host)
    assert Settings(host=host, allow_remote=True).host == host


@pytest.mark.parametrize(
    "change", [{"port": 65536}, {"max_trials": 0}, {"log_level": "loud"}, {"max_gemms": 0}]
)
def test_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**change)  # type: ignore[arg-type]
