// Global to shared memory: a ROWS x COLS tile of a row-major matrix, out-of-range elements as zeros.
// COPY is the width of an access in bytes; it divides addresses, row stride and row length, so an access
// lies inside of a row or outside of it. Copies of 4 bytes and more are asynchronous where ASYNC is set;
// all others pass through registers. A thread takes SHARE neighbouring bytes of a row at a time, in accesses of
// COPY.
#pragma once
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "tile/smem_layout.cuh"

template <class T, int ROWS, int COLS, int THREADS, int COPY, bool ASYNC, SmemLayout LAYOUT, int SHARE = 16>
struct TileLoader {
    using Tile = SmemTile<ROWS, bytes_of<T>(COLS), LAYOUT>;
    static_assert(COPY >= int(sizeof(T)) && COPY <= 16, "COPY is between the element size and 16 bytes");
    static_assert(SHARE % COPY == 0 && 16 % SHARE == 0, "SHARE is a multiple of COPY that divides 16 bytes");
    static constexpr int across = Tile::chunks * (16 / SHARE); // threads along a row
    static_assert(THREADS % across == 0, "the threads of a block are a multiple of the 16-byte chunks of a tile row");
    static constexpr int rows_per_round = THREADS / across;
    static constexpr int rounds = (ROWS + rows_per_round - 1) / rows_per_round;

    const char* source; // this thread's first share of the tile at the origin
    long long row_bytes;
    int rows, bytes;    // of the matrix, from this thread's first share on

    // A rows x cols matrix with `stride` Ts between rows; T may hold several of the cols.
    __device__ __forceinline__ TileLoader(const T* first, long long stride, int rows_, int cols)
        : row_bytes(stride * sizeof(T)), rows(rows_ - first_row()), bytes(bytes_of<T>(cols) - first_byte()) {
        source = reinterpret_cast<const char*>(first) + first_row() * row_bytes + first_byte();
    }

    // Loads the tile whose first element is (row0, col0).
    __device__ __forceinline__ void load(char* smem, int row0, int col0) const {
        const char* from = source + row0 * row_bytes + bytes_of<T>(col0);
        const int rows_left = rows - row0, bytes_left = bytes - bytes_of<T>(col0);
        const long long step = rows_per_round * row_bytes;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            const int row = i * rows_per_round;
            if (ROWS % rows_per_round != 0 && row + first_row() >= ROWS) break;
            load_share(smem + target(row), from + i * step, row < rows_left ? bytes_left : 0);
        }
    }

private:
    static __device__ __forceinline__ int first_row() { return threadIdx.x / across; }
    static __device__ __forceinline__ int first_byte() { return threadIdx.x % across * SHARE; }
    static __device__ __forceinline__ int target(int row) {
        const int chunk = first_byte() / 16, byte = first_byte() % 16;
        if constexpr (rows_per_round % 8 == 0) return Tile::chunk_from(row, first_row(), chunk) + byte;
        return Tile::chunk(row + first_row(), chunk) + byte;
    }

    // One share, of which the first `valid` bytes are inside.
    static __device__ __forceinline__ void load_share(char* to, const char* from, int valid) {
        using Wide = typename Access<COPY>::type;
#pragma unroll
        for (int piece = 0; piece < SHARE; piece += COPY) {
            const bool inside = piece < valid;
            if constexpr (ASYNC && COPY >= 4)
                cp_async<COPY>(smem_address(to + piece), from + piece, inside);
            else
                *reinterpret_cast<Wide*>(to + piece) = inside ? *reinterpret_cast<const Wide*>(from + piece) : Wide{};
        }
    }

    template <int BYTES, class = void> struct Access;
    template <class U> struct Access<1, U> { using type = unsigned char; };
    template <class U> struct Access<2, U> { using type = unsigned short; };
    template <class U> struct Access<4, U> { using type = unsigned; };
    template <class U> struct Access<8, U> { using type = uint2; };
    template <class U> struct Access<16, U> { using type = uint4; };
};
