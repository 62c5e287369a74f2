"""The devices of this process and their classes, as the operating system and the NVIDIA driver report
them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import platform

from tilewright.errors import DeviceUnavailable
from tilewright.launch import driver
from tilewright.launch.host import cpu_info, host_arch
from tilewright.schema.device import DeviceClass, DeviceSpec

HOST = -1


def default_device() -> int:
    """The ordinal of the current GPU, or of the first if none is current; ``HOST`` without a GPU."""
    return driver.ensure_context() if driver.device_count() else HOST


def ordinal(device: int | str | None) -> int:
    """The ordinal of a device given as ``cuda:1``, ``host`` or an ordinal; :func:`default_device` for None.

    Raises:
        DeviceUnavailable: the text or number is none of these.
    """
    if device is None:
        return default_device()
    if isinstance(device, str):
        name, _, number = device.partition(":")
        if device == "host":
            return HOST
        if name == "cuda" and number.isdecimal():
            return int(number)
    else:
        with contextlib.suppress(TypeError):
            return operator.index(device)
    raise DeviceUnavailable(f"a device must be 'host', 'cuda:0' or the ordinal of a GPU, got {device!r}")


@functools.cache
def device_class(device: int) -> DeviceClass:
    """The class of a GPU by its ordinal, or of this machine's CPU.

    Raises:
        DeviceUnavailable: there is no such GPU.
    """
    if device == HOST:
        model = cpu_info("model name") or platform.processor() or platform.machine()
        units = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return DeviceSpec("host", host_arch(), model, units, 0, 0).device_class
    if not 0 <= device < driver.device_count():
        there = driver.device_count()
        raise DeviceUnavailable(
            f"no CUDA device {device}; use one of the {there} that there are, numbered from 0"
        )
    spec = DeviceSpec(**driver.described(device), l2_bytes=0, power_watts=_power_limit(device))
    return spec.device_class


def _power_limit(device: int) -> int:
    """The power limit in watts from NVML; 0 if it is not reported, as for parts of a GPU."""
    bus = ctypes.create_string_buffer(32)
    driver.check(driver.libcuda().cuDeviceGetPCIBusId(bus, 32, device), "cuDeviceGetPCIBusId")
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    handle, milliwatts = ctypes.c_void_p(), ctypes.c_uint()
    refused = (
        nvml.nvmlInit_v2()
        or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        or nvml.nvmlDeviceGetPowerManagementLimit(handle, ctypes.byref(milliwatts))
    )
    return 0 if refused else milliwatts.value // 1000
