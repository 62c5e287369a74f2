"""What we read from a cubin against what the assembler reports, and damaged cubins."""

from __future__ import annotations

import contextlib
import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.compiler.cubin import read_resources
from kernels.compiler.nvrtc import _Program
from tilewright.artifact import Resources
from tilewright.errors import ArtifactError

TARGETS = ("sm_80", "sm_89", "sm_90a")

PLAIN = """
extern "C" __global__ void kernel(float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
"""
STATIC = """
extern "C" __global__ void kernel(float *x) {
    __shared__ float s[300];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[threadIdx.x * 7 % 300];
}
"""
BOTH_KINDS = """
extern __shared__ float dynamic[];
extern "C" __global__ void kernel(float *x) {
    __shared__ double s[10];
    s[threadIdx.x % 10] = x[0];
    dynamic[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = dynamic[threadIdx.x ^ 1] + s[3];
}
"""
SPILL = """
extern "C" __global__ void __launch_bounds__(1024, 1) kernel(float *x) {
    float v[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) v[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 128; ++i) x[threadIdx.x * 128 + i] = v[i] * v[(i + 64) % 128];
}
"""
LOCAL_ARRAY = """
extern "C" __global__ void kernel(int *x, int n) {
    int v[40];
    for (int i = 0; i < 40; ++i) v[i] = x[i];
    for (int i = 0; i < n; ++i) v[x[i] % 40] += i;
    x[threadIdx.x] = v[n % 40];
}
"""
CALL = """
__device__ __noinline__ int look(const int *x, int n) {
    int v[20];
    for (int i = 0; i < 20; ++i) v[i] = x[i];
    for (int i = 0; i < n; ++i) v[x[i] % 20] += i;
    return v[n % 20];
}
extern "C" __global__ void kernel(int *x, int n) { x[threadIdx.x] = look(x, n) + look(x + 1, n); }
"""
MANY_REGISTERS = SPILL.replace("1024, 1", "128, 1")
SOURCES = {
    "plain": PLAIN,
    "static shared memory": STATIC,
    "static and dynamic": BOTH_KINDS,
    "spill": SPILL,
    "local array": LOCAL_ARRAY,
    "call": CALL,
    "many registers": MANY_REGISTERS,
    "beside another kernel": STATIC.replace(" kernel(", " another(") + PLAIN,
}


@functools.cache
def compiled(source: str, target: str) -> tuple[bytes, str]:
    """The cubin and the assembler's report."""
    with _Program(source, "kernel.cu") as program:
        return program.compile([f"--gpu-architecture={target}", "--ptxas-options=-v"])


def reported(log: str) -> Resources:
    """What the assembler says of the entry function ``kernel``."""
    part = log.split("Compiling entry function 'kernel'")[1].split("Compiling entry function")[0]

    def number(pattern: str) -> int:
        match = re.search(pattern, part)
        return int(match[1]) if match else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes stack frame"),
        static_smem=number(r"(\d+) bytes smem"),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SOURCES)
def test_agrees_with_the_assembler(name: str, target: str) -> None:
    cubin, log = compiled(SOURCES[name], target)
    assert read_resources(cubin, "kernel") == reported(log)


@pytest.mark.parametrize("target", TARGETS)
def test_the_cases_are_what_they_claim(target: str) -> None:
    """Guards the comparison above against reading zero on both sides."""

    def read(source: str) -> Resources:
        return read_resources(compiled(source, target)[0], "kernel")

    assert 4 <= read(PLAIN).registers <= 16
    assert read(PLAIN).spill_bytes == 0
    assert read(STATIC).static_smem == 300 * 4  # without the 1024 bytes that sm_90 reserves
    assert read(BOTH_KINDS).static_smem == 80
    assert read(SPILL).registers == 64  # 65536 registers over 1024 threads
    assert read(SPILL).spill_bytes > 0
    assert read(LOCAL_ARRAY).spill_bytes == 160
    assert read(CALL).spill_bytes == 80
    assert read(MANY_REGISTERS).registers > 128
    assert read(MANY_REGISTERS).spill_bytes == 0


@pytest.mark.parametrize("entry", ["missing", "", "kerne", "kernel2"])
def test_no_such_kernel(entry: str) -> None:
    with pytest.raises(ArtifactError, match="not a cubin with a kernel"):
        read_resources(compiled(PLAIN, "sm_80")[0], entry)


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"PTX text", b"\0" * 4096])
def test_not_an_elf_file(data: bytes) -> None:
    with pytest.raises(ArtifactError, match="no ELF header"):
        read_resources(data, "kernel")


@pytest.mark.parametrize("data", [b"\x7fELF", b"\x7fELF" + b"\0" * 60, b"\x7fELF" + b"\xff" * 4096])
def test_an_elf_header_and_nothing_behind(data: bytes) -> None:
    with pytest.raises(ArtifactError, match="not a cubin"):
        read_resources(data, "kernel")


def test_truncated() -> None:
    cubin = compiled(STATIC, "sm_90a")[0]
    for length in range(0, len(cubin) - 1, 37):
        with pytest.raises(ArtifactError, match="not a cubin"):
            read_resources(cubin[:length], "kernel")


@settings(max_examples=300, deadline=None, database=None)
@given(st.data())
def test_damage_is_an_artifact_error_or_goes_unnoticed(data: st.DataObject) -> None:
    cubin = bytearray(compiled(STATIC, "sm_90a")[0])
    regions = (
        st.integers(0, 63) | st.integers(0, len(cubin) - 1) | st.integers(len(cubin) - 1600, len(cubin) - 1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        cubin[data.draw(regions)] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ArtifactError):
        assert isinstance(read_resources(bytes(cubin), "kernel"), Resources)
