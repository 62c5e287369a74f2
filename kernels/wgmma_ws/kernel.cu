// GEMM by specialised warpgroups: one lane of a producer warpgroup fills a ring of shared-memory stages by TMA, consumer
// warpgroups multiply by wgmma and store. CTAs are persistent. sm_90a only; f16, bf16 (all layouts), e4m3, e5m2, s8, u8 (k
// contiguous). TMA takes rows of A and B that are multiples of 16 bytes; others are copied by repack_rows() in a launch before.
// m, n and k are otherwise free.
//
// In order of execution: config.cuh (-D interface, tiles, shared memory), scheduler.cuh (work tiles, clusters), this file
// (producer, consumer, the kernel, repack_rows), split_k.cuh (splits of k), epilogue.cuh (D). The grid is at most one CTA an SM,
// in clusters of CLUSTER_M x CLUSTER_N x CLUSTER_K along x. Techniques: NVIDIA's CUTLASS 3 (warp specialisation, cooperative and
// ping-pong schedules, multicast), P. Arora's fast.cu, DeepSeek's DeepGEMM.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=256 -DTILE_K=64 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=8 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DSCHEDULE=0 -DCONSUMERS_M=2 -DCONSUMERS_N=1 -DSTAGES=4
//   -DCLUSTER_M=2 -DCLUSTER_N=1 -DCLUSTER_K=1 -DSWAP_AB=0 -DACCUMULATE=0 -DEPILOGUE=2 -DSTORE_STAGES=2
//   -DHINT_A=0 -DHINT_B=0 -DHINT_D=0 -DREDUCTION=0 -DREPACK=0 -DPROMOTE=0 -DPREFETCH=0 -DPREFETCH_A=0 -DCTA_ORDER=0
//   -DREVERSE_K=0 -DSECTOR_ALIGNED_STORE=0 -DLOAD_INTERVAL=0 wgmma_ws/kernel.cu
#include "common/ptx/control.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/repack.cuh"
#include "wgmma_ws/config.cuh"
#include "wgmma_ws/epilogue.cuh"
#include "wgmma_ws/scheduler.cuh"
#include "wgmma_ws/split_k.cuh"

// ---- Producer: one lane keeps the ring full; a second warp prefetches.

// Prefetches the CTA's slice of one operand's first k tiles into the L2, one k tile a lane, while the previous kernel ends, even
// if that kernel still writes the operand.
__device__ __forceinline__ void prefetch(const WorkTile& work, const TensorMap* map_a, const TensorMap* map_b) {
    const int lane = threadIdx.x % 32;
    if (lane >= min(cfg::prefetch, work.k_tiles())) return;
    const int index = work.k_tile(lane);
    const ClusterPosition position;
    if constexpr (cfg::prefetch_a)
        TileA::prefetch_slice(map_a, work.m, index, work.batch, position.column);
    else
        TileB::prefetch_slice(map_b, work.n, index, work.batch, position.row);
}

// Waits for the next multiple of LOAD_INTERVAL clocks. The clock counters of the SMs of a GPC run in step, so its producers load
// together, and the L2 serves those that load the same lines by one request.
__device__ __forceinline__ void await_load_interval() {
    constexpr unsigned interval = cfg::load_interval > 0 ? cfg::load_interval : 1;
    if constexpr (cfg::load_interval > 0)
        for (const unsigned now = unsigned(clock()) / interval; unsigned(clock()) / interval == now;) {}
}

// Loads `work` and all work tiles after it. NOTE: a stage is loaded again when the consumers of all CTAs that read it have
// released it, because a multicast overwrites their copies too.
__device__ __forceinline__ void produce(const SharedMemory& smem, Scheduler& scheduler, WorkTile& work, const TensorMap* map_a,
                                        const TensorMap* map_b) {
    const ClusterPosition position;
    const unsigned short multicast_a = position.multicast_a(), multicast_b = position.multicast_b();
    // The operand that is multicast comes first: one request to the L2 for the other operand then serves more neighbours of a
    // GPC.
    constexpr bool b_first = cfg::cluster_m > 1 && cfg::cluster_n == 1;
    const Stages& ring = smem.ring;
    RingState state;
    do {
        for (int count = 0; count < work.k_tiles(); ++count) {
            const int index = work.k_tile(count);
            mbarrier_wait(ring.empty(state.stage), state.phase ^ 1);
            const unsigned full = ring.full(state.stage);
            mbarrier_arrive_expect(full, Stages::stage_bytes);
            await_load_interval();
            const auto load_b = [&] {
                TileB::load_slice<cfg::hint_b>(ring.tile_b(state.stage), map_b, full, work.n, index, work.batch, position.row,
                                               multicast_b);
            };
            if constexpr (b_first) load_b();
            TileA::load_slice<cfg::hint_a>(ring.tile_a(state.stage), map_a, full, work.m, index, work.batch, position.column,
                                           multicast_a);
            if constexpr (!b_first) load_b();
            state.advance();
        }
    } while (scheduler.next(work));
    // NOTE: a CTA must not exit while another may still write to its shared memory, be it an arrival.
    if constexpr (cfg::cluster > 1)
        for (int stage = 0; stage < cfg::stages; ++stage) {
            mbarrier_wait(ring.empty(state.stage), state.phase ^ 1);
            state.advance();
        }
}

