"""Kernel sources with one planted fault, to show that checks and the correctness gate find it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernels.base.spec import SOURCES
from kernels.compiler import cc, nvrtc

_SUFFIXES = (".cu", ".cuh", ".c", ".h")


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str, before: str, after: str) -> None:
    """Let the compilers read copies of the kernel sources in ``folder``; that of ``source`` has ``after`` in
    place of its only ``before``."""
    for path in SOURCES.rglob("*"):
        if path.suffix in _SUFFIXES:
            copy = folder / path.relative_to(SOURCES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    text = (folder / source).read_text()
    assert text.count(before) == 1, f"{before!r} is {text.count(before)} times in {source}"
    (folder / source).write_text(text.replace(before, after))
    for compiler in (nvrtc, cc):
        monkeypatch.setattr(compiler, "SOURCES", folder)
