// Operand tiles in shared memory, accumulators and pairs of finished elements of families wgmma and wgmma_ws.
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"

// One operand's tile in shared memory as TMA writes it and wgmma reads it: EXTENT rows of D (A) or columns of D (B) times
// DEPTH of k, in panels that are 128 bytes (64 elements of 16 bits, 128 of 8) wide along the contiguous axis.
//   K_MAJOR   panel p holds the p-th 128 bytes of k, one line of 128 bytes for each of EXTENT
//   else      panel p holds 64 p .. 64 p + 63 of EXTENT, one line of 128 bytes for each k
// Within 1024 bytes (8 lines), 16-byte chunk c of line l lies at chunk c ^ l: the 128-byte swizzle of TMA and wgmma; tiles
// start at multiples of 1024 bytes. SLICES CTAs of a cluster load for each other by multicast: each a slice of 1 / SLICES of
// the lines, or, if slices would not be multiples of 8 lines, the whole tile of every SLICES-th k tile.
// Mirrored by kernels/common/wgmma.py and tests/support/wgmma_layout.py.
template <class T, int EXTENT, int DEPTH, bool K_MAJOR, int SLICES = 1> struct WgmmaTile {
    static constexpr int panel = 128 / int(sizeof(T)); // elements
    static constexpr int panels = (K_MAJOR ? DEPTH : EXTENT) / panel;
    static constexpr int lines = K_MAJOR ? EXTENT : DEPTH;
    static constexpr int panel_bytes = lines * 128;
    static constexpr int bytes = panels * panel_bytes;
    static_assert((K_MAJOR ? DEPTH : EXTENT) % panel == 0, "the contiguous axis of a tile is whole panels");
    static constexpr bool divided = lines % (8 * SLICES) == 0;
    static_assert(lines % 8 == 0, "tiles are multiples of 1024 bytes");
    static_assert(K_MAJOR || sizeof(T) == 2, "wgmma transposes 16-bit elements only");

    // One box for LINES lines of a panel, or for all if that is 0; x0 is where the tile starts along EXTENT.
    template <int LINES>
    static __device__ __forceinline__ void load(unsigned smem, const TensorMap* map, unsigned barrier, int x0, int k0,
                                                int batch) {
        constexpr int box_lines = LINES ? LINES : lines;
#pragma unroll
        for (int p = 0; p < panels; ++p)
#pragma unroll
            for (int line = 0; line < lines; line += box_lines) {
                const int column = (K_MAJOR ? k0 : x0) + p * panel, row = (K_MAJOR ? x0 : k0) + line;
                tma_load(smem + p * panel_bytes + line * 128, map, barrier, column, row, batch);
            }
    }

    // Loads slice `slice` of k tile `index` into all CTAs of `ctas`, or the whole tile into this CTA if SLICES is 1.
    template <CacheHint HINT>
    static __device__ __forceinline__ void load_slice(unsigned smem, const TensorMap* map, unsigned barrier, int x0, int index,
                                                      int batch, int slice, unsigned short ctas) {
        each_box(x0, index, slice, [&](int offset, int column, int row) {
            if constexpr (SLICES > 1)
                tma_load_multicast<HINT>(smem + offset, map, barrier, column, row, batch, ctas);
            else
                tma_load<HINT>(smem + offset, map, barrier, column, row, batch);
        });
    }

    // Prefetches into the L2 what load_slice() will load.
    static __device__ __forceinline__ void prefetch_slice(const TensorMap* map, int x0, int index, int batch, int slice) {
        each_box(x0, index, slice, [&](int, int column, int row) { tma_prefetch(map, column, row, batch); });
    }

    // NOTE: the stride offset goes from 8 lines to the next 8, the leading offset from panel to panel; a
    // K-major wgmma never leaves its panel and ignores the latter.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned smem) {
        return wgmma_descriptor(smem, K_MAJOR ? 1 : panel_bytes / 16, 1024 / 16);
    }

    // What to add to a descriptor, in units of 16 bytes, for a step of 32 bytes (16 elements if not K_MAJOR)
    // along k, and for x elements along EXTENT: a multiple of 8, of 64 if not K_MAJOR.
    static constexpr __device__ __forceinline__ unsigned step_offset(int step) {
        return K_MAJOR ? step / 4 * (panel_bytes / 16) + step % 4 * 2 : step * 128;
    }
    static constexpr __device__ __forceinline__ unsigned extent_offset(int x) {
        return K_MAJOR ? x * 8 : x / 64 * (panel_bytes / 16);
    }

private:
    // The boxes of a slice, one a panel: their offset in the tile, and their position in the tensor.
    template <class Box> static __device__ __forceinline__ void each_box(int x0, int index, int slice, Box box) {
        if (!divided && index % SLICES != slice) return;
        constexpr int slice_lines = divided ? lines / SLICES : 0;
        const int k0 = index * DEPTH;
#pragma unroll
        for (int p = 0; p < panels; ++p)
            box(p * panel_bytes + slice * (slice_lines * 128), (K_MAJOR ? k0 : x0) + p * panel,
                (K_MAJOR ? x0 : k0) + slice * slice_lines);
    }
};

