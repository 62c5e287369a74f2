"""The tests of ``tests/gpu`` import on a machine without a GPU: nothing else there would notice a stale
name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

GPU_TESTS = sorted((Path(__file__).parents[2] / "gpu").rglob("test_*.py"))


@pytest.mark.parametrize("path", GPU_TESTS, ids=lambda path: path.stem)
def test_a_gpu_test_imports(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"imported_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert any(name.startswith("test_") for name in vars(module))
