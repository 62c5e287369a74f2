// Splits of k: how the CTAs that hold accumulators of the same tile of D add them up. All add in the order of the splits, so the
// result does not depend on timing.
//   CLUSTER_K     AccumulatorExchange, through distributed shared memory
//   SPLIT_K       Partials, through the workspace: by reduce_partials(), a kernel after this one (REDUCTION 1), or by every CTA,
//                 a slice each (2), which agree by a SplitKSemaphore
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx/control.cuh"
#include "common/ptx/load_store.cuh"
#include "wgmma_ws/config.cuh"
#include "wgmma_ws/scheduler.cuh"

// The two CTAs of a cluster that split the k of a tile send each other one half of their accumulators along wgmma's N; each
// then finishes the other half.
class AccumulatorExchange {
public:
    __device__ __forceinline__ AccumulatorExchange(const SharedMemory& smem, int consumer) {
        const ClusterPosition position;
        upper = position.k_partition;
        here = smem.exchange(consumer) + threadIdx.x % 128 * 16;
        received = smem.received(consumer), taken = smem.taken(consumer);
        there = cluster_address(here, position.k_partner());
        there_received = cluster_address(received, position.k_partner());
        there_taken = cluster_address(taken, position.k_partner());
    }

    // Adds the partner's accumulators; the first half of `acc` along N is then the total that this CTA finishes.
    __device__ __forceinline__ void run(Accumulator& acc) {
        mbarrier_wait(taken, phase ^ 1);
        if (threadIdx.x % 128 == 0) mbarrier_arrive_expect(received, exchange_bytes);
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int p = 0; p < half; p += 2) {
                const Pair x = half_pair(acc, atom, p, !upper), y = half_pair(acc, atom, p + 1, !upper);
                const Message message{x.x, x.y, y.x, y.y};
                store_remote(there + number(atom, p) * 2048, reinterpret_cast<const uint4&>(message), there_received);
            }
        mbarrier_wait(received, phase);
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int p = 0; p < half; p += 2) {
                const uint4 bits = load_shared_128(here + number(atom, p) * 2048);
                const Message other = reinterpret_cast<const Message&>(bits);
                const Pair x = half_pair(acc, atom, p, upper), y = half_pair(acc, atom, p + 1, upper);
                acc.set_pair(atom, p, x.x + other.a, x.y + other.b);
                acc.set_pair(atom, p + 1, y.x + other.c, y.y + other.d);
            }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_remote(there_taken);
        phase ^= 1;
    }

    // Waits until the partner has read the last message, and will not write to this CTA again.
    __device__ __forceinline__ void drain() const { mbarrier_wait(taken, phase ^ 1); }

private:
    static constexpr int half = Accumulator::pairs / 2;
    struct alignas(16) Message { ElementAccumulator a, b, c, d; };
    int upper; // 1 in the CTA that has the second half of k, and finishes the second half along N
    unsigned here, there, received, taken, there_received, there_taken, phase = 0;

    static __device__ __forceinline__ int number(int atom, int p) { return (atom * half + p) / 2; }
    static __device__ __forceinline__ Pair half_pair(const Accumulator& acc, int atom, int p, bool upper_half) {
        const Pair low = acc.pair(atom, p), high = acc.pair(atom, half + p);
        return {upper_half ? high.x : low.x, upper_half ? high.y : low.y};
    }
};

// The split-K semaphore of a tile with REDUCTION 2: one 64-bit word by which the CTAs that hold partials of the tile agree which
// of them finishes which slice.
//
// A CTA stores its partials and arrives. It finishes its own slice once all CTAs have arrived, and waits for them only a
// while, because they may not be running yet. If the wait times out, it says so in the word; the last CTA to arrive then
// finishes that slice as well. The order of the additions to the word decides whether a time-out came before or after the
// last arrival, so each slice is finished exactly once, and no CTA ever depends on the progress of another.
// Clocks that a CTA waits: longer than the CTAs of a wave are apart. Tests set other values.
#ifndef SEMAPHORE_CLOCKS
#define SEMAPHORE_CLOCKS 65536
#endif

