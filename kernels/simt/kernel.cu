// GEMM on the ordinary FMA units: any element type, any layout, any alignment, any size. The family for float32, and the
// fallback for other types.
//
// Tiles: a CTA computes TILE_M x TILE_N of D in steps of TILE_K. A thread computes THREAD_M x THREAD_N as groups of V
// neighbours (V elements are 16 bytes), one group for each thread in turn, so that shared memory is read in conflict-free
// 16-byte accesses. blockIdx = (tile in raster order, split, batch).
// With STAGES 0 there is no shared memory: a thread reads its rows of A and columns of B itself, which costs the fewest
// instructions if k is short, and its elements are as many threads apart as there are along the axis (V = 1).
// Shared memory: STAGES x (A as TILE_K x (TILE_M + V) | B as TILE_K x (TILE_N + V)) in the accumulate type. With two stages
// the next tile waits in registers while this one is multiplied.
// Minimum sm_80. Does not use tensor cores.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=float -DOUT_TYPE=float -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=128 -DTILE_K=16 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1 -DALIGN_D=4
//   -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DTHREAD_M=8 -DTHREAD_N=8 -DSTAGES=2 simt/kernel.cu
#include "common/config.cuh"
#include "common/epilogue.cuh"
#include "common/raster.cuh"
#include "common/split_k.cuh"

namespace cfg {
constexpr int thread_m = THREAD_M, thread_n = THREAD_N, stages = STAGES;
constexpr bool direct = stages == 0;
constexpr int vector = direct ? 1 : 16 / int(sizeof(ElementAccumulator));
constexpr int threads_m = tile_m / thread_m, threads_n = tile_n / thread_n;
constexpr int threads = threads_m * threads_n;
} // namespace cfg
static_assert(cfg::stages >= 0 && cfg::stages <= 2, "STAGES is 0, 1 or 2");
static_assert(cfg::thread_m % cfg::vector == 0 && cfg::thread_n % cfg::vector == 0, "a thread's tile is whole 16-byte groups");
static_assert(cfg::tile_m % cfg::thread_m == 0 && cfg::tile_n % cfg::thread_n == 0, "the tiles of the threads fill the CTA's tile");
static_assert(cfg::threads >= 32 && cfg::threads <= 1024 && cfg::threads % 32 == 0, "a CTA has 1 to 32 whole warps");
static_assert(cfg::direct || (cfg::tile_m * cfg::tile_k % cfg::threads == 0 && cfg::tile_n * cfg::tile_k % cfg::threads == 0),
              "every thread loads the same number of elements");

// A tile of one operand, EXTENT x TILE_K, whose rows run along k (K_MAJOR) or along the extent.
template <int EXTENT, bool K_MAJOR> struct OperandTile {
    static constexpr int stride = EXTENT + cfg::vector;
    static constexpr int elements = cfg::tile_k * stride;
    static constexpr int per_thread = cfg::direct ? 1 : EXTENT * cfg::tile_k / cfg::threads;

    static __device__ __forceinline__ void position(int i, int& x, int& k) {
        const int id = threadIdx.x + i * cfg::threads;
        x = K_MAJOR ? id / cfg::tile_k : id % EXTENT;
        k = K_MAJOR ? id % cfg::tile_k : id / EXTENT;
    }
    // Loads the tile at (x0, k0) of an operand of `extent` x `depth`, with zeros outside.
    static __device__ __forceinline__ void fetch(ElementAccumulator (&held)[per_thread], const In* matrix, long long ld,
                                                 int x0, int k0, int extent, int depth) {
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
            int x, k;
            position(i, x, k);
            const long long row = ld * Packing<In>::value; // in elements
            const long long at = K_MAJOR ? (x0 + x) * row + k0 + k : (k0 + k) * row + x0 + x;
            held[i] = x0 + x < extent && k0 + k < depth ? ElementAccumulator(element_of(matrix, at)) : ElementAccumulator(0);
        }
    }
    static __device__ __forceinline__ void store(ElementAccumulator* smem, const ElementAccumulator (&held)[per_thread]) {
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
            int x, k;
            position(i, x, k);
            smem[k * stride + x] = held[i];
        }
    }
};

using TileA = OperandTile<cfg::tile_m, !cfg::a_transposed>;
using TileB = OperandTile<cfg::tile_n, cfg::b_transposed>;
constexpr int stage_elements = TileA::elements + TileB::elements;

extern __shared__ __align__(16) char smem[];

// The position on an axis of element i of a thread, in groups of V.
template <int THREADS> __device__ __forceinline__ int thread_element(int thread, int i) {
    return i / cfg::vector * (THREADS * cfg::vector) + thread * cfg::vector + i % cfg::vector;
}

template <int COUNT, int THREADS>
__device__ __forceinline__ void load_elements(ElementAccumulator (&out)[COUNT], const ElementAccumulator* row, int thread) {
    struct alignas(16) Group { ElementAccumulator x[cfg::vector]; };
#pragma unroll
    for (int i = 0; i < COUNT; i += cfg::vector) {
        const Group group = *reinterpret_cast<const Group*>(row + thread_element<THREADS>(thread, i));
#pragma unroll
        for (int v = 0; v < cfg::vector; ++v) out[i + v] = group.x[v];
    }
}

__device__ __forceinline__ void multiply_tile(ElementAccumulator (&acc)[cfg::thread_m][cfg::thread_n],
                                              const ElementAccumulator* stage, int row, int col) {
#pragma unroll
    for (int k = 0; k < cfg::tile_k; ++k) {
        ElementAccumulator x[cfg::thread_m], y[cfg::thread_n];
        load_elements<cfg::thread_m, cfg::threads_m>(x, stage + k * TileA::stride, row);
        load_elements<cfg::thread_n, cfg::threads_n>(y, stage + TileA::elements + k * TileB::stride, col);
#pragma unroll
        for (int i = 0; i < cfg::thread_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::thread_n; ++j) acc[i][j] += x[i] * y[j];
    }
}

