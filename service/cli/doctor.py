"""What this machine has and lacks, and how to get it."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from importlib import metadata
from typing import Any

import typer

from kernels.compiler.build import compiler_version
from service.cli.output import AsJson, print_json
from service.settings import Settings
from tilewright.errors import DeviceUnavailable
from tuner.store.database import NoDatabase, Store, StoreError
from tuner.workers.bench import list_devices

_GPU_EXTRA = "install the extra 'gpu' of this package: pip install -e '.[gpu]'"
_REMEDIES = {
    "c compiler": "install gcc or clang, on Debian: apt-get install gcc libc6-dev",
    "gpu driver": "install NVIDIA's driver (580 or newer for CUDA 13); without a GPU the host is tuned",
    "nvrtc": "install the extra 'compile' of this package: pip install -e '.[compile]'",
    "cupy": _GPU_EXTRA,
    "nvmath": _GPU_EXTRA,
    "nvml": _GPU_EXTRA,
    "database": "run 'tilewright db upgrade', or set TILEWRIGHT_DATABASE_URL to a database that can be used",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        found: its version, or why it is not there.
        remedy: how to get it.
    """

    name: str
    ok: bool
    found: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def examine(settings: Settings) -> list[Finding]:
    """Look for everything that tuning uses here."""
    return [
        _look("c compiler", lambda: compiler_version("c")),
        _look("gpu driver", _gpus),
        _look("nvrtc", lambda: compiler_version("cuda")),
        _look("cupy", lambda: _installed("cupy-cuda13x")),
        _look("nvmath", lambda: _installed("nvmath-python")),
        _look("nvml", lambda: _installed("nvidia-ml-py")),
        _look("database", lambda: _database(settings.database_url)),
    ]


def usable(findings: list[Finding]) -> bool:
    """Whether some device can be tuned: the host with a C compiler, or a GPU with everything it needs."""
    ok = {finding.name for finding in findings if finding.ok}
    return "database" in ok and ("c compiler" in ok or {"gpu driver", "nvrtc", "cupy", "nvmath"} <= ok)


def _look(name: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, ask(), _REMEDIES[name])
    except (DeviceUnavailable, StoreError) as error:
        return Finding(name, False, str(error), _REMEDIES[name])


def _gpus() -> str:
    try:
        gpus = [name for name in list_devices() if name != "host"]
    except subprocess.SubprocessError as error:
        raise DeviceUnavailable(f"the driver could not be asked: {error}") from error
    if not gpus:
        raise DeviceUnavailable("no NVIDIA GPU or no driver on this machine")
    return ", ".join(gpus)


def _installed(distribution: str) -> str:
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError as error:
        raise DeviceUnavailable(f"{distribution} is not installed") from error


def _database(url: str) -> str:
    try:
        store = Store.open(url, create=False)
    except NoDatabase:
        return "none yet, 'tilewright serve' makes it"
    try:
        state = store.schema_state()
    finally:
        store.close()
    if state == "newer":
        raise StoreError("a newer release migrated this database; upgrade this installation")
    return {"head": "up to date", "older": "older, 'tilewright serve' upgrades it"}.get(state, "empty")


def doctor(as_json: AsJson = False) -> None:
    """Say what is missing on this machine and how to get it; exit code 1 where nothing can be tuned."""
    findings = examine(Settings())
    ready = usable(findings)
    if as_json:
        print_json({"usable": ready, "findings": [finding.to_dict() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{'ok     ' if finding.ok else 'missing'}  {finding.name}: {finding.found}")
            if not finding.ok:
                typer.echo(f"         {finding.remedy}")
        typer.echo("ready to tune" if ready else "nothing can be tuned here yet")
    if not ready:
        raise typer.Exit(1)