constexpr int semaphore_bytes = 32; // from one semaphore to the next: each has a sector of the L2

template <int SPLITS> struct SplitKSemaphore {
    static_assert(SPLITS <= 16, "at most 16 CTAs split a tile that they reduce together: the word has 16 bits of a kind");
    using Word = unsigned long long; // bits of CTAs that arrived (16), bits of CTAs that timed out (16), count of releases
    Word* word;

    explicit __device__ __forceinline__ SplitKSemaphore(void* at) : word(static_cast<Word*>(at)) {}

    // Called by one thread of the CTA of split `split`, which has stored the partials of all slices but its own. Returns the
    // slices that this CTA must finish, one bit each; 0 if the wait for the others timed out: time_out() must follow.
    __device__ __forceinline__ unsigned arrive(int split) const {
        const unsigned own = 1u << split;
        const Word found = atomic_add_acq_rel(word, Word(own)) | own;
        if (complete(found)) return unsigned(found) >> 16 | own;
        for (const long long start = clock64(); clock64() - start < SEMAPHORE_CLOCKS;)
            if (complete(load_acquire(word))) return own;
        return 0;
    }

    // Called by the same thread after arrive() returned 0 and the CTA stored its own slice too. Returns the bit of its own
    // slice if all CTAs have arrived by now; otherwise 0, and the last CTA to arrive finishes the slice.
    __device__ __forceinline__ unsigned time_out(int split) const {
        const unsigned own = 1u << split;
        return complete(atomic_add_acq_rel(word, Word(own) << 16)) ? own : 0;
    }

    // Called by the same thread: release() as soon as the CTA knows its slices, clear() with its result when they are
    // finished, so that the addition overlaps the work. The last CTA to release leaves the word zero, as it was.
    __device__ __forceinline__ unsigned release() const { return atomicAdd(word, Word(1) << 32) >> 32; }
    __device__ __forceinline__ void clear(unsigned released_before) const {
        if (released_before == SPLITS - 1) store_relaxed(word, 0);
    }

private:
    static constexpr Word all = (1u << SPLITS) - 1;
    static __device__ __forceinline__ bool complete(Word word) { return (word & all) == all; }
};

// Four accumulators as the workspace holds them.
template <class T> struct QuadOf { using type = float4; };
template <> struct QuadOf<int> { using type = int4; };
using Quad = QuadOf<ElementAccumulator>::type;

// The partials of split-K, and how they are added up. Workspace with REDUCTION 1: a D in ElementAccumulator for each split, in
// rows and columns of whole tiles. With REDUCTION 2 a semaphore for each tile and warpgroup tile (zero before and after the
// launch), then a slot for each tile, split and warpgroup tile: [4 values][thread].
struct Partials {
    // NOTE: either ping-pong consumer may hold a split of a tile, so semaphore and slots belong to the CTA.
    static constexpr int warpgroup_tiles = cfg::pingpong ? 1 : cfg::consumers;
    // Quads of an atom, of a slice of an atom, and of a consumer.
    static constexpr int atom_quads = Accumulator::pairs / 2, slice_quads = cfg::slice_n / 8, quads = cfg::atoms * atom_quads;
    char* semaphores;
    Quad* slots;
    int consumer;
    WarpgroupOrigin origin; // of the slice of its warpgroup tile
    unsigned word;          // shared address of a word of the consumer
    int batches;
    long long stride, batch_stride; // of a D in whole tiles

    __device__ __forceinline__ Partials(void* workspace, const Scheduler& scheduler, int consumer_, unsigned word_)
        : semaphores(static_cast<char*>(workspace)), consumer(consumer_), origin(consumer_), word(word_) {
        const long long zeroed =
            cfg::reduce_kernel ? 0 : (1LL * scheduler.tiles() * warpgroup_tiles * semaphore_bytes + 255) / 256 * 256;
        slots = reinterpret_cast<Quad*>(semaphores + zeroed);
        origin.move_to_slice(scheduler.k_partition);
        batches = scheduler.batch;
        stride = scheduler.columns(), batch_stride = stride * scheduler.rows();
    }