// The accumulators of a warpgroup: ATOMS wgmma atoms of 64 x WIDTH, one below the other. Pairs of values are numbered as in
// common/ptx/wgmma.cuh. A_TRANSPOSED and B_TRANSPOSED say how the operands of wgmma lie in shared memory.
struct Pair { ElementAccumulator x, y; };

template <int ATOMS, int WIDTH, bool F16, bool A_TRANSPOSED_, bool B_TRANSPOSED_> struct WgmmaAccumulator {
    using Op = Wgmma<In, F16, WIDTH>;
    static constexpr int atoms = ATOMS, width = WIDTH;
    static constexpr int pairs = WIDTH / 4; // of an atom, an even number

    // Row and column of an atom at which the first element of pair p of this thread lies; the second is to its right. A warp has
    // 16 rows: lane_row() and lane_column() say where pair 0 of a lane lies in them, and the steps how far from it pair p does.
    static __device__ __forceinline__ int pair_row(int p) {
        const int thread = threadIdx.x % 128;
        return thread / 32 * 16 + lane_row(thread % 32) + row_step(p);
    }
    static __device__ __forceinline__ int pair_column(int p) { return lane_column(threadIdx.x % 32) + column_step(p); }
    static __device__ __forceinline__ int lane_row(int lane) { return lane / 4; }
    static __device__ __forceinline__ int lane_column(int lane) { return lane % 4 * 2; }
    static constexpr __device__ __forceinline__ int row_step(int p) { return p % 2 * 8; }
    static constexpr __device__ __forceinline__ int column_step(int p) { return p / 2 * 8; }

    typename Op::Register value[ATOMS][Op::registers];

    // NOTE: unless fenced, the compiler moves the zeros of later atoms between the first wgmma.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int atom = 0; atom < ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) value[atom][i] = 0;
        fence();
    }

    // With add = 0 the atom is overwritten.
    __device__ __forceinline__ void multiply(int atom, unsigned long long a, unsigned long long b, int add = 1) {
        Op::template issue<A_TRANSPOSED_, B_TRANSPOSED_>(value[atom], a, b, add);
    }

    // Only for accumulators that no wgmma in flight writes to.
    __device__ __forceinline__ void add(const WgmmaAccumulator& other) {
#pragma unroll
        for (int atom = 0; atom < ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) value[atom][i] += other.value[atom][i];
    }

    // Waits for all of the warp's wgmma.
    __device__ __forceinline__ void finish() {
        wgmma_wait<0>();
        fence();
    }

    __device__ __forceinline__ Pair pair(int atom, int p) const {
        if constexpr (F16) {
            const unsigned packed = value[atom][p];
            return {to_accumulator(f16{static_cast<unsigned short>(packed)}), to_accumulator(f16{static_cast<unsigned short>(packed >> 16)})};
        } else {
            return {value[atom][2 * p], value[atom][2 * p + 1]};
        }
    }

    __device__ __forceinline__ void set_pair(int atom, int p, ElementAccumulator x, ElementAccumulator y) {
        if constexpr (F16)
            value[atom][p] = Convert<f16>::from(x).bits | unsigned(Convert<f16>::from(y).bits) << 16;
        else
            value[atom][2 * p] = x, value[atom][2 * p + 1] = y;
    }

private:
    __device__ __forceinline__ void fence() {
#pragma unroll
        for (int atom = 0; atom < ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) wgmma_fence_register(value[atom][i]);
    }
};

struct alignas(2 * sizeof(Out)) OutPair { Out x, y; };

// Elements (row, col) and (row, col + 1) of C, or (row + 1, col) if DOWN; 0 outside D. Call it if Epilogue::reads_c(), for many
// pairs before the first is finished: else the loads come one after the other.
template <bool DOWN> __device__ __forceinline__ OutPair load_c(const Epilogue& epilogue, int row, int col) {
    OutPair held{};
    const Out* const from = epilogue.c + row * epilogue.ldc + col;
    const bool inside = row < epilogue.m && col < epilogue.n;
    if constexpr (!DOWN && cfg::align_d >= int(sizeof(OutPair))) {
        if (inside) held = *reinterpret_cast<const OutPair*>(from);
    } else {
        if (inside) held.x = *from;
        if (inside && (DOWN ? row + 1 < epilogue.m : col + 1 < epilogue.n)) held.y = from[DOWN ? epilogue.ldc : 1];
    }
    return held;
}

// Finishes elements (row, col) and (row, col + 1), or (row + 1, col) if DOWN, with theirs of C. Elements outside D are never
// stored, so they take the bias of the last column, which loads without a branch. Call it with Epilogue::pinned().
template <bool DOWN> __device__ __forceinline__ unsigned finish_pair(Pair pair, OutPair held, const Epilogue& epilogue, int col) {
    const int last = epilogue.n - 1;
    const OutPair finished{epilogue.finish(pair.x, held.x, min(col, last)),
                           epilogue.finish(pair.y, held.y, min(col + (DOWN ? 0 : 1), last))};
    return reinterpret_cast<const unsigned&>(finished);
}
