// Loader: the panels of the weights that a warp brings in, ahead of its products, and what is brought into the L2 before.
#pragma once
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "stream/memory.cuh"
#include "stream/work.cuh"

// Brings the boxes of the first stages of the block's first unit into the L2, one a thread.
__device__ __forceinline__ void prefetch_weights(const Work& work, const TensorMap* map) {
    if (threadIdx.x >= cfg::prefetch * cfg::stage_panels) return;
    const Unit unit = work.unit(blockIdx.x);
    const int panel = unit.begin + threadIdx.x;
    if (panel < unit.end) tma_prefetch(map, panel * cfg::panel_k, unit.wide * cfg::tile_wide, unit.batch);
}

// A warp's walk over the stages of all units of its block, ahead of the multiplications.
struct Loader {
    const Work& work;
    const SharedMemory& shared;
    const TensorMap* map;
    int warp, index;
    Unit unit;
    int panel; // first one of the stage

    __device__ __forceinline__ Loader(const Work& work, const SharedMemory& shared, const TensorMap* map, int warp)
        : work(work), shared(shared), map(map), warp(warp), index(blockIdx.x), unit(work.unit(index)), panel(unit.begin) {}

    // Loads the warp's panels of the next stage, if there is one, into `stage`. Called by whole warps.
    __device__ __forceinline__ void next(int stage) {
        while (panel >= unit.end) {
            const int following = index + gridDim.x;
            if (following >= work.units) return;
            index = following;
            unit = work.unit(index);
            panel = unit.begin;
        }
        if (elect_lane()) load(stage);
        panel += cfg::stage_panels;
    }

private:
    __device__ __forceinline__ void load(int stage) const {
        const int left = unit.end - panel - warp; // 0 or less: nothing of this stage is the warp's
        const int mine = left <= 0 ? 0 : min(cfg::panels, (left + cfg::warps - 1) / cfg::warps);
        const unsigned full = shared.full(stage, warp);
        mbarrier_arrive_expect(full, mine * SharedMemory::box_bytes);
#pragma unroll
        for (int p = 0; p < cfg::panels; ++p) {
            const int at = warp + p * cfg::warps;
            if (p < mine)
                tma_load<cfg::hint>(shared.panel(stage, at), map, full, (panel + at) * cfg::panel_k,
                                    unit.wide * cfg::tile_wide, unit.batch);
        }
    }
};
