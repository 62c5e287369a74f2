"""Who holds a job: a name from which another process of the same machine can tell that its holder is gone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_PROC = Path("/proc")


def new_owner() -> str:
    """A fresh name for something in this process that claims jobs.

    It holds the machine's boot, the namespace of process ids, this process's id and start, and a random part.
    """
    return f"{_place()}/{os.getpid()}/{_start_of(os.getpid())}/{secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """Whether the process behind an owner certainly ended.

    False where that cannot be told from here (another machine, another container, an unknown name): then
    only the end of its lease tells.
    """
    parts = owner.rsplit("/", 3)
    if len(parts) != 4 or parts[0] != _place() or not parts[1].isdecimal():
        return False
    return _start_of(int(parts[1])) != parts[2]


def _place() -> str:
    boot = _PROC / "sys/kernel/random/boot_id"
    namespace = _PROC / "self/ns/pid"
    # NOTE: two containers of one host share the boot and may both run process 1.
    return f"{boot.read_text().strip()}/{os.readlink(namespace)}"


def _start_of(pid: int) -> str:
    """Clock ticks from boot to the start of a process; empty where there is none or it waits to be reaped."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # NOTE: the second field is the program's name, which may hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
