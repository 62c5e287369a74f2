"""Recorded spaces on disk, gzipped or not."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from tuner.replay.kernel_tuner import from_cache
from tuner.replay.space import RecordedSpace, SpaceError
from tuner.replay.t4 import from_t4, to_t4

_GZIP = b"\x1f\x8b"
_SUFFIXES = (".gz", ".json", ".t4")


def read_space(path: Path) -> RecordedSpace:
    """A Kernel Tuner cache or a T4 file as a space.

    Raises:
        SpaceError: it cannot be read, or is neither.
    """
    data = _parsed(path)
    name = space_name(path)
    try:
        if "results" in data:
            return from_t4(data, name)
        if "cache" in data:
            return from_cache(data, name)
    except (KeyError, TypeError, ValueError) as error:
        raise SpaceError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    raise SpaceError(f"{path} is neither T4 (results) nor a Kernel Tuner cache (cache)")


def write_space(space: RecordedSpace, path: Path) -> None:
    """Write a T4 file, gzipped, the same bytes for the same space; replaces what stood there at once."""
    text = json.dumps(to_t4(space), separators=(",", ":"))
    data = gzip.compress(text.encode(), 9, mtime=0)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def space_name(path: Path) -> str:
    """The file's name without its suffixes."""
    name = path.name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode()
        parsed = _json(text)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SpaceError(f"cannot read {path}: {error}") from error
    if not isinstance(parsed, dict):
        raise SpaceError(f"{path} must hold a JSON object")
    return parsed


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # NOTE: Kernel Tuner closes a cache file at the end of a run only; an interrupted one is still good.
        return json.loads(text.rstrip().rstrip(",") + "}}")
