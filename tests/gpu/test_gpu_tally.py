"""wgmma_ws/tally.cuh: every share is settled once, whoever is late, and the words are zero again."""

from __future__ import annotations

import random

import pytest

from kernels.build import CSRC
from kernels.families.wgmma_ws_budgets import TALLY_BYTES

# Block `part` of a tile arrives after some nanoseconds with a bit for each share, keeps that of its own share
# until it gives up, counts the shares that it was told to finish and gathers their bits.
SOURCE = """
#include "wgmma_ws/tally.cuh"
extern "C" __global__ void settle(unsigned* words, const unsigned long long* late_ns, unsigned* finished,
                                  unsigned* left, unsigned* gathered) {
    constexpr int parts = OF_A_TILE;
    const int part = blockIdx.x, tile = blockIdx.y;
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < late_ns[tile * parts + part]);
    const auto of = [&](int share, int from) { return left + (tile * parts + share) * parts + from; };
    for (int share = 0; share < parts; ++share)
        if (share != part) __stcg(of(share, part), 1u << part);
    const Tally<parts> tally{words + tile * tally_spacing};
    unsigned shares = tally.settle(part);
    if (shares == 0) {
        __stcg(of(part, part), 1u << part);
        shares = tally.give_up(part);
    }
    const unsigned gone = tally.leave();
    for (; shares; shares &= shares - 1) {
        const int share = __ffs(shares) - 1;
        atomicAdd(finished + (tile * parts + share) * parts + part, 1u);
        for (int from = 0; from < parts; ++from)
            atomicOr(gathered + tile * parts + share,
                     share == part && from == part ? 1u << part : __ldcg(of(share, from)));
    }
    tally.clear(gone);
}
"""


def settled(device, parts: int, late_ns: list[list[int]]):
    """How often which part finished which share, as [tile][share][part], and what the words hold then."""
    xp, tiles = device.xp, len(late_ns)
    kernel = xp.RawKernel(SOURCE, "settle", options=("-std=c++17", f"-I{CSRC}", f"-DOF_A_TILE={parts}"))
    words = xp.zeros((tiles, TALLY_BYTES // 4), dtype="uint32")
    finished, left = xp.zeros((2, tiles, parts, parts), dtype="uint32")
    gathered = xp.zeros((tiles, parts), dtype="uint32")
    kernel((parts, tiles), (1,), (words, xp.asarray(late_ns, dtype="uint64"), finished, left, gathered))
    assert (gathered.get() == (1 << parts) - 1).all()
    return finished.get(), words.get()


def test_nobody_late_finishes_the_share_of_another(hopper) -> None:
    finished, words = settled(hopper, 8, [[0] * 8] * 4)
    assert not words.any()
    assert (finished == [[[int(share == part) for part in range(8)] for share in range(8)]] * 4).all()


def test_the_last_finishes_the_shares_of_those_that_gave_up(hopper) -> None:
    finished, words = settled(hopper, 4, [[0, 0, 0, 3_000_000]])
    assert not words.any()
    assert (finished[0] == [[0, 0, 0, 1]] * 4).all()


@pytest.mark.parametrize("parts", [2, 3, 7, 16])
def test_every_share_is_finished_once_whoever_is_late(hopper, parts) -> None:
    """Delays around the time after which a block gives up, in more blocks than fit the GPU at once."""
    chance = random.Random(parts)
    late_ns = [[chance.randrange(200_000) for _ in range(parts)] for _ in range(2000)]
    finished, words = settled(hopper, parts, late_ns)
    assert not words.any()
    assert (finished.sum(axis=2) == 1).all()
    # The last one finishes its own; of the others some gave up, some did not.
    assert 2000 < finished[:, range(parts), range(parts)].sum() < 2000 * parts
