// Tiles in shared memory: their layouts, and loading them. A tile has ROWS rows of ROW_BYTES, in chunks of 16 bytes;
// chunk(row, c) is the byte offset of chunk c of a row:
//   blocked   16 x 16 blocks of 16-bit elements, block after block
//   padded    rows one chunk longer than their data
//   xor       chunk index XOR row times SHIFT (crosswise)
//   permuted  chunk index rotated by row
//   plain     row after row
// With G = gcd(chunks of a row, 8), 8 / G rows span all 32 banks, so xor and permuted change the chunk every 8 / G rows: the
// eight rows of an ldmatrix phase then fall on different banks. Mirrored by kernels/common/smem.py.
#pragma once
#include "common/ptx/convert.cuh"
#include "common/ptx/cp_async.cuh"

enum class SmemLayout { blocked = 0, padded = 1, xor_ = 2, permuted = 3, plain = 4 };

template <int ROWS, int ROW_BYTES, SmemLayout LAYOUT, int SHIFT = 1> struct SmemTile {
    static constexpr int chunks = ROW_BYTES / 16;
    static constexpr int span = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
    static constexpr int period = 8 / span;
    static constexpr int stride = ROW_BYTES + (LAYOUT == SmemLayout::padded ? 16 : 0);
    static constexpr int bytes = ROWS * stride;
    static_assert(ROW_BYTES % 16 == 0, "a row is a whole number of 16-byte chunks");
    static_assert(LAYOUT != SmemLayout::blocked || (ROWS % 16 == 0 && chunks % 2 == 0), "blocked needs 16 x 16 blocks");

    static __device__ __forceinline__ constexpr int chunk(int row, int c) {
        if constexpr (LAYOUT == SmemLayout::blocked)
            return (row / 16 * (chunks / 2) + c / 2) * 512 + row % 16 * 32 + c % 2 * 16;
        else if constexpr (LAYOUT == SmemLayout::xor_)
            return row * stride + (c ^ (row / period * SHIFT % span)) * 16;
        else if constexpr (LAYOUT == SmemLayout::permuted)
            return row * stride + (c + row / period % span) % chunks * 16;
        else
            return row * stride + c * 16;
    }

    // chunk(base + row, c) for a base that is a multiple of 8 (16 if blocked) and a smaller row. All layouts repeat after
    // `base` rows, so the compiler can keep it out of the address arithmetic of a lane.
    static __device__ __forceinline__ constexpr int chunk_from(int base, int row, int c) {
        if constexpr (LAYOUT == SmemLayout::blocked)
            return chunk(base + row, c);
        else
            return base * stride + chunk(row, c);
    }
};

// The k tiles of a split: tile i covers DEPTH of k from begin + i * DEPTH. The range is aligned to the end of k, so that only
// tile 0 may be incomplete: its first `pad` k belong to the split before or to nothing, and count as zeros.
struct KTiles { int begin, count, pad; };

template <int DEPTH, int SPLITS> __device__ __forceinline__ KTiles split_range(int k, int split) {
    const int all = (k + DEPTH - 1) / DEPTH, tiles = (all + SPLITS - 1) / SPLITS;
    const int first = min(split * tiles, all), end = min(first + tiles, all);
    const int pad = end * DEPTH - min(end * DEPTH, k);
    return {first * DEPTH - pad, end - first, pad};
}

// Loads the k tiles of an operand's EXTENT rows (K_MAJOR) or columns into shared memory, one at a time. COPY is the width of an
// access in bytes; it divides addresses, row stride and row length, so that an access lies inside a row or outside it.
// Copies of 4 bytes and more are asynchronous if ASYNC is set; all others pass through registers, from which one store takes
// those of a round, so that its loads do not wait for each other. A thread takes THREAD_BYTES neighbouring bytes of a row in each
// of `rounds` rounds, in accesses of COPY.
// Rows or columns outside the matrix are read from inside it: what they multiply into lies outside D and is never stored.
// NOTE: so that no access of a k tile after the first has a bound to check, and each takes one address calculation.
template <class T, int EXTENT, bool K_MAJOR, int DEPTH, int THREADS, int COPY, bool ASYNC, SmemLayout LAYOUT, int THREAD_BYTES = 16, int SHIFT = 1>
struct TileLoader {
    static constexpr int tile_rows = K_MAJOR ? EXTENT : DEPTH, tile_row_bytes = bytes_of<T>(K_MAJOR ? DEPTH : EXTENT);
    using Tile = SmemTile<tile_rows, tile_row_bytes, LAYOUT, SHIFT>;
    static_assert(COPY >= int(sizeof(T)) && COPY <= 16, "COPY is between the element size and 16 bytes");
    static_assert(THREAD_BYTES % COPY == 0 && 16 % THREAD_BYTES == 0, "THREAD_BYTES is a multiple of COPY that divides 16 bytes");
    static constexpr int across = Tile::chunks * (16 / THREAD_BYTES); // threads along a row
    static_assert(THREADS % across == 0, "the threads of a CTA are a multiple of the 16-byte chunks of a tile row");
    static constexpr int rows_per_round = THREADS / across;
    static constexpr int rounds = (tile_rows + rows_per_round - 1) / rows_per_round;
    static constexpr int kept = rounds <= 16 ? rounds : 1; // addresses in registers; others are calculated for each copy
    static constexpr bool checks_columns = !K_MAJOR && COPY < THREAD_BYTES;

