"""Every setting of the service, in one class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.logs import LogFormat

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
        allow_remote: allow a host other than loopback before any key was made: anyone who reaches the port
            can then use the service.
        allowed_hosts: names by which requests may address the service besides loopback names, IP addresses,
            ``host`` and that of ``url``; ``*`` for any. Browsers can be led to this service under any other.
        url: where the command line finds the service; follows from host and port unless given.
        key: the API key that the command line sends.
        devices: names such as ``cuda:0,host``; every GPU, else the host, unless given.
        compile_processes: compilers that run at once.
        cache_dir: folder of compiled kernels.
        max_body_bytes: largest body of ``POST /gemm``, and largest result.
        max_import_bytes: largest body of ``POST /trials``.
        max_json_bytes: largest body of any other request.
        max_extent: largest m, n, k or batch.
        max_gemm_bytes: most memory of one GEMM's operands and result, tuned or run.
        max_trials: most trials of one job.
        max_queue: most queued jobs.
        max_misses: most problems in the list of misses of a device class.
        retune_stale: tune stale results that were asked for again, one at a time, on devices that are idle.
        max_gemms: most GEMM requests in work at once.
        gemm_wait_s: longest wait of a GEMM for a busy device, in seconds.
        stop_s: longest wait for a running trial at shutdown, in seconds.
        shared_memory: offer ``POST /gemm/shared`` to processes of this machine and user.
        lease_s: after how many silent seconds of a server others may take over its jobs.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json``, ``text``, or ``auto``: text on a terminal and JSON elsewhere.
    """

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="ignore")

    database_url: str = Field(default_factory=_default_database)
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    allow_remote: bool = False
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    url: str | None = None
    key: SecretStr | None = None
    devices: Annotated[tuple[str, ...], NoDecode] = ()
    compile_processes: int = Field(default_factory=_cores, ge=1, le=1024)
    cache_dir: Path = Field(
        default_factory=lambda: platformdirs.user_cache_path("tilewright", appauthor=False) / "artifacts"
    )
    max_body_bytes: int = Field(default=1024 * _MIB, ge=1)
    max_import_bytes: int = Field(default=64 * _MIB, ge=1)
    max_json_bytes: int = Field(default=_MIB // 16, ge=1)
    max_extent: int = Field(default=2**20, ge=1, le=2**31 - 1)
    max_gemm_bytes: int = Field(default=16 * 2**30, ge=1)
    max_trials: int = Field(default=10_000, ge=1, le=10_000)
    max_queue: int = Field(default=1000, ge=0)
    max_misses: int = Field(default=10_000, ge=0)
    retune_stale: bool = True
    max_gemms: int = Field(default=4, ge=1, le=32)
    gemm_wait_s: float = Field(default=10.0, ge=0.0)
    stop_s: float = Field(default=5.0, ge=0.0)
    shared_memory: bool = False
    lease_s: float = Field(default=30.0, ge=1.0, le=3600.0)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    log_format: LogFormat = "auto"

    @model_validator(mode="before")
    @classmethod
    def _split(cls, values: dict[str, object]) -> dict[str, object]:
        for name in ("devices", "allowed_hosts"):
            listed = values.get(name)
            if isinstance(listed, str):
                values[name] = tuple(one.strip() for one in listed.split(",") if one.strip())
        return values

    @property
    def service_url(self) -> str:
        """Where a client on this machine reaches the service."""
        return self.url or f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
