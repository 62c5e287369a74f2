"""Every setting of the service, in one class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from service.logs import LogFormat
from tuner.store.engines.sqlite_engine import file_of, url_of

_MIB = 2**20


def _default_database() -> str:
    return url_of(_user_folder() / "tilewright.db")


def _user_folder() -> Path:
    return platformdirs.user_data_path("tilewright", appauthor=False)


def _data_folder(database_url: str) -> Path:
    """The folder of a SQLite file; that of the user's data for any other database."""
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):  # which the store refuses, and says why
        return _user_folder()
    return file_of(url).parent if url.drivername == "sqlite" and url.database else _user_folder()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _days(default: float) -> Any:
    return Field(default=default, ge=0, le=36_500)


class Settings(BaseSettings):
    """Settings, each from an environment variable: ``TILEWRIGHT_`` and the name in capitals.

    Attributes:
        database_url: ``sqlite:///path`` or ``postgresql+psycopg://...``.
        engine: ``local`` for the devices of this machine, ``ray`` for those of a Ray cluster.
        ray_address: ``host:port`` of the cluster's head; this machine must be one of its nodes.
        host, port: where the service listens; port 0 takes a free one.
        allow_remote: allow a host other than loopback before any key was made: anyone who reaches the port
            can then use the service.
        allowed_hosts: names by which requests may address the service besides loopback names, IP addresses,
            ``host`` and that of ``url``; ``*`` for any. Browsers can be led to this service under any other.
        url: where the command line finds the service; follows from host and port unless given.
        key: the API key that the command line sends.
        signing_key: file of the private key that vouches for what the service hands out; made at the first
            start. Beside a SQLite file, else in the user's data folder, unless given.
        devices: names such as ``cuda:0,host``; every GPU, else the host, unless given.
        compile_processes: compilers that run at once.
        cache_dir: folder of compiled kernels.
        cache_bytes: most bytes in it; what was unused for longest goes.
        max_body_bytes: largest body of ``POST /gemm``, and largest result.
        max_buffer_bytes: most bytes of the bodies and results of GEMM requests in flight, of one caller half.
        max_import_bytes: largest body of ``POST /trials``.
        max_json_bytes: largest body of any other request.
        max_connections: most connections at once; fewer where the process may not open so many files.
        max_extent: largest m, n, k or batch.
        max_gemm_bytes: most memory of one GEMM's operands and result, tuned or run.
        max_trials: most trials of one job.
        max_queue: most queued jobs.
        keep_samples_days: days for which the raw samples of ended jobs' trials are kept; the median and its
            interval stay. 0, here and below: for ever.
        keep_events_days: days for which the events of ended jobs are kept.
        keep_trials_days: days for which trials are kept whose config won nowhere on their device class.
        keep_sets_days: days for which a config set is kept that another one followed, unless it is pinned.
        keep_artifacts_days: days for which a kernel is kept that no winner and no config set names.
        keep_jobs_days: days for which an ended job is kept that has no trial, event or winner left.
        keep_audit_days: days for which the audit log keeps who changed what.
        max_caller_queue: most queued jobs of one key that sets no other number, or of one address without
            keys; four fifths of ``max_queue`` unless given.
        max_misses: most problems in the list of misses of a device class; those never seen share a list.
        retune_stale: tune stale results that were asked for again, and race imported configs, one at a time,
            on devices that are idle.
        help_jobs: idle devices try configs for jobs that other devices of their class run.
        canary_hours: how often an idle device measures a few winners again; 0: never.
        max_gemms: most GEMMs at work at once.
        max_caller_gemms: most GEMM requests of one key, or of one address without keys, in flight at once.
        quiet_wait_s: how long a job waits for other processes to leave its GPU, and how long final races that
            others disturb run again, in seconds.
        gemm_wait_s: longest wait of a GEMM for its turn, and again for a busy device, in seconds.
        stop_s: longest wait for a running trial at shutdown, in seconds.
        shared_memory: offer ``POST /gemm/shared`` to processes of this machine and user.
        lease_s: after how many silent seconds of a server others may take over its jobs.
        lock_dir: folder of the devices' locks, the same for all services of the machine.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json``, ``text``, or ``auto``: text on a terminal and JSON elsewhere.
    """

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="ignore")

    database_url: str = Field(default_factory=_default_database)
    engine: Literal["local", "ray"] = "local"
    ray_address: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    allow_remote: bool = False
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    url: str | None = None
    key: SecretStr | None = None
    signing_key: Path = Field(
        default_factory=lambda given: _data_folder(given.get("database_url", "")) / "signing.key"
    )
    devices: Annotated[tuple[str, ...], NoDecode] = ()
    compile_processes: int = Field(default_factory=_cores, ge=1, le=1024)
    cache_dir: Path = Field(
        default_factory=lambda: platformdirs.user_cache_path("tilewright", appauthor=False) / "artifacts"
    )
    cache_bytes: int = Field(default=4096 * _MIB, ge=0)
    max_body_bytes: int = Field(default=1024 * _MIB, ge=1)
    max_buffer_bytes: int = Field(
        default_factory=lambda given: 4 * max(given.get("max_body_bytes", 0), 2**30), ge=2**22
    )
    max_import_bytes: int = Field(default=64 * _MIB, ge=1)
    max_json_bytes: int = Field(default=_MIB // 16, ge=1)
    max_connections: int = Field(default=1000, ge=16)
    max_extent: int = Field(default=2**20, ge=1, le=2**31 - 1)
    max_gemm_bytes: int = Field(default=16 * 2**30, ge=1)
    max_trials: int = Field(default=10_000, ge=1, le=10_000)
    max_queue: int = Field(default=1000, ge=0)
    max_caller_queue: int = Field(default_factory=lambda given: -(-4 * given.get("max_queue", 0) // 5), ge=0)
    keep_samples_days: float = _days(90)
    keep_events_days: float = _days(30)
    keep_trials_days: float = _days(730)
    keep_sets_days: float = _days(365)
    keep_artifacts_days: float = _days(30)
    keep_jobs_days: float = _days(730)
    keep_audit_days: float = _days(730)
    max_misses: int = Field(default=10_000, ge=0)
    retune_stale: bool = True
    help_jobs: bool = True
    canary_hours: float = Field(default=24.0, ge=0.0, le=8760.0)
    max_gemms: int = Field(default=4, ge=1, le=32)
    max_caller_gemms: int = Field(default=64, ge=1)
    quiet_wait_s: float = Field(default=20.0, ge=0.0, le=3600.0)
    gemm_wait_s: float = Field(default=10.0, ge=0.0, le=3600.0)
    stop_s: float = Field(default=5.0, ge=0.0, le=3600.0)
    shared_memory: bool = False
    lease_s: float = Field(default=30.0, ge=1.0, le=3600.0)
    lock_dir: Path = Path("/dev/shm")
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
