// Tally: one word a tile, by which the blocks that each hold a part of it settle who finishes which share.
//
// Every block wants to finish its own share once all parts have arrived, and waits for them a while only: the others
// may not be running. One that gives up says so in the word; the last to arrive finds that there and finishes the
// share in its place. Whether a block gave up before or after the last one arrived is settled by the order of their
// two additions, so each share is finished exactly once, and no block ever depends on another's progress.
#pragma once

// Clocks that a block waits: longer than the blocks of a wave are apart. Tests set others.
#ifndef TALLY_CLOCKS
#define TALLY_CLOCKS 65536
#endif

struct Tally {
    static constexpr int most_parts = 16;
    unsigned* word; // parts that arrived (8 bits), that will not read it again (8 bits), that gave up (a bit each)

    // Called by one thread, whose block's part of all shares but its own is visible to all. The shares it must finish, a
    // bit each; none if others are late: then it must give up.
    __device__ __forceinline__ unsigned settle(int part, int parts) const {
        const unsigned own = 1u << part;
        const unsigned found = atomicAdd(word, 1u) + 1u;
        if (arrived(found) == parts) return found >> 16 | own;
        for (const long long start = clock64(); clock64() - start < TALLY_CLOCKS;)
            if (arrived(*static_cast<volatile unsigned*>(word)) == parts) return own;
        return 0;
    }

    // Called by the same thread if others were late, its block's part of its own share being visible to all as well. Its
    // own share, as a bit, if they have arrived by now; otherwise the last of them to arrive finishes it.
    __device__ __forceinline__ unsigned give_up(int part, int parts) const {
        const unsigned own = 1u << part;
        return arrived(atomicAdd(word, own << 16)) == parts ? own : 0;
    }

    // Called by the same thread when its shares are finished; the last one leaves the word zero, as it was.
    __device__ __forceinline__ void leave(int parts) const {
        if ((atomicAdd(word, 1u << 8) >> 8 & 255u) + 1 == parts) *word = 0;
    }

private:
    static __device__ __forceinline__ int arrived(unsigned value) { return value & 255u; }
};
