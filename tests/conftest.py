"""Collects the tests of ``tests/gpu`` only on a machine with an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.launch import driver

GPU_TESTS = Path(__file__).parent / "gpu"
HAS_GPU = driver.device_count() > 0


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not HAS_GPU and collection_path.is_relative_to(GPU_TESTS) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAS_GPU:
        terminalreporter.write_line("tests/gpu was not collected: this machine has no NVIDIA GPU")
