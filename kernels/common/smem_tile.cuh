// Tiles in shared memory: their layouts, and loading them. A tile has ROWS rows of ROW_BYTES, in chunks of 16 bytes;
// chunk(row, c) is the byte offset of chunk c of a row:
//   blocked   16 x 16 blocks of 16-bit elements, block after block
//   padded    rows one chunk longer than their data
//   xor       chunk index XOR row (crosswise)
//   permuted  chunk index rotated by row
// With G = gcd(chunks of a row, 8), 8 / G rows span all 32 banks, so xor and permuted change the chunk every 8 / G rows: the
// eight rows of an ldmatrix phase then fall on different banks. Mirrored by kernels/common/smem.py.
#pragma once
#include "common/ptx/convert.cuh"
#include "common/ptx/cp_async.cuh"

enum class SmemLayout { blocked = 0, padded = 1, xor_ = 2, permuted = 3 };

template <int ROWS, int ROW_BYTES, SmemLayout LAYOUT> struct SmemTile {
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
            return row * stride + (c ^ (row / period % span)) * 16;
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

// Loads a ROWS x COLS tile of a row-major matrix into shared memory, with zeros outside the matrix. COPY is the width of an
// access in bytes; it divides addresses, row stride and row length, so that an access lies inside a row or outside it.
// Copies of 4 bytes and more are asynchronous if ASYNC is set; all others pass through registers. A thread takes THREAD_BYTES
// neighbouring bytes of a row at a time, in accesses of COPY.
template <class T, int ROWS, int COLS, int THREADS, int COPY, bool ASYNC, SmemLayout LAYOUT, int THREAD_BYTES = 16>
struct TileLoader {
    using Tile = SmemTile<ROWS, bytes_of<T>(COLS), LAYOUT>;
    static_assert(COPY >= int(sizeof(T)) && COPY <= 16, "COPY is between the element size and 16 bytes");
    static_assert(THREAD_BYTES % COPY == 0 && 16 % THREAD_BYTES == 0, "THREAD_BYTES is a multiple of COPY that divides 16 bytes");
    static constexpr int across = Tile::chunks * (16 / THREAD_BYTES); // threads along a row
    static_assert(THREADS % across == 0, "the threads of a CTA are a multiple of the 16-byte chunks of a tile row");
    static constexpr int rows_per_round = THREADS / across;
    static constexpr int rounds = (ROWS + rows_per_round - 1) / rows_per_round;

    const char* source; // this thread's first bytes of the tile at the origin
    long long row_bytes;
    int rows, bytes;    // of the matrix, counted from this thread's first bytes

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
            load_piece(smem + target(row), from + i * step, row < rows_left ? bytes_left : 0);
        }
    }

private:
    static __device__ __forceinline__ int first_row() { return threadIdx.x / across; }
    static __device__ __forceinline__ int first_byte() { return threadIdx.x % across * THREAD_BYTES; }
    static __device__ __forceinline__ int target(int row) {
        const int chunk = first_byte() / 16, byte = first_byte() % 16;
        if constexpr (rows_per_round % 8 == 0) return Tile::chunk_from(row, first_row(), chunk) + byte;
        return Tile::chunk(row + first_row(), chunk) + byte;
    }

    // Loads THREAD_BYTES, of which the first `valid` are inside the matrix.
    static __device__ __forceinline__ void load_piece(char* to, const char* from, int valid) {
        using Wide = typename Access<COPY>::type;
#pragma unroll
        for (int piece = 0; piece < THREAD_BYTES; piece += COPY) {
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
