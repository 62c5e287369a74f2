"""Collects the tests of ``tests/gpu`` only on a machine with an NVIDIA GPU; keeps the user's caches alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import hypothesis  # noqa: F401  its plugin would import it late, and not see references of frozen objects
import pytest
import quick_worker
from kernel_cache import share_compiled_kernels, share_host_kernels

from tilewright.launch import driver
from tuner.workers import bench

GPU_TESTS = Path(__file__).parent / "gpu"
HAS_GPU = driver.device_count() > 0


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not HAS_GPU and collection_path.is_relative_to(GPU_TESTS) else None


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("cacheprovider"):
        parser.addini("cache_dir", "a setting of pyproject.toml that '-p no:cacheprovider' leaves unknown")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: what is imported meanwhile stays
    if config.pluginmanager.hasplugin("cacheprovider"):
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        share_compiled_kernels(patch, config.cache.mkdir("kernels"))
        share_host_kernels(patch, config.cache.mkdir("cc"))


def pytest_collection_finish() -> None:
    gc.freeze()  # later collections pass over what was imported
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """NOTE: a client remembers the key of each URL that it saw, and servers of tests take any free port.
    Tests that run side by side use the host at once, which its lock would forbid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        patch.setenv("TILEWRIGHT_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(bench, "python", quick_worker.command)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAS_GPU:
        terminalreporter.write_line("tests/gpu was not collected: this machine has no NVIDIA GPU")