    // REDUCTION 1: stores the partials for the kernel after. NOTE: the split is the slowest index, so that this kernel need not
    // know the tiles.
    __device__ __forceinline__ void store(const Accumulator& acc, const WorkTile& work) const {
        ElementAccumulator* const matrix =
            reinterpret_cast<ElementAccumulator*>(slots) + work.split * batch_stride * batches + work.batch * batch_stride;
        // NOTE: Accumulator::pair_row(0) and pair_column(0); calls of them change the machine code, which was measured.
        const int x = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, y = threadIdx.x % 4 * 2;
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int p = 0; p < cfg::slice_n / 4; ++p) {
                const int along_m = atom * 64 + x + Accumulator::row_step(p), along_n = y + Accumulator::column_step(p);
                const int row = work.m + origin.row + (cfg::swap_ab ? along_n : along_m);
                const int column = work.n + origin.column + (cfg::swap_ab ? along_m : along_n);
                ElementAccumulator* const at = matrix + row * stride + column;
                const Pair pair = acc.pair(atom, p);
                struct alignas(2 * sizeof(ElementAccumulator)) Both { ElementAccumulator x, y; };
                if constexpr (cfg::swap_ab)
                    at[0] = pair.x, at[stride] = pair.y;
                else
                    *reinterpret_cast<Both*>(at) = Both{pair.x, pair.y};
            }
    }

    // REDUCTION 2: calls finish(slice) for each slice of the tile that this consumer must finish, with its total in the first
    // slice_n columns of `acc`. Usually that is its own slice alone, whose partials then never leave the registers.
    template <class Finish> __device__ __forceinline__ void reduce_slices(Accumulator& acc, const WorkTile& work, Finish finish) const {
        const SplitKSemaphore<cfg::split_k> semaphore(semaphore_of(work));
#pragma unroll
        for (int slice = 0; slice < cfg::split_k; ++slice)
            if (slice != work.split) store_slice(acc, work, slice);
        unsigned slices = by_thread_0([&] { return semaphore.arrive(work.split); });
        const bool only_own = slices == 1u << work.split;
        if (!only_own) {
#pragma unroll
            for (int slice = 0; slice < cfg::split_k; ++slice)
                if (slice == work.split) store_slice(acc, work, slice);
            if (!slices) slices = by_thread_0([&] { return semaphore.time_out(work.split); });
        }
        const unsigned released_before = threadIdx.x % 128 == 0 ? semaphore.release() : 0;
        for (; slices; slices &= slices - 1) {
            const int slice = __ffs(slices) - 1;
            load_slice(acc, work, slice, only_own ? work.split : -1);
            add_slices(acc);
            finish(slice);
        }
        if (threadIdx.x % 128 == 0) semaphore.clear(released_before);
    }

