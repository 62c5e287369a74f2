// Epilogue: a consumer's accumulators to D, straight from registers or box by box through shared memory.
#pragma once
#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/finish_pair.cuh"
#include "wgmma_ws/stages.cuh"

class Store {
public:
    Epilogue epilogue;
    int row0, col0, batch; // of the consumer's share of D

    __device__ __forceinline__ Store(const Epilogue& epilogue_, const TensorMap* map_d_, int consumer_)
        : epilogue(epilogue_), map_d(map_d_), consumer(consumer_) {}

    __device__ __forceinline__ void run(const Sums& acc, const SharedMemory& smem) const {
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block) {
            if constexpr (cfg::staged) {
#pragma unroll
                for (int box = 0; box < block_boxes; ++box) {
                    const Epilogue here = epilogue.pinned();
                    store_box([&](int p, int x, int y) { return finish(here, acc, block, p, x, y); }, smem, block, box);
                }
            } else {
                store_block(acc, block);
            }
        }
    }

    // Keeps a tile, for store_kept().
    __device__ __forceinline__ void keep(const Sums& acc) {
        const int x = thread() / 32 * 16 + thread() % 32 / 4, y = thread() % 4 * 2;
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int first = 0; first < Sums::pairs; first += pinned_pairs) {
                const Epilogue here = epilogue.pinned();
#pragma unroll
                for (int p = first; p < first + pinned_pairs && p < Sums::pairs; ++p)
                    kept[block][p] = finish(here, acc, block, p, x + p % 2 * 8, y + p / 2 * 8);
            }
        any = true;
    }
    // Box `number` of a tile that was kept, if any was.
    __device__ __forceinline__ void store_kept(const SharedMemory& smem, int number) const {
        if (!any) return;
        const int block = number / block_boxes;
        store_box([&](int p, int, int) { return kept[block][p]; }, smem, block, number % block_boxes);
    }
    static constexpr int block_boxes = cfg::own_width / box_width, boxes = cfg::blocks * block_boxes;