    const char* source[kept]; // this thread's bytes of the current k tile
    long long row_bytes;      // of the matrix
    int rows_left;            // rows of the matrix after the tile's first (K_MAJOR)
    int pad;                  // bytes of a row (K_MAJOR) or rows of k tile 0 that are zeros
    int inside;               // bytes of the matrix's row from this thread's first (if columns are checked)

    // A matrix of `stride` Ts a row and `extent` rows or columns, of which the tile starts at `first`.
    __device__ __forceinline__ TileLoader(const T* matrix, long long stride, int extent, int first, KTiles k)
        : row_bytes(stride * sizeof(T)) {
        const char* start = reinterpret_cast<const char*>(matrix);
        if constexpr (K_MAJOR) {
            rows_left = extent - 1 - first;
            start += first * row_bytes + bytes_of<T>(k.begin) + first_byte();
            pad = bytes_of<T>(k.pad);
        } else {
            const int row_end = bytes_of<T>(extent), byte = bytes_of<T>(first) + first_byte();
            start += k.begin * row_bytes + (byte < row_end ? byte : 0);
            pad = k.pad;
            inside = row_end - byte;
        }
#pragma unroll
        for (int i = 0; i < kept; ++i) source[i] = kept < rounds ? start : pinned(start + source_row(i) * row_bytes);
    }

    // Loads the current k tile, tile 0 at first, into the tile at byte `at` of shared memory.
    __device__ __forceinline__ void load(char* smem, int at, bool is_tile_0) const {
#pragma unroll
        for (int i = 0; i < rounds; ++i) load_round(smem, at, i, is_tile_0 ? pad : 0, true);
    }

    // Loads round `i` of the current k tile, with zeros for its first `zeros` rows or bytes of rows, or everywhere unless `wanted`.
    __device__ __forceinline__ void load_round(char* smem, int at, int i, int zeros, bool wanted) const {
        const int row = i * rows_per_round;
        if (tile_rows % rows_per_round != 0 && row + first_row() >= tile_rows) return;
        const char* from = kept < rounds ? source[0] + pinned(source_row(i)) * row_bytes : source[i];
        const int to = at + target(row);
        using Word = typename Access<COPY>::type;
        union { Word words[THREAD_BYTES / COPY]; typename Access<THREAD_BYTES>::type all; } loaded;
#pragma unroll
        for (int piece = 0; piece < THREAD_BYTES; piece += COPY) {
            bool valid = wanted && (K_MAJOR ? first_byte() + piece : row + first_row()) >= zeros;
            if constexpr (checks_columns) valid = valid && piece < inside;
            Word& word = loaded.words[piece / COPY];
            if constexpr (ASYNC && COPY >= 4)
                cp_async<COPY>(smem_address(smem) + to + piece, from + piece, valid);
            else if constexpr (COPY == 2 && THREAD_BYTES > 2) // NOTE: single elements of many rounds would spill
                word = load_global_16(from + piece, valid);
            else
                word = valid ? *reinterpret_cast<const Word*>(from + piece) : Word{};
        }
        if constexpr (!ASYNC || COPY < 4) *reinterpret_cast<decltype(loaded.all)*>(smem + to) = loaded.all;
    }

    // Makes the next k tile the current one. NOTE: where k runs along the rows, several of these in a row fold into the copies.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int i = 0; i < kept; ++i) source[i] += K_MAJOR ? tile_row_bytes : DEPTH * row_bytes;
    }

private:
    static __device__ __forceinline__ int first_row() { return threadIdx.x / across; }
    static __device__ __forceinline__ int first_byte() { return threadIdx.x % across * THREAD_BYTES; }
    // The row of round i, counted from the tile's first.
    __device__ __forceinline__ int source_row(int i) const {
        const int row = i * rows_per_round + first_row();
        return K_MAJOR ? min(row, rows_left) : row;
    }
    static __device__ __forceinline__ int target(int row) {
        const int chunk = first_byte() / 16, byte = first_byte() % 16;
        if constexpr (rows_per_round % 8 == 0) return Tile::chunk_from(row, first_row(), chunk) + byte;
        return Tile::chunk(row + first_row(), chunk) + byte;
    }

    template <int BYTES, class = void> struct Access;
    template <class U> struct Access<1, U> { using type = unsigned char; };
    template <class U> struct Access<2, U> { using type = unsigned short; };
    template <class U> struct Access<4, U> { using type = unsigned; };
    template <class U> struct Access<8, U> { using type = uint2; };
    template <class U> struct Access<16, U> { using type = uint4; };
};
