// Producer: the lane that asks for the weights, and what is brought into the L2 before.
#pragma once
#include "ptx/tma.cuh"
#include "stream/memory.cuh"
#include "stream/work.cuh"
#include "tile/ring.cuh"

using Place = Slot<cfg::stages>;

// Brings the boxes of the first stages of the block's first unit into the L2, one a thread.
__device__ __forceinline__ void prefetch_weights(const Work& work, const TensorMap* map) {
    if (threadIdx.x >= cfg::prefetch * cfg::stage_panels) return;
    const Unit unit = work.unit(work.first);
    const int panel = unit.begin + threadIdx.x;
    if (panel < unit.end) tma_prefetch(map, panel * cfg::panel_k, unit.wide * cfg::tile_wide, unit.batch);
}

// Keeps the ring full. NOTE: the boxes of a stage are asked for in one go; where each warp asked for its own, as
// it came to need them, the same weights mostly took 1 to 7 % longer (docs/hopper.md, "Asking for weights").
__device__ __forceinline__ void produce(const Work& work, const SharedMemory& shared, const TensorMap* map) {
    Place slot;
    for (int index = work.first; index < work.units; index += work.step) {
        const Unit unit = work.unit(index);
        for (int panel = unit.begin; panel < unit.end; panel += cfg::stage_panels) {
            const int boxes = min(cfg::stage_panels, unit.end - panel);
            const unsigned full = shared.full(slot.stage);
            mbarrier_wait(shared.empty(slot.stage), slot.phase ^ 1);
            mbarrier_arrive_expect(full, boxes * SharedMemory::box_bytes);
#pragma unroll
            for (int at = 0; at < cfg::stage_panels; ++at)
                if (at < boxes)
                    tma_load<cfg::hint>(shared.panel(slot.stage, at), map, full, (panel + at) * cfg::panel_k,
                                        unit.wide * cfg::tile_wide, unit.batch);
            slot.advance();
        }
    }
}
