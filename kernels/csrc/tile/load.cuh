// Global to shared memory: a ROWS x COLS tile of a row-major matrix, out-of-range elements as zeros.
// COPY is the width of an access in bytes; it divides addresses, row stride and row length, so an access
// lies inside of a row or outside of it. Copies of 4 bytes and more are asynchronous where ASYNC is set;
// all others pass through registers.
#pragma once
#include "ptx/cp_async.cuh"
#include "tile/smem_layout.cuh"

template <class T, int ROWS, int COLS, int THREADS, int COPY, bool ASYNC, SmemLayout LAYOUT> struct TileLoader {
    using Tile = SmemTile<ROWS, COLS * int(sizeof(T)), LAYOUT>;
    static_assert(COPY >= int(sizeof(T)) && COPY <= 16, "COPY is between the element size and 16 bytes");
    static_assert(THREADS % Tile::chunks == 0, "the threads of a block are a multiple of the 16-byte chunks of a tile row");
    static constexpr int rows_per_round = THREADS / Tile::chunks;
    static constexpr int rounds = (ROWS + rows_per_round - 1) / rows_per_round;

    const char* source; // this thread's first chunk of the tile at the origin
    long long row_bytes;
    int rows, bytes;    // of the matrix, from this thread's first chunk on

    // A rows x cols matrix with `stride` elements between rows.
    __device__ __forceinline__ TileLoader(const T* first, long long stride, int rows_, int cols)
        : row_bytes(stride * sizeof(T)), rows(rows_ - first_row()), bytes((cols * int(sizeof(T))) - first_chunk() * 16) {
        source = reinterpret_cast<const char*>(first) + first_row() * row_bytes + first_chunk() * 16;
    }

    // Loads the tile whose first element is (row0, col0).
    __device__ __forceinline__ void load(char* smem, int row0, int col0) const {
        const char* from = source + row0 * row_bytes + col0 * int(sizeof(T));
        const int rows_left = rows - row0, bytes_left = bytes - col0 * int(sizeof(T));
        const long long step = rows_per_round * row_bytes;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            const int row = i * rows_per_round;
            if (ROWS % rows_per_round != 0 && row + first_row() >= ROWS) break;
            load_chunk(smem + target(row), from + i * step, row < rows_left ? bytes_left : 0);
        }
    }

private:
    static __device__ __forceinline__ int first_row() { return threadIdx.x / Tile::chunks; }
    static __device__ __forceinline__ int first_chunk() { return threadIdx.x % Tile::chunks; }
    static __device__ __forceinline__ int target(int row) {
        if constexpr (rows_per_round % 8 == 0) return Tile::chunk_from(row, first_row(), first_chunk());
        return Tile::chunk(row + first_row(), first_chunk());
    }

    // One 16-byte chunk, of which the first `valid` bytes are inside.
    static __device__ __forceinline__ void load_chunk(char* to, const char* from, int valid) {
        using Wide = typename Access<COPY>::type;
#pragma unroll
        for (int piece = 0; piece < 16; piece += COPY) {
            const bool inside = piece < valid;
            if constexpr (ASYNC && COPY >= 4)
                cp_async<COPY>(smem_address(to + piece), from + piece, inside);
            else
                *reinterpret_cast<Wide*>(to + piece) = inside ? *reinterpret_cast<const Wide*>(from + piece) : Wide{};
        }
    }

    template <int BYTES, class = void> struct Access;
    template <class U> struct Access<2, U> { using type = unsigned short; };
    template <class U> struct Access<4, U> { using type = unsigned; };
    template <class U> struct Access<8, U> { using type = uint2; };
    template <class U> struct Access<16, U> { using type = uint4; };
};
