"""The functions of the CUDA driver that launching needs, by ctypes, without the toolkit or another package.

Only this package launches kernels. Names follow ``cuda.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from tilewright.errors import DeviceUnavailable, LaunchError

FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE = 8
FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTERS = 14
LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
LAUNCH_ATTRIBUTE_PROGRAMMATIC_SERIALIZATION = 6
_CAPTURE_ACTIVE = 1  # CUstreamCaptureStatus
_CAPTURE_RELAXED = 2  # CUstreamCaptureMode
_STREAM_NON_BLOCKING = 1
_NOT_READY = 600  # CUresult
_SM_COUNT = 16  # CUdevice_attribute

# Errors after which the context answers every call with the same error.
_STICKY = {700, 702, 710, 713, 714, 715, 716, 717, 718, 719, 720}


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``; ``value`` is the cluster dimension, or a flag in its first element."""

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
        raise DeviceUnavailable(
            "no NVIDIA driver on this machine (libcuda.so.1 is missing); install it"
        ) from error
    status = library.cuInit(0)
    if status:
        raise DeviceUnavailable(
            f"the NVIDIA driver does not start, run nvidia-smi: {_error_text(library, status)}"
        )
    return library


def check(status: int, what: str) -> None:
    """Raise an error for a driver status that is not success.

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
    """Number of CUDA devices; 0 without a driver."""
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


@contextlib.contextmanager
def outside_capture() -> Iterator[None]:
    """Let this thread load modules and allocate memory while a stream is captured into a graph.

    Raises:
        DeviceUnavailable: there is no NVIDIA driver or no device.
    """
    library, mode = libcuda(), ctypes.c_int(_CAPTURE_RELAXED)
    check(library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "relax the capture mode")
    try:
        yield
    finally:
        check(library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "restore the capture mode")


class CaptureQuery:
    """Whether a stream is being captured into a graph. NOTE: for one thread, as it keeps its buffers."""

    def __init__(self) -> None:
        self._stream, self._status = ctypes.c_void_p(), ctypes.c_int()
        self._reference = ctypes.byref(self._status)
        self._ask = libcuda().cuStreamIsCapturing

    def __call__(self, stream: int) -> bool:
        """Whether this stream is being captured."""
        self._stream.value = stream
        # NOTE: the query fails for the legacy stream while another stream is captured; it is not captured
        # itself.
        return not self._ask(self._stream, self._reference) and self._status.value == _CAPTURE_ACTIVE


@contextlib.contextmanager
def stream_memory(size: int, zero_bytes: int, stream: int) -> Iterator[int]:
    """Memory for the next work of a stream, released after that work; its first ``zero_bytes`` are zero.

    While the stream is captured into a graph, allocation, memset and release become nodes of the graph: the
    memory does not outlive a replay, and no two graphs use the same memory.

    Raises:
        LaunchError: the driver refused.
    """
    library, address = libcuda(), ctypes.c_uint64()
    handle, amount = ctypes.c_void_p(stream), ctypes.c_size_t(size)
    check(library.cuMemAllocAsync(ctypes.byref(address), amount, handle), f"{size} bytes of workspace")
    try:
        if zero_bytes:
            zero = ctypes.c_ubyte(0)
            count = ctypes.c_size_t(zero_bytes)
            check(library.cuMemsetD8Async(address, zero, count, handle), "zero a workspace")
        yield address.value
    finally:
        check(library.cuMemFreeAsync(address, handle), "release a workspace")


@contextlib.contextmanager
def private_stream() -> Iterator[ctypes.c_void_p]:
    """A stream that does not synchronise with others, destroyed at the end of the ``with`` block.

    Raises:
        LaunchError: the driver refused.
    """
    library, stream = libcuda(), ctypes.c_void_p()
    check(library.cuStreamCreate(ctypes.byref(stream), _STREAM_NON_BLOCKING), "make a stream")
    try:
        yield stream
    finally:
        check(library.cuStreamDestroy_v2(stream), "destroy a stream")


def is_over(stream: ctypes.c_void_p) -> bool:
    """Whether a stream has finished its work.

    Raises:
        LaunchError: some of it failed.
    """
    status = libcuda().cuStreamQuery(stream)
    if status != _NOT_READY:
        check(status, "cuStreamQuery")
    return bool(status != _NOT_READY)


def read_words(address: int, count: int, stream: ctypes.c_void_p) -> list[int]:
    """32-bit words of device memory, copied by a stream that has no other work.

    Raises:
        LaunchError: the driver refused.
    """
    words = (ctypes.c_uint32 * count)()
    size = ctypes.c_size_t(4 * count)
    # NOTE: in this stream: a synchronous copy would wait for all streams, and break the capture of one.
    status = libcuda().cuMemcpyDtoHAsync_v2(words, ctypes.c_uint64(address), size, stream)
    check(status, "read device memory")
    while not is_over(stream):
        pass
    return list(words)


def described(device: int) -> dict[str, Any]:
    """The fields of a :class:`~tilewright.schema.device.DeviceSpec` that the driver tells of a GPU."""
    library, name, memory = libcuda(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    check(library.cuDeviceGetName(name, 256, device), "cuDeviceGetName")
    check(library.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "cuDeviceTotalMem")
    major, minor = compute_capability(device)
    model = name.value.decode()
    told = {"kind": "cuda", "arch": f"sm_{major}{minor}", "name": model, "mig": model.partition(" MIG ")[2]}
    return told | {"sm_count": device_attribute(device, _SM_COUNT), "memory_bytes": memory.value}


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
