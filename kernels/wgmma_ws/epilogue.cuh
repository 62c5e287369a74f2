// Epilogue: the accumulators of a warpgroup tile to D, straight from registers or subtile by subtile through shared memory.
#pragma once
#include "common/ptx/control.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/load_store.cuh"
#include "common/ptx/mbarrier.cuh"
#include "wgmma_ws/config.cuh"

// Where threads load C: brings a consumer's slice to the L2 while its products run, a few rows at each k tile, because all at
// once would delay the loads of A and B. Tiles with SWAP_AB are too small to gain.
class PrefetchC {
public:
    static constexpr bool useful = cfg::has_c && cfg::split_k == 1 && cfg::align_d == 16 && !cfg::swap_ab && !cfg::loads_c;

    // `c` is where the slice at (row, col) starts.
    __device__ __forceinline__ void start(const Epilogue& epilogue, const Out* c, int row, int col, int k_tiles) {
        from = c + static_cast<long long>(thread()) * epilogue.ldc;
        step = 128 * epilogue.ldc;
        rows = epilogue.reads_c() ? epilogue.m - row : 0;
        bytes = max(min(cfg::slice_n, epilogue.n - col), 0) * int(sizeof(Out));
        turn = thread() % max(k_tiles, 1);
    }
    __device__ __forceinline__ void at(int k_tile) const {
        if (k_tile != turn) return;
#pragma unroll
        for (int first = 0; first < cfg::atoms * 64; first += 128)
            if (first + thread() < min(cfg::atoms * 64, rows)) l2_prefetch(from + first / 128 * step, bytes);
    }

private:
    const Out* from;       // the thread's first row
    long long step;        // to its second
    int rows, bytes, turn; // rows inside D, bytes of each, the thread's k tile

    static __device__ __forceinline__ int thread() { return threadIdx.x % 128; }
};

class Store {
public:
    static constexpr int atom_subtiles = cfg::slice_n / subtile_n, subtiles = cfg::atoms * atom_subtiles;
    Epilogue epilogue;
    int row0, col0, batch; // where the consumer's slice of D starts

    __device__ __forceinline__ Store(const Epilogue& epilogue_, const TensorMap* map_c_, const TensorMap* map_d_, int consumer_)
        : epilogue(epilogue_), map_c(map_c_), map_d(map_d_), consumer(consumer_) {}

    // Reads C ahead of the epilogue, while the products run: with the first k tile TMA loads one subtile a stage, as soon as the
    // stages are free; with each other one two more subtiles come to the L2. All at once would delay the loads of A and B.
    __device__ __forceinline__ void read_c_ahead(const SharedMemory& smem, int k_tile) const {
        if (thread() != 0) return;
        if (k_tile == 0) {
            tma_store_wait<0>();
#pragma unroll
            for (int number = 0; number < cfg::store_stages && number < subtiles; ++number) load_subtile_of_c(smem, number);
        } else if (epilogue.reads_c()) {
            const int first = cfg::store_stages + (k_tile - 1) * 2;
            for (int number = first; number < first + 2 && number < subtiles; ++number)
                tma_prefetch(map_c, column_of(number), row_of(number), batch);
        }
    }

    // Finishes and stores a slice.
    __device__ __forceinline__ void run(const Accumulator& acc, const SharedMemory& smem) {
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom) {
            if constexpr (cfg::staged) {
#pragma unroll
                for (int i = 0; i < atom_subtiles; ++i) {
                    const Epilogue here = epilogue.pinned();
                    constexpr int pairs = subtile_n / 4;
                    OutPair held[pairs] = {};
                    if constexpr (!cfg::loads_c) load_pairs(held, here, atom, i * pairs);
                    const auto value = [&](int p, OutPair staged) {
                        return finish(here, acc, cfg::loads_c ? staged : held[p - i * pairs], atom, p);
                    };
                    store_subtile(value, smem, atom, i);
                }
            } else {
                store_direct(acc, atom);
            }
        }
    }

    // Overlapped store: finishes a tile and keeps it in registers.
    __device__ __forceinline__ void keep(const Accumulator& acc) {
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int first = 0; first < Accumulator::pairs; first += pinned_pairs) {
                const Epilogue here = epilogue.pinned();
#pragma unroll
                for (int p = first; p < first + pinned_pairs && p < Accumulator::pairs; ++p)
                    kept[atom][p] = finish(here, acc, OutPair{}, atom, p);
            }
        any_kept = true;
    }
    // Overlapped store: stores subtile `number` of the tile that was kept last, if there is one.
    __device__ __forceinline__ void store_kept(const SharedMemory& smem, int number) {
        if (!any_kept) return;
        const int atom = number / atom_subtiles;
        store_subtile([&](int p, OutPair) { return kept[atom][p]; }, smem, atom, number % atom_subtiles);
    }

