"""The split-K semaphore of wgmma_ws: each slice is finished once by any timing, the word is zero again."""

from __future__ import annotations

import random

import pytest

from kernels.base.spec import SOURCES
from kernels.wgmma_ws.config import Knobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.layout import SEMAPHORE_BYTES
from tilewright import GemmProblem

# As split_k.cuh does it: CTA `split` of a tile arrives after some nanoseconds, all of its threads having
# written the number of the launch for every slice, but keeps its own until it times out. It counts the slices
# that it is told to finish, and the words of theirs that another launch wrote.
SOURCE = """
#include "wgmma_ws/split_k.cuh"
template <class Step> __device__ unsigned agreed(Step step) {
    __shared__ unsigned slices;
    __syncthreads();
    if (threadIdx.x == 0) slices = step();
    __syncthreads();
    return slices;
}
extern "C" __global__ void finish_slices(unsigned* words, const unsigned long long* late_ns,
                                         unsigned* finished, unsigned* written, unsigned* stale,
                                         unsigned number) {
    constexpr int splits = cfg::split_k;
    const int split = blockIdx.x, tile = blockIdx.y;
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < late_ns[tile * splits + split]);
    const auto of = [&](int slice, int from) {
        return written + ((tile * splits + slice) * splits + from) * blockDim.x + threadIdx.x;
    };
    for (int slice = 0; slice < splits; ++slice)
        if (slice != split) __stcg(of(slice, split), number);
    const SplitKSemaphore<splits> semaphore(words + tile * (semaphore_bytes / sizeof(unsigned)));
    unsigned slices = agreed([&] { return semaphore.arrive(split); });
    const bool only_own = slices == 1u << split;
    if (!only_own) __stcg(of(split, split), number);
    if (!slices) slices = agreed([&] { return semaphore.time_out(split); });
    const unsigned released_before = threadIdx.x == 0 ? semaphore.release() : 0;
    for (; slices; slices &= slices - 1) {
        const int slice = __ffs(slices) - 1;
        if (threadIdx.x == 0) atomicAdd(finished + (tile * splits + slice) * splits + split, 1u);
        for (int from = 0; from < splits; ++from)
            if (!(only_own && from == split) && __ldcg(of(slice, from)) != number) atomicAdd(stale, 1u);
    }
    if (threadIdx.x == 0) semaphore.clear(released_before);
}
"""


def finished_by(device, splits: int, late_ns: list[list[int]]):
    """How often which CTA finished which slice in two launches, as [launch][tile][slice][split]."""
    xp, tiles, threads = device.xp, len(late_ns), 128
    config = WGMMA_WS.config(Knobs(split_k=splits, reduction="kernel", epilogue="direct"))
    defines = WGMMA_WS.build_spec(config, GemmProblem(128, 256, 4096), device.spec).defines
    options = ("-std=c++17", f"-I{SOURCES}", *(f"-D{name}={value}" for name, value in defines))
    kernel = xp.RawKernel(SOURCE, "finish_slices", options=options)
    words = xp.zeros((tiles, SEMAPHORE_BYTES // 4), dtype="uint32")
    finished = xp.zeros((2, tiles, splits, splits), dtype="uint32")
    written = xp.zeros((tiles, splits, splits, threads), dtype="uint32")
    stale = xp.zeros(1, dtype="uint32")
    late = xp.asarray(late_ns, dtype="uint64")
    for number in (1, 2):
        counts = finished[number - 1]
        kernel((splits, tiles), (threads,), (words, late, counts, written, stale, xp.uint32(number)))
        assert not words.get().any()
    assert stale.get() == 0
    return finished.get()


def test_without_delays_each_cta_finishes_its_own_slice(hopper) -> None:
    finished = finished_by(hopper, 8, [[0] * 8] * 4)
    assert (finished == [[[int(slice_ == split) for split in range(8)] for slice_ in range(8)]] * 4).all()


def test_the_last_cta_finishes_the_slices_that_timed_out(hopper) -> None:
    finished = finished_by(hopper, 4, [[0, 0, 0, 3_000_000]])
    assert (finished[:, 0] == [[0, 0, 0, 1]] * 4).all()


@pytest.mark.parametrize("splits", [2, 3, 7, 16])
def test_every_slice_is_finished_once_with_any_delays(hopper, splits) -> None:
    """Delays around the time-out, in more CTAs than fit the GPU at once."""
    chance = random.Random(splits)
    late_ns = [[chance.randrange(200_000) for _ in range(splits)] for _ in range(1000)]
    finished = finished_by(hopper, splits, late_ns)
    assert (finished.sum(axis=3) == 1).all()
    # The last CTA finishes its own slice; of the others some timed out, some did not.
    own = finished[:, :, range(splits), range(splits)].sum(axis=(1, 2))
    assert ((own > 1000) & (own < 1000 * splits)).all()
