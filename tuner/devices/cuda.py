"""An NVIDIA GPU: CuPy for arrays, streams and graphs, NVML for clock and power, cuBLASLt as vendor."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import cupy
import pynvml

from kernels.common.cuda import target_of
from kernels.compiler.nvrtc import compile_text
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.launch import Launch, driver
from tilewright.launch.cuda import BareKernel
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Conditions, Telemetry, Tensors, VendorChoice
from tuner.devices.nvml import LostSeconds

_T = TypeVar("_T")
_HOLD_CLOCKS = 200_000
_SPIN = f"long long end = clock64() + {_HOLD_CLOCKS}; while (clock64() < end) {{}}"
_CROWD_THREADS = 512
# CUdevice_attribute of cuda.h.
_THREADS_PER_SM, _SMEM_PER_SM, _SMEM_OPTIN = 39, 81, 97
_L2_BYTES, _CLOCK_KHZ, _MEMORY_KHZ, _BUS_BITS = 38, 13, 36, 37
_POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap


class CudaDevice:
    """Implements :class:`tuner.devices.base.Device` for the GPU with the given ordinal.

    Raises:
        DeviceUnavailable: there is no such GPU.
    """

    settle_s = 1.0
    xp: Any = cupy

    def __init__(self, index: int = 0) -> None:
        if not 0 <= index < driver.device_count():
            there = driver.device_count()
            raise DeviceUnavailable(
                f"no CUDA device {index}; use one of the {there} that there are, numbered from 0"
            )
        cupy.cuda.Device(index).use()
        self._index = index
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._nvml = _nvml_handle(index)
        self._lost = LostSeconds(self._nvml)
        self.spec = query_cuda(index)
        self.identity = _uuid(index)
        version = driver.driver_version()
        name = pynvml.nvmlSystemGetDriverVersion()
        self.driver = f"nvidia {name}, CUDA {version // 1000}.{version % 1000 // 10}"

    def address(self, array: Any) -> int:
        """The device pointer of an array."""
        return int(array.data.ptr)

    def synchronize(self) -> None:
        """Wait for the whole device."""
        with _launch_errors():
            cupy.cuda.runtime.deviceSynchronize()

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        """One graph of all launches, timed with events around its replay."""
        self.synchronize()
        stream = self._stream
        with _launch_errors():
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                for launch in launches:
                    launch(stream.ptr)
            finally:
                graph = stream.end_capture()
            graph.upload(stream)
            stream.synchronize()  # NOTE: else a replay of another graph would wait for it, within its time
            start, end = cupy.cuda.Event(), cupy.cuda.Event()

        def sample() -> float:
            with _launch_errors():
                start.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                return float(cupy.cuda.get_elapsed_time(start, end)) * 1000 / len(launches)

        return sample

    def once(self, launch: Launch) -> float:
        """Microseconds of one launch between two events, which start once all three are enqueued."""
        stream, start, end = self._stream, cupy.cuda.Event(), cupy.cuda.Event()
        with _launch_errors():
            self._hold(stream.ptr)
            start.record(stream)
            launch(stream.ptr)
            end.record(stream)
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) * 1000

    def pause(self, stream: int = 0) -> None:
        """Enqueue an empty kernel that does not release the next one before it ends."""
        self._idle(stream)

    def crowd(self) -> None:
        """Occupy every slot of 512 threads except those of one SM, on a stream of its own."""
        self._crowd(self._beside.ptr)

    @functools.cached_property
    def _idle(self) -> BareKernel:
        return self._bare("idle", "")

    @functools.cached_property
    def _hold(self) -> BareKernel:
        """A kernel that holds up its stream while the CPU enqueues the timed launch, about 100 us."""
        return self._bare("hold", _SPIN)

    @functools.cached_property
    def _crowd(self) -> BareKernel:
        slots = driver.device_attribute(self._index, _THREADS_PER_SM) // _CROWD_THREADS
        return self._bare("crowd", _SPIN, (self.spec.sm_count - 1) * slots, _CROWD_THREADS)

    def _bare(self, name: str, body: str, ctas: int = 1, threads: int = 32) -> BareKernel:
        source = f'extern "C" __global__ void {name}() {{ {body} }}'
        built = compile_text(source, target_of(self.spec.arch), entry=name)
        return BareKernel(built.binary, name, ctas, threads)

    def telemetry(self) -> Telemetry:
        """SM clock, board power and whether a power cap holds the clock down, from NVML."""
        nvml = self._nvml
        events: int = _told(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(nvml)) or 0
        return Telemetry(
            mhz=_told(lambda: float(pynvml.nvmlDeviceGetClockInfo(nvml, pynvml.NVML_CLOCK_SM))),
            watts=_told(lambda: pynvml.nvmlDeviceGetPowerUsage(nvml) / 1000),
            capped=bool(events & _POWER_CAP),
        )

    def conditions(self) -> Conditions:
        """Highest SM clock, enforced power limit and temperature from NVML."""
        nvml, sensor = self._nvml, pynvml.NVML_TEMPERATURE_GPU
        return Conditions(
            most_mhz=_told(lambda: float(pynvml.nvmlDeviceGetMaxClockInfo(nvml, pynvml.NVML_CLOCK_SM))),
            power_limit_watts=_told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(nvml) / 1000),
            celsius=_told(lambda: float(pynvml.nvmlDeviceGetTemperature(nvml, sensor))),
        )

    def others(self) -> dict[str, float]:
        """Seconds that other processes took of the GPU, and those in which it was slowed, so far; sampled by
        NVML at each call."""
        return self._lost.look(os.getpid())

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """The algorithms that cuBLASLt's heuristics propose."""
        found: list[VendorChoice] = _cublaslt().choices(problem, sets, self.spec)
        return found

    def every_vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """The same with every split-K count that cuBLASLt accepts."""
        found: list[VendorChoice] = _cublaslt().every_choice(problem, sets, self.spec)
        return found

    def vendor_default(self, problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
        """The first algorithm of cuBLASLt's heuristics, which run once for a problem."""
        found: VendorChoice | None = _cublaslt().default_choice(problem, tensors)
        return found

    def pin(self, memory: Any) -> bool:
        """Register memory with the driver; False if it refuses, and copies go through its buffers."""
        try:
            cupy.cuda.runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        except cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    def unpin(self, memory: Any) -> None:
        """Unregister memory with the driver."""
        with _launch_errors():
            cupy.cuda.runtime.hostUnregister(memory.ctypes.data)

    def upload(self, array: Any) -> Any:
        """A copy on the device, complete after :meth:`synchronize`."""
        made = self.result_buffer(array)
        self._copy(made.data.ptr, array.ctypes.data, array.nbytes, cupy.cuda.runtime.memcpyHostToDevice)
        return made

    def result_buffer(self, out: Any) -> Any:
        """Uninitialised device memory of the size of ``out``."""
        return cupy.empty(out.shape, out.dtype)

    def download(self, made: Any, out: Any) -> None:
        """Copy a result to the host and wait for it."""
        self._copy(out.ctypes.data, made.data.ptr, out.nbytes, cupy.cuda.runtime.memcpyDeviceToHost)
        self.synchronize()

    def _copy(self, to: int, start: int, size: int, kind: int) -> None:
        with _launch_errors():
            cupy.cuda.runtime.memcpyAsync(to, start, size, kind, self._stream.ptr)

    def free_bytes(self) -> int:
        """Free device memory in bytes, including what CuPy's pool can release."""
        free, _ = cupy.cuda.runtime.memGetInfo()
        return int(free) + int(cupy.get_default_memory_pool().free_bytes())


def query_cuda(index: int) -> DeviceSpec:
    """The description of the GPU with the given ordinal."""
    handle = _nvml_handle(index)
    # Kilohertz times bits, two transfers a clock, in GB/s.
    bandwidth = 2 * driver.device_attribute(index, _MEMORY_KHZ) * driver.device_attribute(index, _BUS_BITS)
    return DeviceSpec(
        **driver.described(index),
        l2_bytes=driver.device_attribute(index, _L2_BYTES),
        smem_per_block=driver.device_attribute(index, _SMEM_OPTIN),
        smem_per_sm=driver.device_attribute(index, _SMEM_PER_SM),
        memory_gbps=bandwidth // 8_000_000,
        clock_mhz=driver.device_attribute(index, _CLOCK_KHZ) // 1000,
        power_watts=_power_limit(handle),
    )


def _uuid(index: int) -> str:
    """The UUID of a GPU, or of the MIG instance that the process sees as one, in hex."""
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    library = driver.libcuda()
    driver.check(library.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    driver.check(library.cuDeviceGetUuid_v2(uuid, device), "cuDeviceGetUuid_v2")
    return bytes(uuid).hex()


def _nvml_handle(index: int) -> Any:
    pynvml.nvmlInit()
    bus = ctypes.create_string_buffer(32)
    driver.check(driver.libcuda().cuDeviceGetPCIBusId(bus, 32, index), "cuDeviceGetPCIBusId")
    return pynvml.nvmlDeviceGetHandleByPciBusId(bus.value)


def _told(ask: Callable[[], _T]) -> _T | None:
    """What NVML answers; None if the GPU, such as a MIG instance, does not tell."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _power_limit(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(handle)) // 1000
    except pynvml.NVMLError:
        return 0


@contextlib.contextmanager
def _launch_errors() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as error:
        # NOTE: after a failed kernel the context answers every call with the same error.
        raise LaunchError(str(error), code=error.status, sticky=True) from error


def _cublaslt() -> Any:
    try:
        import tuner.devices.cublaslt as cublaslt
    except ImportError as error:
        raise DeviceUnavailable(f"the vendor library needs nvmath-python, install it: {error}") from error
    return cublaslt
