"""The launcher on a real driver: tensor maps, clusters, large shared memory, streams, graphs."""

from __future__ import annotations

import dataclasses

import pytest
from gate import built, reference_values

from kernels.compiler.nvrtc import compile_text
from kernels.mma_sync.family import MMA_SYNC
from tilewright import GemmProblem
from tilewright.artifact import (
    Artifact,
    Grid,
    LaunchPlan,
    Pointer,
    Preconditions,
    Resources,
    Scalar,
    Serves,
    TensorMap,
)
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import Operands, load
from tuner.measure.operands import bind, make_tensors

# Copies A to D tile by tile through shared memory with TMA: each CTA of a cluster of two loads its
# 64 x 64 box and reads back the box of its neighbour through distributed shared memory.
TMA_COPY = r"""
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern __shared__ __align__(1024) unsigned char smem[];
__device__ unsigned address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void __launch_bounds__(128, 1)
tma_copy(const __grid_constant__ TensorMap map, unsigned short* d, int m, int n) {
    __shared__ unsigned long long full;
    const int tiles_n = (n + 63) / 64, tile = blockIdx.x;
    const int row0 = tile / tiles_n * 64, col0 = tile % tiles_n * 64;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;" ::"r"(address(&full)));
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(address(smem)), "l"(&map), "r"(col0), "r"(row0),
                     "r"(0), "r"(address(&full)) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                     " selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(address(&full)) : "memory");
    unsigned rank, peer_smem;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(peer_smem) : "r"(address(smem)), "r"(rank ^ 1u));
    const int peer = tile ^ 1, peer_row = peer / tiles_n * 64, peer_col = peer % tiles_n * 64;
    for (int i = threadIdx.x; i < 4096; i += 128) {
        unsigned short value;
        asm volatile("ld.shared::cluster.u16 %0, [%1];" : "=h"(value) : "r"(peer_smem + i * 2));
        const int row = peer_row + i / 64, col = peer_col + i % 64;
        if (row < m && col < n) d[row * n + col] = value;
    }
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
"""

# Fills its dynamic shared memory and adds it up: D[0] = bytes / 4.
BIG_SMEM = r"""
extern __shared__ float values[];
extern "C" __global__ void __launch_bounds__(128, 1) big_smem(float* d, int k) {
    for (int i = threadIdx.x; i < k; i += 128) values[i] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0) { float sum = 0; for (int i = 0; i < k; ++i) sum += values[i]; d[0] += sum; }
}
"""


def artifact(source: str, entry: str, problem: GemmProblem, **plan) -> Artifact:
    built = compile_text(source, plan["target"], entry=entry)
    launch = LaunchPlan("cubin", entry=entry, block=(128, 1, 1), serves=Serves.of(problem), **plan)
    return Artifact(launch, Resources(), "test", built.compiler, built.binary)


def tma_artifact(problem: GemmProblem) -> Artifact:
    arguments = (
        TensorMap("a", (64, 64), swizzle=0),
        Pointer("d"),
        Scalar("m", "int32"),
        Scalar("n", "int32"),
    )
    return artifact(
        TMA_COPY,
        "tma_copy",
        problem,
        target="sm_90a",
        grid=Grid(64, 64),
        args=arguments,
        dynamic_smem=8192,
        cluster=(2, 1, 1),
        preconditions=Preconditions(16, 1, 1),
    )


def test_tensor_maps_and_clusters(hopper) -> None:
    """k = n so that A has the shape of D; 200 x 248 leaves ragged boxes that TMA fills with zeros."""
    import cupy

    problem = GemmProblem(200, 248, 248, layout="nn")
    a = cupy.random.default_rng(0).integers(0, 60000, size=(200, 248)).astype("uint16")
    d = cupy.zeros_like(a)
    kernel = load(tma_artifact(problem))
    kernel.bind(problem, Operands(a.data.ptr, a.data.ptr, d.data.ptr))()
    hopper.synchronize()
    assert bool((a == d).all())
    kernel.close()


