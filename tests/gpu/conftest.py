"""Tests that need an NVIDIA GPU, and it for themselves; without one each skips, saying so."""

from __future__ import annotations

import pytest

from tilewright.launch import driver


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marks = [pytest.mark.quiet]
    if driver.device_count() == 0:
        marks.append(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
    for item in items:
        if "/gpu/" in str(item.path):
            for mark in marks:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def device():
    """The first GPU."""
    from tuner.devices.cuda import CudaDevice

    return CudaDevice(0)


@pytest.fixture
def hopper(device):
    """The first GPU, where it has what sm_90 alone has."""
    if device.spec.arch != "sm_90":
        pytest.skip("wgmma, tensor maps and clusters need sm_90")
    return device
