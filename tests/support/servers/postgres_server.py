"""A PostgreSQL server of the tests' own: a scratch folder, a free loopback port, an unprivileged user."""

from __future__ import annotations

import dataclasses
import functools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30  # bytes; a container may have less there


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A running server; ``url`` reaches one of its databases as its owner.

    Attributes:
        restart: kills it and starts it again, as a machine that lost its power does.
    """

    port: int
    restart: Callable[[], None] = lambda: None

    @property
    def dsn(self) -> str:
        """The database that is always there, for psycopg itself."""
        return self.url("postgres").replace("+psycopg", "")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://tilewright@127.0.0.1:{self.port}/{database}"


def version() -> str:
    """That of the installed server, in its own words."""
    binaries = find_binaries()
    assert binaries is not None
    asked = [binaries / "postgres", "--version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def find_binaries() -> Path | None:
    """Where ``initdb`` is: on the PATH, or in the newest of Debian's versioned folders."""
    found = shutil.which("initdb")
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(versions, key=lambda path: float(path.parts[-3]))
    candidates = [Path(found)] if found else newest[-1:]
    return candidates[0].parent if candidates else None


@contextmanager
def running(binaries: Path, also: str = "", services: int = 1) -> Iterator[Server]:
    """Start a server for so many services, which listens on loopback and at the address ``also``, and stop it
    at the end."""
    # NOTE: not under pytest's folder, which no other user may enter; and a socket's path must be short.
    # NOTE: in memory where that has room, since each database is hundreds of files to make and to remove.
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    folder = Path(tempfile.mkdtemp(prefix="twpg", dir=_MEMORY if in_memory else None))
    account = _unprivileged()
    if account:
        os.chown(folder, account["user"], account["group"])
    port = _free_port()
    data = str(folder / "data")
    fast = "-c fsync=off -c full_page_writes=off -c autovacuum=off"
    addresses = f"127.0.0.1,{also}" if also else "127.0.0.1"
    options = f"-p {port} -k {folder} -c listen_addresses={addresses} {fast}"
    options += f" -c max_connections={60 * services}"

    def call(tool: str, *arguments: str) -> None:
        command = [str(binaries / tool), "-D", data, *arguments]
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run(command, check=True, cwd=folder, timeout=60, **quiet, **account)

    try:
        call("initdb", "-U", "tilewright", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        if also:
            with (folder / "data/pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {also}/24 trust\n")
        start = functools.partial(call, "pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)

        def restart() -> None:
            call("pg_ctl", "stop", "-w", "-m", "immediate")
            start()

        start()
        try:
            yield Server(port, restart)
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: the account to use instead."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