private:
    const TensorMap *map_c, *map_d;
    int consumer;
    unsigned parities = 0; // of the phase in which C is in a stage, a bit a stage
    unsigned kept[cfg::overlapped_store ? cfg::atoms : 1][cfg::overlapped_store ? Accumulator::pairs : 1];
    bool any_kept = false;

    static __device__ __forceinline__ int thread() { return threadIdx.x % 128; }

    // Row and column of D of accumulator (x, y) of an atom, x along wgmma's M and y along its N.
    __device__ __forceinline__ int row(int atom, int x, int y) const { return row0 + (cfg::swap_ab ? y : atom * 64 + x); }
    __device__ __forceinline__ int column(int atom, int x, int y) const { return col0 + (cfg::swap_ab ? atom * 64 + x : y); }

    // Row and column of D of the first element of pair p of an atom.
    __device__ __forceinline__ int pair_row(int atom, int p) const {
        return row(atom, Accumulator::pair_row(p), Accumulator::pair_column(p));
    }
    __device__ __forceinline__ int pair_column(int atom, int p) const {
        return column(atom, Accumulator::pair_row(p), Accumulator::pair_column(p));
    }

    // Where a subtile starts in D.
    __device__ __forceinline__ int row_of(int number) const {
        return row(number / atom_subtiles, 0, number % atom_subtiles * subtile_n);
    }
    __device__ __forceinline__ int column_of(int number) const {
        return column(number / atom_subtiles, 0, number % atom_subtiles * subtile_n);
    }

    // Has TMA load a subtile of C into its stage, which must be free. NOTE: with beta = 0 nothing is loaded, but the barrier
    // completes: it also tells the other threads that the stage is free.
    __device__ __forceinline__ void load_subtile_of_c(const SharedMemory& smem, int number) const {
        const int stage = number % cfg::store_stages;
        const unsigned loaded = smem.c_loaded(consumer, stage);
        if (!epilogue.reads_c()) return mbarrier_arrive(loaded);
        mbarrier_arrive_expect(loaded, subtile_rows * subtile_columns * int(sizeof(Out)));
        tma_load(smem.subtile(consumer, stage), map_c, loaded, column_of(number), row_of(number), batch);
    }

    // The pairs of C from pair `first` of an atom on.
    template <int COUNT>
    __device__ __forceinline__ void load_pairs(OutPair (&held)[COUNT], const Epilogue& here, int atom, int first) const {
        if (!here.reads_c()) return;
#pragma unroll
        for (int p = first; p < first + COUNT && p < Accumulator::pairs; ++p)
            held[p - first] = load_c<cfg::swap_ab>(here, pair_row(atom, p), pair_column(atom, p));
    }

    // Pair p of an atom, with its pair of C, as two elements of D.
    __device__ __forceinline__ unsigned finish(const Epilogue& here, const Accumulator& acc, OutPair held, int atom, int p) const {
        return finish_pair<cfg::swap_ab>(acc.pair(atom, p), held, here, pair_column(atom, p));
    }

    static constexpr int pinned_pairs = cfg::has_c ? 16 : 8;

    __device__ __forceinline__ void store_direct(const Accumulator& acc, int atom) const {
#pragma unroll
        for (int first = 0; first < cfg::slice_n / 4; first += pinned_pairs) {
            const Epilogue here = epilogue.pinned();
#pragma unroll
            for (int p = first; p < first + pinned_pairs && p < cfg::slice_n / 4; ++p) {
                const Pair pair = acc.pair(atom, p);
                if constexpr (cfg::swap_ab) {
                    here.store(pair.x, pair_row(atom, p), pair_column(atom, p));
                    here.store(pair.y, pair_row(atom, p) + 1, pair_column(atom, p));
                } else {
                    here.store2(pair.x, pair.y, pair_row(atom, p), pair_column(atom, p));
                }
            }
        }
    }

    // NOTE: the barrier before a subtile is written ensures that its stage is free: TMA has read it (the storing thread has
    // waited) or all threads have copied it.
    // Where TMA loads C, the barrier of C ensures it; a warp overwrites only what it has read itself.
    template <class Value>
    __device__ __forceinline__ void store_subtile(Value value, const SharedMemory& smem, int atom, int i) {
        const int number = atom * atom_subtiles + i, stage = number % cfg::store_stages;
        const unsigned target = smem.subtile(consumer, stage);
        // NOTE: the subtiles of a tile start with stage 0 again; unless they fill all stages evenly, stage 0 may be the one
        // used last.
        constexpr bool uneven = subtiles % cfg::store_stages != 0;
        const bool restart = uneven && number == 0;
        if constexpr (cfg::loads_c) {
            mbarrier_wait(smem.c_loaded(consumer, stage), parities >> stage & 1);
            parities ^= 1u << stage;
            // The next C comes into a stage of an earlier subtile: of the last but one if there are four, so that this thread need
            // not wait until TMA has read the last.
            constexpr int lag = cfg::store_stages >= 4 ? 2 : 1;
            const int next = number - lag + cfg::store_stages;
            if (thread() == 0 && cfg::store_stages > 1 && number >= lag && next < subtiles) {
                tma_store_wait<lag - 1>();
                load_subtile_of_c(smem, next);
            }
        } else if (cfg::tma_store && thread() == 0) {
            if (restart)
                tma_store_wait<0>();
            else
                tma_store_wait<cfg::store_stages - 1>();
        }
        if (!cfg::loads_c && (cfg::tma_store || cfg::store_stages == 1 || restart)) named_barrier_sync(1 + consumer, 128);
        stage_subtile(value, target, i);
        if constexpr (cfg::tma_store) tma_store_fence();
        named_barrier_sync(1 + consumer, 128);
        const int at_row = row_of(number), at_column = column_of(number);
        if constexpr (cfg::tma_store) {
            if (thread() == 0) {
                tma_store<cfg::hint_d>(target, map_d, at_column, at_row, batch);
                tma_store_commit();
                if (cfg::loads_c && cfg::store_stages == 1 && number + 1 < subtiles) {
                    tma_store_wait<0>();
                    load_subtile_of_c(smem, number + 1);
                }
            }
        } else {
            copy_subtile(target, at_row, at_column);
        }
    }

    // NOTE: pairs 4 q .. 4 q + 3 are four 8 x 8 matrices: x and x + 8 at one y, then at y + 8.
    template <class Value> __device__ __forceinline__ void stage_subtile(Value value, unsigned target, int i) const {
        const int lane = thread() % 32, warp = thread() / 32;
#pragma unroll
        for (int p = 0; p < subtile_n / 4; p += 4) {
            const int matrices = subtile_n / 4 - p < 4 ? 2 : 4;
            const int chunk = cfg::swap_ab ? Subtile::chunk(p / 2 * 8 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2)
                                           : Subtile::chunk(warp * 16 + lane % 16, p / 2 + lane / 16);
            unsigned values[4] = {};
            if (cfg::loads_c && epilogue.reads_c()) {
                if (matrices == 4)
                    ldmatrix_x4(values, target + chunk);
                else
                    ldmatrix_x2(reinterpret_cast<unsigned(&)[2]>(values), target + chunk);
            }
#pragma unroll
            for (int matrix = 0; matrix < matrices; ++matrix)
                values[matrix] = value(i * (subtile_n / 4) + p + matrix, reinterpret_cast<const OutPair&>(values[matrix]));
            if (matrices == 4)
                stmatrix_x4<cfg::swap_ab>(target + chunk, values);
            else
                stmatrix_x2<cfg::swap_ab>(target + chunk, values[0], values[1]);
        }
    }

    __device__ __forceinline__ void copy_subtile(unsigned subtile, int at_row, int at_column) const {
        const int inside = min(subtile_columns, epilogue.n - at_column);
        if constexpr (cfg::align_d == 16) {
#pragma unroll 4
            for (int id = thread(); id < subtile_rows * Subtile::chunks; id += 128) {
                const int r = id / Subtile::chunks, c = id % Subtile::chunks;
                if (at_row + r >= epilogue.m || c * 8 >= inside) continue;
                const uint4 chunk = load_shared_128(subtile + Subtile::chunk(r, c));
                *reinterpret_cast<uint4*>(epilogue.d + (at_row + r) * epilogue.ldd + at_column + c * 8) = chunk;
            }
        } else {
            copy_words(subtile, at_row, at_column, inside);
        }
    }

    // Rows of D that may start at odd elements: whole words, and single elements at both ends.
    __device__ __forceinline__ void copy_words(unsigned subtile, int at_row, int at_column, int inside) const {
        constexpr int words = subtile_columns / 2, step = 4 * (32 / words);
        const int lane = thread() % 32, row = thread() / words;
        unsigned short* const target = reinterpret_cast<unsigned short*>(epilogue.d + (at_row + row) * epilogue.ldd + at_column);
        // NOTE: the rows of a thread are a multiple of 4 apart, so all start at the same byte of a word.
        const int skew = reinterpret_cast<unsigned long long>(target) / 2 & 1;
        const int first = lane % words * 2 + skew;
        const bool word = first + 1 < inside, last = first + 1 == inside, zeroth = first == 1 && inside > 0;
#pragma unroll
        for (int r = 0; r < subtile_rows; r += step) {
            if (row + r >= subtile_rows || at_row + row + r >= epilogue.m) continue;
            unsigned short* const here = target + r * epilogue.ldd;
            const unsigned low = element(subtile, row + r, first < subtile_columns ? first : 0);
            const unsigned high = element(subtile, row + r, word ? first + 1 : 0);
            if (word) *reinterpret_cast<unsigned*>(here + first) = low | high << 16;
            if (last) here[first] = low;
            if (zeroth) here[0] = element(subtile, row + r, 0);
        }
    }

    // One 16-bit element of a staged subtile.
    static __device__ __forceinline__ unsigned short element(unsigned subtile, int r, int c) {
        return load_shared_16(subtile + Subtile::chunk(r, c / 8) + c % 8 * 2);
    }
};
