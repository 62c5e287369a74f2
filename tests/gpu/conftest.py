"""Tests that need an NVIDIA GPU; without one each skips, saying so."""

from __future__ import annotations

import pytest

from tilewright.launch import driver


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if driver.device_count() == 0:
        for item in items:
            if "/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


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
