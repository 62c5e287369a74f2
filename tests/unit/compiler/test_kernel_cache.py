"""The compiled kernels that tests share: another source, include, define or compiler is another entry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernel_cache
import pytest

from kernels.base.spec import CompileError
from kernels.compiler import nvrtc

SOURCE = """
#include "half.cuh"
#ifdef WRONG
#error wrong
#endif
extern "C" __global__ void one(float* d) { *d = VALUE HALF; }
"""


def compiled(*defines: tuple[str, int | str], target: str = "sm_80") -> bytes:
    return nvrtc.compile_text(SOURCE, target, (("VALUE", 7), *defines), entry="one").binary


def test_what_decides_the_bytes_is_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []
    (sources := tmp_path / "sources").mkdir()
    (kept := tmp_path / "kept").mkdir()
    monkeypatch.setattr(nvrtc, "SOURCES", sources)
    plain = nvrtc._Program.compile

    def counted(program, options):
        runs.append(list(options))
        return plain(program, options)

    monkeypatch.setattr(nvrtc._Program, "compile", counted)
    kernel_cache.share_compiled_kernels(monkeypatch, kept)
    (sources / "half.cuh").write_text('#include "inner.cuh"\n')
    (sources / "inner.cuh").write_text("#define HALF / 2\n")
    first = compiled()
    assert (compiled(), len(runs)) == (first, 1)
    assert compiled(("MORE", 1)) == first  # another key, although the bytes are the same
    assert compiled(target="sm_90") != first
    (sources / "inner.cuh").write_text("#define HALF / 4\n")
    assert (compiled() != first, len(runs)) == (True, 4)

    def refusal() -> str:
        with pytest.raises(CompileError) as refused:
            compiled(("WRONG", 1))
        return str(refused.value)

    said = refusal()
    assert (refusal(), len(runs)) == (said, 5)
    for entry in kept.iterdir():
        entry.write_bytes(b"damaged")
    assert (refusal(), len(runs)) == (said, 6)

    before = len(list(kept.iterdir()))
    monkeypatch.setattr(kernel_cache.metadata, "version", lambda _: "another")
    kernel_cache.share_compiled_kernels(monkeypatch, kept)
    assert (refusal(), len(list(kept.iterdir()))) == (said, before + 1)


def test_tests_run_without_pytests_cache_too() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", __file__]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
