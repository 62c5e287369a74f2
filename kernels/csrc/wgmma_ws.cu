// GEMM with wgmma by specialised warpgroups: one lane of a producer fills a ring of shared-memory stages by
// TMA, consumers multiply and store; blocks are persistent. sm_90a only; f16, bf16 (all layouts), e4m3, e5m2,
// s8, u8 (k contiguous); rows of A and B must be multiples of 16 bytes, or are copied so by tile/repack.cuh in a
// launch before; m, n and k are otherwise free.
//
// The parts: wgmma_ws/scheduler.cuh (which tiles, which k; tile/where.cuh: on which blocks), producer.cuh, consumer.cuh,
// exchange.cuh and partials.cuh (sums of several blocks), epilogue.cuh, stages.cuh (shared memory). Blocks: a grid of at most
// one a multiprocessor, in clusters of CLUSTER_M x CLUSTER_N x CLUSTER_K along x. Techniques: NVIDIA's CUTLASS 3 (warp specialisation,
// cooperative and ping-pong schedules, multicast), P. Arora's fast.cu, DeepSeek's DeepGEMM.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=256 -DTILE_K=64 -DRASTER=0 -DRASTER_SNAKE=0 -DGROUP=8 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DSCHEDULE=0 -DCONSUMERS_M=2 -DCONSUMERS_N=1 -DSTAGES=4
//   -DIN_FLIGHT=1 -DCLUSTER_M=2 -DCLUSTER_N=1 -DCLUSTER_K=1 -DSTREAM_K=0 -DSWAP_AB=0 -DACCUMULATE=0 -DEPILOGUE=2
//   -DSTORE_STAGES=2 -DHINT_A=0 -DHINT_B=0 -DHINT_D=0 -DREDUCTION=0 -DREPACK=0 -DPROMOTE=0
//   -DPREFETCH=0 -DPREFETCH_A=0 -DPLACEMENT=0 -DSNAKE_K=0 -DEVEN_WAVES=0 -DWHOLE_SECTORS=0 -DBEAT=0 wgmma_ws.cu
#include "ptx/dependent.cuh"
#if REPACK
#include "tile/repack.cuh"
#endif
#include "wgmma_ws/consumer.cuh"
#include "wgmma_ws/producer.cuh"
#if REDUCTION == 1
#include "wgmma_ws/reduce.cuh"
#endif
#if PLACEMENT == 1
#include "tile/where.cuh"
#define ORDER_PARAMETER const __grid_constant__ BlockOrder order,
#define PLACE order.place[blockIdx.x / cfg::cluster]
#else
#define ORDER_PARAMETER
#define PLACE blockIdx.x / cfg::cluster
#endif

// TMA writes D only where it is asked to: a tensor map of other rows could not be encoded.
#if EPILOGUE >= 2
#define MAP_D_PARAMETER const __grid_constant__ TensorMap map_d,
#define MAP_D &map_d
#else
#define MAP_D_PARAMETER
#define MAP_D nullptr
#endif

// NOTE: aligning it costs nothing as long as there is no static shared memory before it.
extern __shared__ __align__(1024) char smem_start[];

// The barriers of the ring are initialised by a lane of the producer's first warp, which in a block without
// neighbours starts to load at once.
constexpr int announced_threads = 32 + 128 * cfg::consumers;
__device__ __forceinline__ void announce_barriers(int warp) {
    if constexpr (cfg::cluster > 1)
        cluster_sync_barriers();
    else if (warp == 0)
        named_barrier_arrive(0, announced_threads);
}
__device__ __forceinline__ void await_barriers() {
    if constexpr (cfg::cluster > 1)
        cluster_sync_barriers();
    else
        named_barrier_sync(0, announced_threads);
}

extern "C" __global__ void __launch_bounds__(cfg::threads, 1)
    wgmma_ws_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                  MAP_D_PARAMETER ORDER_PARAMETER int batch, GEMM_PARAMETERS) {
    if constexpr (!cfg::by_gpc) release_next_kernel();
    const SharedMemory smem(smem_address(smem_start));
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const Scheduler scheduler(m, n, k, batch, PLACE);
    // NOTE: the roles part at the top, so that the assembler gives each the registers it asks for.
    if (warp < 4) {
        if (cfg::prefetch > 0 && warp == 1) prefetch(scheduler, &map_a, &map_b);
        if constexpr (cfg::consumers > 1) registers_decrease<cfg::producer_registers>();
        if (warp == 0) {
            if (elect_lane()) smem.init((cfg::pingpong ? 1 : cfg::consumers) * Neighbours::count);
            __syncwarp();
        }
        announce_barriers(warp);
        if (warp == 0 && elect_lane()) {
            tma_prefetch_map(&map_a);
            tma_prefetch_map(&map_b);
            await_previous_kernel();
            produce(smem, scheduler, &map_a, &map_b);
        }
    } else {
        if constexpr (cfg::consumers > 1) registers_increase<cfg::consumer_registers>();
        const int consumer = warp / 4 - 1;
        const Store store({c, d, bias, ldc, ldd, m, n, alpha, beta}, MAP_D, consumer);
        const Partials partials(workspace, scheduler, consumer, smem.flag(consumer));
        await_barriers();
        await_previous_kernel();
        Consumer(smem, consumer).run(scheduler, store, partials, stride_c, stride_d);
    }
}