// ---- Consumer: a warpgroup that multiplies the stages of the ring, adds up splits of k and stores D.

class Consumer {
public:
    __device__ __forceinline__ Consumer(const SharedMemory& smem_, int consumer_)
        : smem(smem_), exchange(smem_, consumer_), consumer(consumer_), origin(consumer_) {
        const unsigned long long a = TileA::descriptor(smem.ring.tile_a(0)) + TileA::extent_offset(origin.row);
        const unsigned long long b = TileB::descriptor(smem.ring.tile_b(0)) + TileB::extent_offset(origin.column);
        x = cfg::swap_ab ? b : a, y = cfg::swap_ab ? a : b;
        origin.move_to_slice(position.k_partition);
    }

    __device__ __forceinline__ void run(Scheduler scheduler, Store store, const Partials& partials, long long stride_c,
                                        long long stride_d) {
        const Out* const c = store.epilogue.c;
        Out* const d = store.epilogue.d;
        Accumulator acc;
        WorkTile work;
        if (cfg::pingpong && consumer == 1) {
            order_arrive();
            skip_other(scheduler);
        }
        while (scheduler.next(work)) {
            const auto place = [&](int slice) {
                store.row0 = work.m + origin.row, store.col0 = work.n + origin.column, store.batch = work.batch;
                (cfg::swap_ab ? store.row0 : store.col0) += slice * cfg::slice_n;
            };
            if constexpr (cfg::loads_c) place(0);
            if constexpr (PrefetchC::useful) {
                const int m0 = work.m + origin.row, n0 = work.n + origin.column;
                ahead.start(store.epilogue, c + work.batch * stride_c + m0 * store.epilogue.ldc + n0, m0, n0, work.k_tiles());
            }
            if constexpr (cfg::pingpong) order_wait();
            if constexpr (cfg::promote > 0)
                multiply_promoted(acc, work.k_tiles(), store);
            else
                multiply(acc, work.k_tiles(), store);
            if constexpr (cfg::pingpong) order_arrive();
            if constexpr (cfg::promote == 0) finish(acc, work.k_tiles());
            if constexpr (cfg::cluster_k > 1) exchange.run(acc);
            const auto store_slice = [&](int slice) {
                if constexpr (!cfg::loads_c) place(slice);
                store.epilogue.d = d + work.batch * stride_d;
                if constexpr (cfg::has_c && !cfg::loads_c) store.epilogue.c = c + work.batch * stride_c;
                if constexpr (cfg::overlapped_store)
                    store.keep(acc);
                else
                    store.run(acc, smem);
            };
            if constexpr (cfg::reduce_scatter)
                partials.reduce_slices(acc, work, store_slice);
            else if constexpr (cfg::reduce_kernel)
                partials.store(acc, work);
            else
                store_slice(0);
            if (cfg::pingpong && !skip_other(scheduler)) break;
        }
        if constexpr (cfg::overlapped_store) {
#pragma unroll
            for (int i = 0; i < Store::subtiles; ++i) store.store_kept(smem, i);
        }
        if constexpr (cfg::cluster_k > 1) exchange.drain();
        if (cfg::tma_store && threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

private:
    SharedMemory smem;
    ClusterPosition position;
    AccumulatorExchange exchange;
    int consumer;
    WarpgroupOrigin origin;  // of the slice that it finishes
    unsigned long long x, y; // descriptors in stage 0 of wgmma's A and B
    RingState state;
    PrefetchC ahead;

    // Ping-pong order: one consumer multiplies while the other stores. NOTE: named barrier 0 is for the start, 1 to 3 belong to
    // the consumers, 4 and 5 order them here, and 4 lets staggered ones meet.
    __device__ __forceinline__ void order_wait() const { named_barrier_sync(4 + consumer, 256); }
    __device__ __forceinline__ void order_arrive() const { named_barrier_arrive(5 - consumer, 256); }
    // Skips the other consumer's work tile and its stages; false if there is none.
    __device__ __forceinline__ bool skip_other(Scheduler& scheduler) {
        WorkTile other;
        if (!scheduler.next(other)) return false;
        state.advance(other.k_tiles());
        return true;
    }

    __device__ __forceinline__ void multiply(Accumulator& acc, int k_tiles, Store& store) {
        int index = 0;
        if constexpr (cfg::overlapped_store) {
            // Stores the previous tile, one subtile after the products of each k tile.
#pragma unroll
            for (int i = 0; i < Store::subtiles; ++i) {
                if (index < k_tiles) multiply_next(acc, index++);
                store.store_kept(smem, i);
            }
        }
        if constexpr (cfg::staggered) {
            while (index < k_tiles - cfg::staggered_k_tiles) multiply_next(acc, index++);
            if (consumer == 1) meet_other();
        }
        if (cfg::loads_c && cfg::cluster_k > 1 && k_tiles == 0) store.read_c_ahead(smem, 0);
        while (index < k_tiles) {
            multiply_next(acc, index);
            if constexpr (cfg::loads_c) store.read_c_ahead(smem, index);
            ++index;
        }
        if (cfg::staggered && consumer == 0) meet_other();
    }
    // NOTE: both wait, so that neither arrives twice where tiles have few k tiles.
    __device__ __forceinline__ void meet_other() const { named_barrier_sync(4, 256); }

    // NOTE: a stage is released only after wgmma_wait has confirmed that its wgmma are complete; that they were issued is not
    // enough.
    __device__ __forceinline__ void multiply_next(Accumulator& acc, int index) {
        mbarrier_wait(smem.ring.full(state.stage), state.phase);
        multiply_tile(acc, state.stage, index);
        if constexpr (PrefetchC::useful) ahead.at(index);
        wgmma_wait<1>();
        if (index >= 1) release(state.stage >= 1 ? state.stage - 1 : cfg::stages - 1);
        state.advance();
    }
    __device__ __forceinline__ void finish(Accumulator& acc, int k_tiles) {
        acc.finish();
        if (cfg::split_k * cfg::cluster_k > 1 && k_tiles == 0) acc.clear();
        if (k_tiles > 0) release(state.stage > 0 ? state.stage - 1 : cfg::stages - 1);
    }

    // The tensor cores accumulate 8-bit floats with some 13 bits, so every few k tiles their accumulators are added to f32
    // accumulators outside the tensor cores, as in DeepGEMM.
    __device__ __forceinline__ void multiply_promoted(Accumulator& acc, int k_tiles, const Store& store) {
        constexpr int every = cfg::promote > 0 ? cfg::promote : 1;
        if (cfg::loads_c && cfg::cluster_k > 1 && k_tiles == 0) store.read_c_ahead(smem, 0);
        acc.clear();
        Accumulator chunk;
        for (int index = 0; index < k_tiles; ++index) {
            mbarrier_wait(smem.ring.full(state.stage), state.phase);
            multiply_tile(chunk, state.stage, index % every);
            if constexpr (PrefetchC::useful) ahead.at(index);
            if constexpr (cfg::loads_c) store.read_c_ahead(smem, index);
            chunk.finish();
            release(state.stage);
            state.advance();
            if (index % every == every - 1 || index == k_tiles - 1) acc.add(chunk);
        }
    }

    // With index = 0 the accumulators are overwritten.
    __device__ __forceinline__ void multiply_tile(Accumulator& acc, int stage, int index) const {
        const unsigned long long base = static_cast<unsigned long long>(stage) * (Stages::stage_bytes / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < cfg::k_steps; ++step)
#pragma unroll
            for (int atom = 0; atom < cfg::atoms; ++atom)
                acc.multiply(atom, x + base + x_offset(step, atom), y + base + y_offset(step), step > 0 ? 1 : index);
        wgmma_commit();
    }
    static constexpr __device__ __forceinline__ unsigned x_offset(int step, int atom) {
        return cfg::swap_ab ? TileB::step_offset(step) + TileB::extent_offset(atom * 64)
                            : TileA::step_offset(step) + TileA::extent_offset(atom * 64);
    }
    static constexpr __device__ __forceinline__ unsigned y_offset(int step) {
        return cfg::swap_ab ? TileA::step_offset(step) : TileB::step_offset(step);
    }

    // Releases a stage to every producer that loads it, in this CTA and in the cluster. One warp arrives for the warpgroup, whose
    // wgmma complete as one.
    __device__ __forceinline__ void release(int stage) const {
        if (threadIdx.x / 32 % 4) return;
        const unsigned lane = threadIdx.x % 32;
        if constexpr (cfg::cluster == 1) {
            if (lane == 0) mbarrier_arrive(smem.ring.empty(stage));
        } else {
            if (lane < ClusterPosition::readers)
                mbarrier_arrive_remote(cluster_address(smem.ring.empty(stage), position.reader(lane)));
        }
    }
};

// ---- The kernel.

// NOTE: aligning it costs nothing as long as there is no static shared memory before it.
extern __shared__ __align__(1024) char smem_start[];

// A lane of the producer's first warp initialises the barriers. Without a cluster it then loads at once; with one it waits for
// those of the other CTAs.
constexpr int announced_threads = 32 + 128 * cfg::consumers;
__device__ __forceinline__ void announce_barriers(int warp) {
    if constexpr (cfg::cluster > 1)
        cluster_arrive_barriers();
    else if (warp == 0)
        named_barrier_arrive(0, announced_threads);
}
__device__ __forceinline__ void await_barriers() {
    if constexpr (cfg::cluster > 1)
        cluster_wait_barriers();
    else
        named_barrier_sync(0, announced_threads);
}

#if CTA_ORDER == 1
#define ORDER_PARAMETER const __grid_constant__ CtaOrder order,
#define FIRST_WORK_TILE order.first[blockIdx.x / cfg::cluster]
#else
#define ORDER_PARAMETER
#define FIRST_WORK_TILE blockIdx.x / cfg::cluster
#endif
// NOTE: only kernels that store D by TMA take a tensor map of it: rows of other multiples could not be encoded.
#if EPILOGUE >= 2
#define MAP_D_PARAMETER const __grid_constant__ TensorMap map_d,
#define MAP_D &map_d
#else
#define MAP_D_PARAMETER
#define MAP_D nullptr
#endif
#if LOADS_C
#define MAP_C_PARAMETER const __grid_constant__ TensorMap map_c,
#define MAP_C &map_c
#else
#define MAP_C_PARAMETER
#define MAP_C nullptr
#endif

extern "C" __global__ void __launch_bounds__(cfg::threads, 1)
    wgmma_ws_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                  MAP_C_PARAMETER MAP_D_PARAMETER ORDER_PARAMETER int batch, GEMM_PARAMETERS) {
    if constexpr (!cfg::gpc_order) release_next_kernel();
    const SharedMemory smem(smem_address(smem_start));
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    // Every instruction and every parameter is fetched anew, so the first load comes some 0.8 us after the start. What others
    // wait for comes first: tensor maps, barriers, and of a cluster the news that this CTA has started.
    if (warp == 0) {
        if (elect_lane()) {
            tma_prefetch_map(&map_a);
            tma_prefetch_map(&map_b);
            smem.init((cfg::pingpong ? 1 : cfg::consumers) * ClusterPosition::readers);
        }
        __syncwarp();
    }
    announce_barriers(warp);
    Scheduler scheduler(m, n, k, batch, FIRST_WORK_TILE);
    // NOTE: the roles part at the top, so that the assembler gives each the registers it asks for.
    if (warp < 4) {
        if constexpr (cfg::consumers > 1) registers_decrease<cfg::producer_registers>();
        WorkTile work;
        const bool any = scheduler.next(work);
        if (cfg::prefetch > 0 && warp == 1 && any) prefetch(work, &map_a, &map_b);
        if constexpr (cfg::cluster > 1) await_barriers();
        if (warp == 0 && any && elect_lane()) {
            await_previous_kernel();
            produce(smem, scheduler, work, &map_a, &map_b);
        }
    } else {
        if constexpr (cfg::consumers > 1) registers_increase<cfg::consumer_registers>();
        const int consumer = warp / 4 - 1;
        const Store store({c, d, bias, ldc, ldd, m, n, alpha, beta}, MAP_C, MAP_D, consumer);
        if (cfg::tma_store && threadIdx.x % 128 == 0) tma_prefetch_map(MAP_D);
        if (cfg::loads_c && threadIdx.x % 128 == 0) tma_prefetch_map(MAP_C);
        __syncwarp();
        const Partials partials(workspace, scheduler, consumer, smem.word(consumer));
        await_barriers();
        await_previous_kernel();
        Consumer(smem, consumer).run(scheduler, store, partials, stride_c, stride_d);
    }
}

#if REPACK
// ---- The kernel before, for operands whose rows TMA cannot take. Tensor maps end before the bytes between two rows.

extern "C" __global__ void __launch_bounds__(256) repack_rows(REPACK_PARAMETERS) {
    if constexpr (!cfg::gpc_order) release_next_kernel();
    await_previous_kernel();
    repack_row<false>(source, target, rows, bytes, source_stride, target_stride, source_batch, target_batch);
}
#endif