// Rows or columns of one operand that a thread reads itself. Those outside the matrix repeat its last one: their products are never
// stored.
template <int COUNT, int THREADS, bool K_MAJOR> struct DirectOperand {
    const In* matrix;
    long long row; // elements from row to row
    long long at[COUNT];

    __device__ __forceinline__ DirectOperand(const In* matrix_, long long ld, int first, int thread, int extent)
        : matrix(matrix_), row(ld * Packing<In>::value) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            at[i] = min(first + thread_element<THREADS>(thread, i), extent - 1) * (K_MAJOR ? row : 1);
    }
    __device__ __forceinline__ void load(ElementAccumulator (&x)[COUNT], int k) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = ElementAccumulator(element_of(matrix, at[i] + k * (K_MAJOR ? 1 : row)));
    }
};
using DirectA = DirectOperand<cfg::thread_m, cfg::threads_m, !cfg::a_transposed>;
using DirectB = DirectOperand<cfg::thread_n, cfg::threads_n, cfg::b_transposed>;

__device__ __forceinline__ void multiply_direct(ElementAccumulator (&acc)[cfg::thread_m][cfg::thread_n], const DirectA& a,
                                                const DirectB& b, int begin, int end) {
#pragma unroll 4
    for (int k = begin; k < end; ++k) {
        ElementAccumulator x[cfg::thread_m], y[cfg::thread_n];
        a.load(x, k);
        b.load(y, k);
#pragma unroll
        for (int i = 0; i < cfg::thread_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::thread_n; ++j) acc[i][j] += x[i] * y[j];
    }
}

// Multiplies k tiles `first` to `end` by way of shared memory.
__device__ __forceinline__ void multiply_staged(ElementAccumulator (&acc)[cfg::thread_m][cfg::thread_n], const In* a, long long lda,
                                                const In* b, long long ldb, TileCoord origin, int m, int n, int k, int first,
                                                int end, int thread_row, int thread_col) {
    ElementAccumulator held_a[TileA::per_thread], held_b[TileB::per_thread];
    const auto fetch = [&](int index) {
        TileA::fetch(held_a, a, lda, origin.m, index * cfg::tile_k, m, k);
        TileB::fetch(held_b, b, ldb, origin.n, index * cfg::tile_k, n, k);
    };
    const auto store = [&](ElementAccumulator* stage) {
        TileA::store(stage, held_a);
        TileB::store(stage + TileA::elements, held_b);
    };
    ElementAccumulator* const stages = reinterpret_cast<ElementAccumulator*>(smem);
    if (first < end) fetch(first);
    for (int index = first; index < end; ++index) {
        ElementAccumulator* stage = stages + (cfg::stages == 2 ? index % 2 : 0) * stage_elements;
        store(stage);
        __syncthreads();
        if (index + 1 < end) fetch(index + 1);
        multiply_tile(acc, stage, thread_row, thread_col);
        if (cfg::stages == 1) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(cfg::threads, 1) simt(GEMM_PARAMETERS) {
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const TileCoord tile = raster_tile(blockIdx.x, tiles_m, tiles_n);
    const int row0 = tile.m * cfg::tile_m, col0 = tile.n * cfg::tile_n;
    const long long batch = blockIdx.z;
    a += batch * stride_a, b += batch * stride_b, d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;

    const int all_k_tiles = (k + cfg::tile_k - 1) / cfg::tile_k;
    const int split_tiles = (all_k_tiles + cfg::split_k - 1) / cfg::split_k;
    const int first = min(int(blockIdx.y) * split_tiles, all_k_tiles), end = min(first + split_tiles, all_k_tiles);
    const int thread_row = threadIdx.x / cfg::threads_n, thread_col = threadIdx.x % cfg::threads_n;

    ElementAccumulator acc[cfg::thread_m][cfg::thread_n] = {};
    if constexpr (cfg::direct)
        multiply_direct(acc, DirectA(a, lda, row0, thread_row, m), DirectB(b, ldb, col0, thread_col, n), first * cfg::tile_k,
                        min(end * cfg::tile_k, k));
    else
        multiply_staged(acc, a, lda, b, ldb, {row0, col0}, m, n, k, first, end, thread_row, thread_col);

    if constexpr (cfg::split_k > 1) {
        constexpr int values = cfg::thread_m * cfg::thread_n;
        const int tiles = tiles_m * tiles_n;
        SplitK<values, cfg::threads> reducer(workspace, int(batch) * tiles + blockIdx.x, tiles * gridDim.z);
        if (!reducer.reduce(reinterpret_cast<ElementAccumulator(&)[values]>(acc), threadIdx.x, true, blockIdx.y)) return;
    }
    const Epilogue epilogue{c, d, bias, ldc, ldd, m, n, alpha, beta};
#pragma unroll
    for (int i = 0; i < cfg::thread_m; ++i) {
        const int row = row0 + thread_element<cfg::threads_m>(thread_row, i);
#pragma unroll
        for (int j = 0; j < cfg::thread_n; ++j) {
            const int col = col0 + thread_element<cfg::threads_n>(thread_col, j);
            if constexpr (cfg::direct)
                epilogue.store(acc[i][j], row, col);
            else if (j % 2 == 0)
                epilogue.store2(acc[i][j], acc[i][j + 1], row, col);
        }
    }
}
