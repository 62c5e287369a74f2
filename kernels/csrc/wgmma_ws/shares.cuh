// Stream-K: `steps` k tiles, counted through several tiles, in shares that differ by at most one.
#pragma once

struct Shares {
    int count, least, larger; // shares, k tiles of the smallest, and how many have one more

    // At least `least_share` k tiles a share if there are so many.
    static __device__ __forceinline__ Shares of(int steps, int most, int least_share) {
        const int wanted = steps / least_share, bounded = wanted < most ? wanted : most;
        const int count = bounded > 1 ? bounded : 1;
        return {count, steps / count, steps % count};
    }

    // First k tile of a share; that of share `count` is where all end.
    __device__ __forceinline__ int first(int share) const { return least * share + (share < larger ? share : larger); }

    // Whose share a k tile is in: the inverse of first().
    // NOTE: in 32 bits; a 64-bit division is a call, for which a producer has too few registers.
    __device__ __forceinline__ int owner(int step) const {
        const int beyond = step - larger * (least + 1);
        return beyond < 0 ? step / (least + 1) : larger + beyond / least;
    }
};