private:
    const TensorMap* map_d;
    int consumer;
    unsigned kept[cfg::deferred ? cfg::blocks : 1][cfg::deferred ? Sums::pairs : 1];
    bool any = false;

    static __device__ __forceinline__ int thread() { return threadIdx.x % 128; }

    // Position in D of accumulator (x, y) of a block, x along wgmma's M and y along its N.
    __device__ __forceinline__ int row(int block, int x, int y) const { return row0 + (cfg::swap_ab ? y : block * 64 + x); }
    __device__ __forceinline__ int column(int block, int x, int y) const { return col0 + (cfg::swap_ab ? block * 64 + x : y); }

    // Pair p of a block, whose first element is at (x, y), as D has it.
    __device__ __forceinline__ unsigned finish(const Epilogue& here, const Sums& acc, int block, int p, int x, int y) const {
        return finish_pair<cfg::swap_ab>(acc.pair(block, p), here, row(block, x, y), column(block, x, y));
    }

    static constexpr int pinned_pairs = 8;

    __device__ __forceinline__ void store_block(const Sums& acc, int block) const {
        const int x = thread() / 32 * 16 + thread() % 32 / 4, y = thread() % 4 * 2;
#pragma unroll
        for (int first = 0; first < cfg::own_width / 4; first += pinned_pairs) {
            const Epilogue here = epilogue.pinned();
#pragma unroll
            for (int p = first; p < first + pinned_pairs && p < cfg::own_width / 4; ++p) {
                const Pair pair = acc.pair(block, p);
                const int ax = x + p % 2 * 8, ay = y + p / 2 * 8;
                if constexpr (cfg::swap_ab) {
                    here.store(pair.x, row(block, ax, ay), column(block, ax, ay));
                    here.store(pair.y, row(block, ax, ay) + 1, column(block, ax, ay));
                } else {
                    here.store2(pair.x, pair.y, row(block, ax, ay), column(block, ax, ay));
                }
            }
        }
    }

    // NOTE: the barrier before a box is written makes sure that its last content has left: TMA has read it
    // (the storing thread has waited) or all threads have copied it.
    template <class Value>
    __device__ __forceinline__ void store_box(Value value, const SharedMemory& smem, int block, int box) const {
        const int number = block * block_boxes + box;
        const unsigned target = smem.box(consumer, number % cfg::store_stages);
        // NOTE: the boxes of a tile start with the first place in staging again; unless they fill all places
        // evenly, it may be the one used last.
        constexpr bool uneven = boxes % cfg::store_stages != 0;
        const bool restart = uneven && number == 0;
        if (cfg::tma_store && thread() == 0) {
            if (restart)
                tma_store_wait<0>();
            else
                tma_store_wait<cfg::store_stages - 1>();
        }
        if (cfg::tma_store || cfg::store_stages == 1 || restart) named_barrier_sync(1 + consumer, 128);
        stage_box(value, target, box);
        if constexpr (cfg::tma_store) tma_store_fence();
        named_barrier_sync(1 + consumer, 128);
        const int at_row = row(block, 0, box * box_width), at_column = column(block, 0, box * box_width);
        if constexpr (cfg::tma_store) {
            if (thread() == 0) {
                tma_store<cfg::hint_d>(target, map_d, at_column, at_row, batch);
                tma_store_commit();
            }
        } else {
            copy_box(target, at_row, at_column);
        }
    }

    // NOTE: pairs 4 q .. 4 q + 3 are four 8 x 8 matrices: x and x + 8 at one y, then at y + 8.
    template <class Value> static __device__ __forceinline__ void stage_box(Value value, unsigned target, int box) {
        const int lane = thread() % 32, warp = thread() / 32;
        const int x = warp * 16 + lane / 4, y = lane % 4 * 2;
#pragma unroll
        for (int p = 0; p < box_width / 4; p += 4) {
            const int matrices = box_width / 4 - p < 4 ? 2 : 4;
            unsigned values[4] = {};
#pragma unroll
            for (int i = 0; i < matrices; ++i) {
                const int at = box * (box_width / 4) + p + i;
                values[i] = value(at, x + at % 2 * 8, y + at / 2 * 8);
            }
            const int chunk = cfg::swap_ab ? Box::chunk(p / 2 * 8 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2)
                                           : Box::chunk(warp * 16 + lane % 16, p / 2 + lane / 16);
            if (matrices == 4)
                stmatrix_x4<cfg::swap_ab>(target + chunk, values);
            else
                stmatrix_x2<cfg::swap_ab>(target + chunk, values[0], values[1]);
        }
    }

    __device__ __forceinline__ void copy_box(unsigned box, int at_row, int at_column) const {
        const int inside = min(box_columns, epilogue.n - at_column);
        if constexpr (cfg::align_d == 16) {
#pragma unroll 4
            for (int id = thread(); id < box_rows * Box::chunks; id += 128) {
                const int r = id / Box::chunks, c = id % Box::chunks;
                if (at_row + r >= epilogue.m || c * 8 >= inside) continue;
                const uint4 chunk = load_shared_128(box + Box::chunk(r, c));
                *reinterpret_cast<uint4*>(epilogue.d + (at_row + r) * epilogue.ldd + at_column + c * 8) = chunk;
            }
        } else {
            copy_words(box, at_row, at_column, inside);
        }
    }

    // Rows that start at odd elements, perhaps: whole words, and what sticks out at either end.
    __device__ __forceinline__ void copy_words(unsigned box, int at_row, int at_column, int inside) const {
        constexpr int words = box_columns / 2, step = 4 * (32 / words);
        const int lane = thread() % 32, row = thread() / words;
        unsigned short* const target = reinterpret_cast<unsigned short*>(epilogue.d + (at_row + row) * epilogue.ldd + at_column);
        // NOTE: the rows of a thread are a multiple of 4 apart, so all start at the same byte of a word.
        const int skew = reinterpret_cast<unsigned long long>(target) / 2 & 1;
        const int first = lane % words * 2 + skew;
        const bool word = first + 1 < inside, last = first + 1 == inside, zeroth = first == 1 && inside > 0;
#pragma unroll
        for (int r = 0; r < box_rows; r += step) {
            if (row + r >= box_rows || at_row + row + r >= epilogue.m) continue;
            unsigned short* const here = target + r * epilogue.ldd;
            const unsigned low = element(box, row + r, first < box_columns ? first : 0);
            const unsigned high = element(box, row + r, word ? first + 1 : 0);
            if (word) *reinterpret_cast<unsigned*>(here + first) = low | high << 16;
            if (last) here[first] = low;
            if (zeroth) here[0] = element(box, row + r, 0);
        }
    }

    // 16 bits of a staged row.
    static __device__ __forceinline__ unsigned short element(unsigned box, int r, int c) {
        return load_shared_16(box + Box::chunk(r, c / 8) + c % 8 * 2);
    }
};
