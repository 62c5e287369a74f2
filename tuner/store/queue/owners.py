"""The processes that claim jobs, by name, and which of them certainly ended."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from tilewright import __version__

_PROC = Path("/proc")
_BOOT = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def new_owner() -> str:
    """A fresh name for something in this process that claims jobs.

    It holds the machine's boot, the namespace of process ids, this process's id and start, a random part and
    this release.
    """
    return f"{_place()}/{os.getpid()}/{_start_of(os.getpid())}/{secrets.token_hex(4)}@{__version__}"


def release_of(owner: str) -> str:
    """The release behind an owner's name; empty for one that does not tell."""
    return owner.rpartition("/")[2].partition("@")[2]


def is_gone(owner: str) -> bool:
    """Whether the process behind an owner certainly ended.

    False if that cannot be told from here (another machine, another container, an unknown name): then
    only the end of its lease tells.
    """
    parts = owner.rsplit("/", 3)
    if len(parts) != 4 or parts[0] != _place() or not parts[1].isdecimal():
        return False
    start = _start_of(int(parts[1]))
    return start is not None and start != parts[2]


def _place() -> str:
    boot = _PROC / "sys/kernel/random/boot_id"
    namespace = _PROC / "self/ns/pid"
    # NOTE: two containers of one host share the boot and may both run process 1.
    return f"{boot.read_text().strip()}/{os.readlink(namespace)}"


def _start_of(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; empty if it ended or waits to be reaped, None if it
    lives but is hidden from this user (``/proc`` mounted with ``hidepid``)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None if _lives(pid) else ""
    # NOTE: the second field is the program's name, which may hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def is_of_earlier_boot(owner: str) -> bool:
    """Whether an owner, known to be of this machine, lived before its last start."""
    boot = owner.partition("/")[0]
    return _BOOT.fullmatch(boot) is not None and boot != _place().partition("/")[0]
