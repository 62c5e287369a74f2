// Tally: two words a tile, by which the blocks that each hold a part of it settle who finishes which share.
//
// Every block wants to finish its own share once all parts have arrived, and waits for them a while only: the others
// may not be running. One that gives up says so in the first word; the last to arrive finds that there and finishes the
// share in its place. Whether a block gave up before or after the last one arrived is settled by the order of their
// two additions, so each share is finished exactly once, and no block ever depends on another's progress.
#pragma once
#include "ptx/atomic.cuh"

// Clocks that a block waits: longer than the blocks of a wave are apart. Tests set others.
#ifndef TALLY_CLOCKS
#define TALLY_CLOCKS 65536
#endif

constexpr int tally_spacing = 8; // words from one tally to the next: each has a sector of the L2

template <int PARTS> struct Tally {
    static_assert(PARTS <= 16, "at most 16 blocks share a tile out: a word has two bits for each");
    unsigned* words; // parts that arrived (16 bits) and that gave up (16 bits); how many will not read that again

    // Called by one thread, whose block left its part of all shares but its own. The shares it must finish, a bit each; none if
    // others are late: then it must give up.
    __device__ __forceinline__ unsigned settle(int part) const {
        const unsigned own = 1u << part, found = atomic_add_acq_rel(words, own) | own;
        if (complete(found)) return found >> 16 | own;
        for (const long long start = clock64(); clock64() - start < TALLY_CLOCKS;)
            if (complete(load_acquire(words))) return own;
        return 0;
    }

    // Called by the same thread if others were late, its block having left its part of its own share as well. Its own
    // share, as a bit, if they have arrived by now; otherwise the last of them to arrive finishes it.
    __device__ __forceinline__ unsigned give_up(int part) const {
        const unsigned own = 1u << part;
        return complete(atomic_add_acq_rel(words, own << 16)) ? own : 0;
    }

    // Called by the same thread when it knows its shares, and clear() with what this gave once they are finished, by when
    // it is here: the last one leaves the words zero, as they were.
    __device__ __forceinline__ unsigned leave() const { return atomicAdd(words + 1, 1u); }
    __device__ __forceinline__ void clear(unsigned before) const {
        if (before == PARTS - 1) words[0] = words[1] = 0;
    }

private:
    static constexpr unsigned all = (1u << PARTS) - 1;
    static __device__ __forceinline__ bool complete(unsigned word) { return (word & all) == all; }
};
