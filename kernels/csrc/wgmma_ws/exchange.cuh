// Exchange: the two blocks that share the k of a tile give each other half of their sums through distributed
// shared memory; each then finishes its half of the columns of wgmma's N.
#pragma once
#include "ptx/cluster.cuh"
#include "ptx/shared.cuh"
#include "wgmma_ws/stages.cuh"

class Exchange {
public:
    __device__ __forceinline__ Exchange(const SharedMemory& smem, int consumer) {
        const Neighbours neighbours;
        later = neighbours.depth;
        here = smem.exchange(consumer) + threadIdx.x % 128 * 16;
        arrived = smem.arrived(consumer), taken = smem.taken(consumer);
        there = cluster_address(here, neighbours.partner());
        there_arrived = cluster_address(arrived, neighbours.partner());
        there_taken = cluster_address(taken, neighbours.partner());
    }

    // The half that this block finishes is then the first half of `acc`.
    __device__ __forceinline__ void run(Sums& acc) {
        mbarrier_wait(taken, phase ^ 1);
        if (threadIdx.x % 128 == 0) mbarrier_arrive_expect(arrived, exchange_bytes);
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int p = 0; p < half; p += 2) {
                const Pair x = pick(acc, block, p, !later), y = pick(acc, block, p + 1, !later);
                const Sent sent{x.x, x.y, y.x, y.y};
                store_remote(there + number(block, p) * 2048, reinterpret_cast<const uint4&>(sent), there_arrived);
            }
        mbarrier_wait(arrived, phase);
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int p = 0; p < half; p += 2) {
                const uint4 bits = load_shared_128(here + number(block, p) * 2048);
                const Sent other = reinterpret_cast<const Sent&>(bits);
                const Pair x = pick(acc, block, p, later), y = pick(acc, block, p + 1, later);
                acc.set_pair(block, p, x.x + other.a, x.y + other.b);
                acc.set_pair(block, p + 1, y.x + other.c, y.y + other.d);
            }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_remote(there_taken);
        phase ^= 1;
    }

    // Waits until the partner has read what it was sent last, and will not write to this block again.
    __device__ __forceinline__ void leave() const { mbarrier_wait(taken, phase ^ 1); }

private:
    static constexpr int half = Sums::pairs / 2;
    struct alignas(16) Sent { Real a, b, c, d; };
    int later; // whether this block has the second half of k, and finishes that of the columns
    unsigned here, there, arrived, taken, there_arrived, there_taken, phase = 0;

    static __device__ __forceinline__ int number(int block, int p) { return (block * half + p) / 2; }
    static __device__ __forceinline__ Pair pick(const Sums& acc, int block, int p, bool second) {
        const Pair low = acc.pair(block, p), high = acc.pair(block, half + p);
        return {second ? high.x : low.x, second ? high.y : low.y};
    }
};
