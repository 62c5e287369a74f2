// Gather: the blocks of a cluster have sums of one tile over different k; each gets what the others have of its share
// of the tile, through distributed shared memory.
#pragma once
#include "ptx/cluster.cuh"
#include "stream/memory.cuh"

// One thread's part in it; the team meets between two calls of run(). NOTE: inboxes are used in turn. A block that
// sends to one for the second time has what all others sent to the other one, which they did after they had read this one.
class Gather {
public:
    __device__ __forceinline__ Gather(const SharedMemory& shared, int rank) : shared(shared), rank(rank) {}

    // Makes the values of this block's share sums over all of k, and all that is to be stored.
    template <class Finish> __device__ __forceinline__ void run(Finish& finish) {
        const int place = unit & 1;
        finish.begin = rank * cfg::own_elements, finish.end = finish.begin + cfg::own_elements;
        if (threadIdx.x == 0) mbarrier_arrive_expect(shared.arrived(place), others * int(sizeof(Real)));
#pragma unroll
        for (int v = 0; v < Finish::values; ++v) {
            const int at = threadIdx.x + v * cfg::threads, owner = at / cfg::own_elements;
            if (at < cfg::elements && owner != rank) send(place, owner, at - owner * cfg::own_elements, finish.value[v]);
        }
#pragma unroll
        for (int v = 0; v < Finish::values; ++v) {
            const int at = threadIdx.x + v * cfg::threads - finish.begin;
            if (at >= 0 && at < cfg::own_elements) finish.value[v] = sum(place, at, finish.value[v]);
        }
        ++unit;
    }

private:
    static constexpr int others = cfg::elements - cfg::own_elements; // elements that arrive
    const SharedMemory& shared;
    int rank, unit = 0;

    __device__ __forceinline__ void send(int place, int owner, int at, Real value) const {
        const unsigned to = smem_address(shared.inbox(place, rank) + at);
        const unsigned arrived = cluster_address(shared.arrived(place), owner);
        store_remote(cluster_address(to, owner), reinterpret_cast<const unsigned&>(value), arrived);
    }
    // In the order of k.
    __device__ __forceinline__ Real sum(int place, int at, Real own) const {
        mbarrier_wait(shared.arrived(place), unit >> 1 & 1);
        Real total = 0;
#pragma unroll
        for (int r = 0; r < cfg::cluster_k; ++r) total += r == rank ? own : shared.inbox(place, r)[at];
        return total;
    }
};
