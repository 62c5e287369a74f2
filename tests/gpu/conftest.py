"""The device of the GPU tests; ``tests/conftest.py`` collects them only where there is one."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device():
    """The first GPU."""
    from tuner.devices.cuda import CudaDevice

    return CudaDevice(0)


@pytest.fixture
def hopper(device):
    """The first GPU; skips the test if it is not an sm_90 device."""
    if device.spec.arch != "sm_90":
        pytest.skip("wgmma, tensor maps and clusters need sm_90")
    return device