@pytest.mark.usefixtures("hopper")
def test_tensor_map_refuses_unaligned_rows() -> None:
    import cupy

    problem = GemmProblem(64, 63, 63, layout="nn")
    a = cupy.zeros((64, 63), dtype="uint16")
    with pytest.raises(PreconditionFailed, match="multiple of 16 bytes"):
        load(tma_artifact(problem)).bind(problem, Operands(a.data.ptr, a.data.ptr, a.data.ptr))


def smem_artifact(device, problem: GemmProblem, size: int) -> Artifact:
    from kernels.arch import ARCHS

    arguments = (Pointer("d"), Scalar("k", "int32"))
    target = ARCHS[device.spec.arch].target
    return artifact(
        BIG_SMEM, "big_smem", problem, target=target, grid=Grid(1, 1), args=arguments, dynamic_smem=size
    )


def bind_to(d, made: Artifact, problem: GemmProblem):
    return load(made).bind(problem, Operands(d.data.ptr, d.data.ptr, d.data.ptr))


def test_dynamic_smem_up_to_the_limit_on_a_stream_and_in_a_graph(device) -> None:
    import cupy

    size = device.spec.smem_per_block
    problem = GemmProblem(1, 1, size // 4)
    d = cupy.zeros(1, dtype="float32")
    launch = load(smem_artifact(device, problem, size)).bind(
        problem, Operands(d.data.ptr, d.data.ptr, d.data.ptr)
    )
    device.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    launch(stream.ptr)
    stream.synchronize()
    assert float(d[0]) == size // 4
    stream.begin_capture()
    launch(stream.ptr)
    graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert float(d[0]) == 4 * (size // 4)


def test_streams_have_a_workspace_each(device) -> None:
    """Split-K kernels of two streams count in semaphores of their own; a launch refuses a second stream."""
    import cupy

    problem = GemmProblem(64, 64, 16384)
    configs = MMA_SYNC.heuristic_configs(problem, device.spec)
    config = next(one for one in configs if MMA_SYNC.plan(one, problem, device.spec).workspace_bytes(problem))
    kernel = built(device, MMA_SYNC, config, problem)
    sets = [make_tensors(device, problem, seed, "integer") for seed in range(2)]
    both = [bind(device, kernel, problem, [tensors]) for tensors in sets]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in both]
    device.synchronize()
    for _ in range(200):
        for bound, stream in zip(both, streams, strict=True):
            bound.launches[0](stream.ptr)
    with pytest.raises(LaunchError, match="serves one stream"):
        both[0].launches[0](streams[1].ptr)
    device.synchronize()
    for tensors in sets:
        assert bool((tensors.d == reference_values(device, problem, tensors)).all())
    kernel.close()


def test_too_much_smem_is_refused_with_a_reason(device) -> None:
    problem = GemmProblem(1, 1, 4)
    with pytest.raises(LaunchError, match="dynamic shared memory"):
        load(smem_artifact(device, problem, device.spec.smem_per_block + 1024))


def test_a_kernel_for_another_gpu_is_refused(device) -> None:
    problem = GemmProblem(1, 1, 4)
    made = smem_artifact(device, problem, 1024)
    other = "sm_89" if device.spec.arch != "sm_89" else "sm_80a"
    with pytest.raises(PreconditionFailed, match="cannot run on"):
        load(dataclasses.replace(made, plan=dataclasses.replace(made.plan, target=other)))


@pytest.mark.alone
def test_launch_overhead_is_microseconds(device) -> None:
    """The CPU cost of one launch of an empty-sized GEMM; the figure is printed for the record."""
    import time

    import cupy

    problem = GemmProblem(1, 1, 1)
    d = cupy.zeros(1, dtype="float32")
    launch = load(smem_artifact(device, problem, 1024)).bind(
        problem, Operands(d.data.ptr, d.data.ptr, d.data.ptr)
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    costs = []
    for _ in range(50):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            launch(stream.ptr)
        costs.append((time.perf_counter() - start) * 1e4)
    device.synchronize()
    print(f"\nlaunch: {sorted(costs)[25]:.2f} us")  # noqa: T201
    assert sorted(costs)[25] < 20
