"""Every setting of the service, in one class."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Self

import platformdirs
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_MIB = 2**20


def _default_database() -> str:
    folder = platformdirs.user_data_path("tilewright", appauthor=False)
    return f"sqlite:///{folder / 'tilewright.db'}"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class Settings(BaseSettings):
    """Settings, each from an environment variable: ``TILEWRIGHT_`` and the name in capitals.

    Attributes:
        database_url: ``sqlite:///path`` or ``postgresql+psycopg://...``.
        host, port: where the service listens; port 0 takes a free one.
        allow_remote: allow a host other than loopback; anyone who reaches the port can then use the service.
        url: where the command line finds the service; follows from host and port unless given.
        devices: names such as ``cuda:0,host``; every GPU, else the host, unless given.
        compile_processes: compilers that run at once.
        cache_dir: folder of compiled kernels.
        max_body_bytes: largest body of ``POST /gemm``, and largest result.
        max_json_bytes: largest body of any other request.
        max_extent: largest m, n, k or batch.
        max_gemm_bytes: most memory of one GEMM's operands and result, tuned or run.
        max_trials: most trials of one job.
        max_queue: most queued jobs.
        max_gemms: most GEMM requests in work at once.
        gemm_wait_s: longest wait of a GEMM for a busy device, in seconds.
        stop_s: longest wait for a running trial at shutdown, in seconds.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
    """

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="ignore")

    database_url: str = Field(default_factory=_default_database)
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    allow_remote: bool = False
    url: str | None = None
    devices: Annotated[tuple[str, ...], NoDecode] = ()
    compile_processes: int = Field(default_factory=_cores, ge=1, le=1024)
    cache_dir: Path = Field(
        default_factory=lambda: platformdirs.user_cache_path("tilewright", appauthor=False) / "artifacts"
    )
    max_body_bytes: int = Field(default=256 * _MIB, ge=1)
    max_json_bytes: int = Field(default=_MIB // 16, ge=1)
    max_extent: int = Field(default=2**20, ge=1, le=2**31 - 1)
    max_gemm_bytes: int = Field(default=16 * 2**30, ge=1)
    max_trials: int = Field(default=10_000, ge=1, le=10_000)
    max_queue: int = Field(default=1000, ge=0)
    max_gemms: int = Field(default=4, ge=1, le=32)
    gemm_wait_s: float = Field(default=10.0, ge=0.0)
    stop_s: float = Field(default=5.0, ge=0.0)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @model_validator(mode="before")
    @classmethod
    def _split(cls, values: dict[str, object]) -> dict[str, object]:
        devices = values.get("devices")
        if isinstance(devices, str):
            values["devices"] = tuple(name.strip() for name in devices.split(",") if name.strip())
        return values

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if not self.allow_remote and not self._is_loopback():
            raise ValueError(
                f"host {self.host} is not a loopback address and the service has no access control yet: "
                "anyone who reaches the port could use it. Pass --allow-remote (TILEWRIGHT_ALLOW_REMOTE=1) "
                "if the network is trusted, or put a proxy with authentication before 127.0.0.1"
            )
        return self

    @property
    def service_url(self) -> str:
        """Where a client on this machine reaches the service."""
        return self.url or f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def _is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
