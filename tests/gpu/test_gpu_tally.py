"""wgmma_ws/tally.cuh: every share is settled once, whoever is late, and the word is zero again."""

from __future__ import annotations

import random

import pytest

from kernels.build import CSRC
from kernels.families.wgmma_ws_budgets import TALLY_BYTES

# As partials.cuh does it: block `part` of a tile arrives after some nanoseconds, all of its threads having
# written the number of the launch for every share, but keeps its own until it gives up. It counts the shares
# that it is told to finish, and the words of theirs that another launch wrote.
SOURCE = """
#include "wgmma_ws/tally.cuh"
template <class Settle> __device__ unsigned settled(Settle settle) {
    __shared__ unsigned shares;
    __syncthreads();
    if (threadIdx.x == 0) shares = settle();
    __syncthreads();
    return shares;
}
extern "C" __global__ void settle(unsigned* words, const unsigned long long* late_ns, unsigned* finished,
                                  unsigned* written, unsigned* stale, unsigned number) {
    constexpr int parts = OF_A_TILE;
    const int part = blockIdx.x, tile = blockIdx.y;
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < late_ns[tile * parts + part]);
    const auto of = [&](int share, int from) {
        return written + ((tile * parts + share) * parts + from) * blockDim.x + threadIdx.x;
    };
    for (int share = 0; share < parts; ++share)
        if (share != part) __stcg(of(share, part), number);
    const Tally<parts> tally(words + tile * (tally_bytes / sizeof(unsigned)));
    unsigned shares = settled([&] { return tally.settle(part); });
    const bool own_alone = shares == 1u << part;
    if (!own_alone) __stcg(of(part, part), number);
    if (!shares) shares = settled([&] { return tally.give_up(part); });
    const unsigned departed_before = threadIdx.x == 0 ? tally.depart() : 0;
    for (; shares; shares &= shares - 1) {
        const int share = __ffs(shares) - 1;
        if (threadIdx.x == 0) atomicAdd(finished + (tile * parts + share) * parts + part, 1u);
        for (int from = 0; from < parts; ++from)
            if (!(own_alone && from == part) && __ldcg(of(share, from)) != number) atomicAdd(stale, 1u);
    }
    if (threadIdx.x == 0) tally.clear(departed_before);
}
"""


def settled(device, parts: int, late_ns: list[list[int]]):
    """How often which part finished which share in two launches, as [launch][tile][share][part]."""
    xp, tiles, threads = device.xp, len(late_ns), 128
    kernel = xp.RawKernel(SOURCE, "settle", options=("-std=c++17", f"-I{CSRC}", f"-DOF_A_TILE={parts}"))
    words = xp.zeros((tiles, TALLY_BYTES // 4), dtype="uint32")
    finished = xp.zeros((2, tiles, parts, parts), dtype="uint32")
    written = xp.zeros((tiles, parts, parts, threads), dtype="uint32")
    stale = xp.zeros(1, dtype="uint32")
    late = xp.asarray(late_ns, dtype="uint64")
    for number in (1, 2):
        counts = finished[number - 1]
        kernel((parts, tiles), (threads,), (words, late, counts, written, stale, xp.uint32(number)))
        assert not words.get().any()
    assert stale.get() == 0
    return finished.get()


def test_nobody_late_finishes_the_share_of_another(hopper) -> None:
    finished = settled(hopper, 8, [[0] * 8] * 4)
    assert (finished == [[[int(share == part) for part in range(8)] for share in range(8)]] * 4).all()


def test_the_last_finishes_the_shares_of_those_that_gave_up(hopper) -> None:
    finished = settled(hopper, 4, [[0, 0, 0, 3_000_000]])
    assert (finished[:, 0] == [[0, 0, 0, 1]] * 4).all()


@pytest.mark.parametrize("parts", [2, 3, 7, 16])
def test_every_share_is_finished_once_whoever_is_late(hopper, parts) -> None:
    """Delays around the time after which a block gives up, in more blocks than fit the GPU at once."""
    chance = random.Random(parts)
    late_ns = [[chance.randrange(200_000) for _ in range(parts)] for _ in range(1000)]
    finished = settled(hopper, parts, late_ns)
    assert (finished.sum(axis=3) == 1).all()
    # The last one finishes its own; of the others some gave up, some did not.
    own = finished[:, :, range(parts), range(parts)].sum(axis=(1, 2))
    assert ((own > 1000) & (own < 1000 * parts)).all()
