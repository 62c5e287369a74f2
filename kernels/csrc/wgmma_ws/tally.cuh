// Tally: a word of 64 bits a tile, by which the blocks that each hold a part of it settle who finishes which share.
//
// Every block wants to finish its own share once all parts have arrived, and waits for them a while only: the others
// may not be running. One that gives up says so in the word; the last to arrive finds that there and finishes the
// share in its place. Whether a block gave up before or after the last one arrived is settled by the order of their
// two additions, so each share is finished exactly once, and no block ever depends on another's progress.
#pragma once
#include "ptx/atomic.cuh"

// Clocks that a block waits: longer than the blocks of a wave are apart. Tests set others.
#ifndef TALLY_CLOCKS
#define TALLY_CLOCKS 65536
#endif

constexpr int tally_bytes = 32; // from one tally to the next: each has a sector of the L2

template <int PARTS> struct Tally {
    static_assert(PARTS <= 16, "at most 16 blocks share a tile out: the word has 16 bits of a kind");
    using Word = unsigned long long; // parts that arrived (16 bits), parts that gave up (16 bits), how many departed
    Word* word;

    explicit __device__ __forceinline__ Tally(void* at) : word(static_cast<Word*>(at)) {}

    // Called by one thread, whose block wrote its part of all shares but its own. The shares it must finish, a bit each; none if
    // others are late: then it must give up.
    __device__ __forceinline__ unsigned settle(int part) const {
        const unsigned own = 1u << part;
        const Word found = atomic_add_acq_rel(word, Word(own)) | own;
        if (complete(found)) return unsigned(found) >> 16 | own;
        for (const long long start = clock64(); clock64() - start < TALLY_CLOCKS;)
            if (complete(load_acquire(word))) return own;
        return 0;
    }

    // Called by the same thread if others were late, its block having written its part of its own share as well. Its own
    // share, as a bit, if they have arrived by now; otherwise the last of them to arrive finishes it.
    __device__ __forceinline__ unsigned give_up(int part) const {
        const unsigned own = 1u << part;
        return complete(atomic_add_acq_rel(word, Word(own) << 16)) ? own : 0;
    }

    // Called by the same thread when it knows its shares, and clear() with what this gave when they are finished: in between
    // the addition has its time. The last to depart leaves the word zero, as it was.
    __device__ __forceinline__ unsigned depart() const { return atomicAdd(word, Word(1) << 32) >> 32; }
    __device__ __forceinline__ void clear(unsigned departed_before) const {
        if (departed_before == PARTS - 1) store_relaxed(word, 0);
    }

private:
    static constexpr Word all = (1u << PARTS) - 1;
    static __device__ __forceinline__ bool complete(Word word) { return (word & all) == all; }
};
