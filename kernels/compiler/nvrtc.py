"""CUDA C++ to cubin by NVRTC, bound with ctypes: needs no driver, no GPU and no CUDA headers.

ctypes releases the GIL, so threads compile in parallel.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Sequence

from kernels.base.spec import SOURCES, BuildSpec, Built, CompileError
from kernels.compiler.cubin import read_resources
from kernels.compiler.overlap import why_unordered
from tilewright.errors import DeviceUnavailable

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TARGET = re.compile(r"sm_\d+a?\Z")
_LOADING = threading.Lock()
# Messages of ptxas when wgmma run one after the other (C7510, C7514, C7515), when it adds waits or fences
# that the source lacks (C7517, C7519), or when it ignores setmaxnreg (C7508).
_WGMMA_WARNING = re.compile(r"\(C75(08|1\d)\)")


def compile_cuda(spec: BuildSpec) -> Built:
    """Compile a source under ``kernels``.

    Raises:
        CompileError: with NVRTC's log.
        DeviceUnavailable: NVRTC is not installed.
    """
    source = (SOURCES / spec.source).read_text()
    return compile_text(source, spec.target, spec.defines, entry=spec.entry, name=spec.source)


def compile_text(
    source: str,
    target: str,
    defines: Sequence[tuple[str, int | str]] = (),
    *,
    entry: str,
    name: str = "kernel.cu",
) -> Built:
    """Compile source text for one architecture; ``entry`` is the kernel whose resources are read.

    Raises:
        CompileError: with NVRTC's log.
        ValueError: target or a define is not a plain name or number.
    """
    if not _TARGET.match(target):
        raise ValueError(f"target must look like sm_80 or sm_90a, got {target!r}")
    options = [f"--gpu-architecture={target}", "--std=c++17", f"--include-path={SOURCES}"]
    options += ["--define-macro=" + _define(*pair) for pair in defines]
    with _Program(source, name) as program:
        cubin, log = program.compile(options)
    if _WGMMA_WARNING.search(log):
        raise CompileError(f"{name} for {target}: the assembler gave up a wgmma guarantee:\n{log}")
    if reason := why_unordered(cubin):
        raise CompileError(f"{name} for {target}: {reason}")
    return Built(cubin, read_resources(cubin, entry), nvrtc_version())


@functools.cache
def nvrtc_version() -> str:
    """For instance ``nvrtc 13.0``.

    Raises:
        DeviceUnavailable: NVRTC is not installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"nvrtc {major.value}.{minor.value}"


@functools.cache
def nvrtc_build() -> str:
    """What tells this NVRTC from others of its version: the header of its PTX, which names the update.

    Raises:
        DeviceUnavailable: NVRTC is not installed.
    """
    with _Program("", "empty.cu") as program:
        return program.ptx(["--gpu-architecture=sm_80"]).partition(".version")[0]


class _Program:
    """An ``nvrtcProgram`` that is destroyed at the end of its ``with`` block."""

    def __init__(self, source: str, name: str) -> None:
        self._handle = ctypes.c_void_p()
        _check(
            _nvrtc().nvrtcCreateProgram(
                ctypes.byref(self._handle), source.encode(), name.encode(), 0, None, None
            )
        )

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        _nvrtc().nvrtcDestroyProgram(ctypes.byref(self._handle))

    def compile(self, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin and the compiler's log."""
        log = self._compile(options)
        return self._read("nvrtcGetCUBIN"), log

    def ptx(self, options: Sequence[str]) -> str:
        """The PTX."""
        self._compile(options)
        return self._read("nvrtcGetPTX").rstrip(b"\0").decode()

    def _compile(self, options: Sequence[str]) -> str:
        """Compile, and return the compiler's log."""
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = _nvrtc().nvrtcCompileProgram(self._handle, len(options), array)
        log = self._read("nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if status:
            # NOTE: callers read it, and need no path of this machine.
            raise CompileError(log.replace(f"{SOURCES}/", "") or _error_string(status))
        return log

    def _read(self, getter: str) -> bytes:
        size = ctypes.c_size_t()
        _check(getattr(_nvrtc(), f"{getter}Size")(self._handle, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        _check(getattr(_nvrtc(), getter)(self._handle, buffer))
        return buffer.raw


def _nvrtc() -> ctypes.CDLL:
    # NOTE: two threads that load the library at once leave one without its builtins.
    with _LOADING:
        return _load()


@functools.cache
def _load() -> ctypes.CDLL:
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise DeviceUnavailable("cuda-pathfinder is missing: pip install cuda-pathfinder") from error
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError as error:
        raise DeviceUnavailable("NVRTC is missing: pip install nvidia-cuda-nvrtc (CUDA 13)") from error
    return ctypes.CDLL(path)


def _define(name: str, value: int | str) -> str:
    if not _IDENTIFIER.match(name) or (isinstance(value, str) and not _IDENTIFIER.match(value)):
        raise ValueError(f"-D takes identifiers and integers only, got {name!r}={value!r}")
    return f"{name}={value}"


def _error_string(status: int) -> str:
    nvrtc = _nvrtc()
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(nvrtc.nvrtcGetErrorString(status).decode())


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC failed: {_error_string(status)}")