private:
    static __device__ __forceinline__ Quad quad(const Accumulator& acc, int atom, int i) {
        const Pair x = acc.pair(atom, 2 * i), y = acc.pair(atom, 2 * i + 1);
        return {x.x, x.y, y.x, y.y};
    }
    static __device__ __forceinline__ void set_quad(Accumulator& acc, int atom, int pair, const Quad& sum) {
        acc.set_pair(atom, pair, sum.x, sum.y);
        acc.set_pair(atom, pair + 1, sum.z, sum.w);
    }
    static __device__ __forceinline__ void add(Quad& sum, const Quad& x) {
        sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }

    __device__ __forceinline__ int warpgroup_tile() const { return cfg::pingpong ? 0 : consumer; }
    __device__ __forceinline__ void* semaphore_of(const WorkTile& work) const {
        return semaphores + (1LL * work.tile * warpgroup_tiles + warpgroup_tile()) * semaphore_bytes;
    }
    __device__ __forceinline__ Quad* slot(const WorkTile& work, int split) const {
        const int number = work.first_slot + split;
        return slots + (static_cast<long long>(number) * warpgroup_tiles + warpgroup_tile()) * (quads * 128) + threadIdx.x % 128;
    }

    __device__ __forceinline__ void store_slice(const Accumulator& acc, const WorkTile& work, int slice) const {
        Quad* const to = slot(work, work.split);
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int i = slice * slice_quads; i < (slice + 1) * slice_quads; ++i)
                __stcg(to + (atom * atom_quads + i) * 128, quad(acc, atom, i));
    }

    // Returns to all threads of the consumer what `call` returns in thread 0. NOTE: thread 0 communicates with other CTAs for
    // all threads, so barriers come before and after (PTX ISA, memory consistency model: causality order).
    template <class Call> __device__ __forceinline__ unsigned by_thread_0(Call call) const {
        named_barrier_sync(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) store_shared_32(word, call());
        named_barrier_sync(1 + consumer, 128);
        return load_shared_32(word);
    }

    // Loads all splits of a slice but split `kept` into `acc`: split s into the registers of slice s, whose partials are stored.
    // Split `kept` is there already.
    __device__ __forceinline__ void load_slice(Accumulator& acc, const WorkTile& work, int slice, int kept) const {
#pragma unroll
        for (int split = 0; split < cfg::split_k; ++split) {
            if (split == kept) continue;
            const Quad* const from = slot(work, split) + slice * slice_quads * 128;
#pragma unroll
            for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
                for (int i = 0; i < slice_quads; ++i)
                    set_quad(acc, atom, 2 * (split * slice_quads + i), __ldcg(from + (atom * atom_quads + i) * 128));
        }
    }
    __device__ __forceinline__ void add_slices(Accumulator& acc) const {
#pragma unroll
        for (int atom = 0; atom < cfg::atoms; ++atom)
#pragma unroll
            for (int i = 0; i < slice_quads; ++i) {
                Quad sum = {};
#pragma unroll
                for (int split = 0; split < cfg::split_k; ++split) add(sum, quad(acc, atom, split * slice_quads + i));
                set_quad(acc, atom, 2 * i, sum);
            }
    }
};

#if REDUCTION == 1
// The kernel after: adds up the partials of split-K and finishes D. blockIdx = (128 columns fastest, then 8 rows; 0; batch),
// threads = 32 x 8: four columns a thread.
extern "C" __global__ void __launch_bounds__(256) reduce_partials(int batch, GEMM_PARAMETERS) {
    if constexpr (!cfg::gpc_order) release_next_kernel();
    const int across = (n + 127) / 128;
    const int row = blockIdx.x / across * 8 + threadIdx.y, column = blockIdx.x % across * 128 + threadIdx.x * 4;
    const Scheduler whole(m, n, k, batch, 0);
    const long long stride = whole.columns(), matrix = stride * whole.rows();
    const ElementAccumulator* from = static_cast<const ElementAccumulator*>(workspace) + blockIdx.z * matrix + row * stride + column;
    Quad total = {};
    // NOTE: __ldcg keeps the loads coherent: the kernel before writes what this one only reads.
    await_previous_kernel();
    if (row >= m || column >= n) return;
#pragma unroll
    for (int split = 0; split < cfg::split_k; ++split) {
        const Quad x = __ldcg(reinterpret_cast<const Quad*>(from + split * matrix * batch));
        total = {total.x + x.x, total.y + x.y, total.z + x.z, total.w + x.w};
    }
    const Epilogue epilogue{cfg::has_c ? c + blockIdx.z * stride_c : c, d + blockIdx.z * stride_d, bias, ldc, ldd, m, n, alpha, beta};
    epilogue.store2(total.x, total.y, row, column);
    epilogue.store2(total.z, total.w, row, column + 2);
}
#endif
