"""The CUDA driver API that launching needs, bound with ctypes: no toolkit, no other package.

Only this package calls the driver to launch. Names follow ``cuda.h``.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tilewright.errors import DeviceUnavailable, LaunchError

FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE = 8
LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
LAUNCH_ATTRIBUTE_PROGRAMMATIC_SERIALIZATION = 6

# Errors after which the context answers every call with the same error.
_STICKY = {700, 702, 710, 713, 714, 715, 716, 717, 718, 719, 720}


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``; ``value`` is the cluster dimension, or a flag in its first place."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_byte * 52),
    ]


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def libcuda() -> ctypes.CDLL:
    """The initialised driver library.

    Raises:
        DeviceUnavailable: there is no NVIDIA driver or no device.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceUnavailable("no NVIDIA driver on this machine (libcuda.so.1 is missing)") from error
    status = library.cuInit(0)
    if status:
        raise DeviceUnavailable(f"the NVIDIA driver does not start: {_error_text(library, status)}")
    return library


def check(status: int, what: str) -> None:
    """Turn a driver status into an exception.

    Raises:
        LaunchError: the status is not success.
    """
    if status:
        text = _error_text(libcuda(), status)
        raise LaunchError(f"{what}: {text}", code=status, sticky=status in _STICKY)


@functools.cache
def driver_version() -> int:
    """Highest CUDA version of the driver, 1000 * major + 10 * minor."""
    version = ctypes.c_int()
    check(libcuda().cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return version.value


def device_count() -> int:
    """Number of CUDA devices; 0 where there is no driver."""
    try:
        library = libcuda()
    except DeviceUnavailable:
        return 0
    count = ctypes.c_int()
    check(library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return count.value


def ensure_context() -> int:
    """The current device's ordinal; makes the primary context of device 0 current if there is none."""
    library = libcuda()
    context, device = ctypes.c_void_p(), ctypes.c_int()
    check(library.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
    if not context.value:
        check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
        check(library.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(library.cuCtxGetDevice(ctypes.byref(device)), "cuCtxGetDevice")
    return device.value


def compute_capability(device: int) -> tuple[int, int]:
    """(major, minor) of a device."""
    return device_attribute(device, 75), device_attribute(device, 76)


def device_attribute(device: int, attribute: int) -> int:
    """``cuDeviceGetAttribute`` by the numbers of ``CUdevice_attribute``."""
    value = ctypes.c_int()
    status = libcuda().cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    check(status, f"cuDeviceGetAttribute {attribute}")
    return value.value


def _error_text(library: Any, status: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    library.cuGetErrorString(status, ctypes.byref(text))
    if not name.value or not text.value:
        return f"error {status}"
    return f"{name.value.decode()}: {text.value.decode()}"
