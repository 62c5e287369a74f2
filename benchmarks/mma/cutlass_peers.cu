// Kernels of CUTLASS 2.x as a shared library for tilewright bench mma --peers. CUTLASS is no part of this repository:
// CUTLASS_INCLUDE names its include folder. One object for each TYPES, LAYOUT and ALIGNED below, then one library:
//
//   nvcc -std=c++17 -O1 -arch=sm_90 -Xcompiler -fPIC -I$CUTLASS_INCLUDE -DTYPES=0 -DLAYOUT=1 -DALIGNED=1 -c cutlass_peers.cu
//     -o peers-0-1-1.o
//   ...
//   nvcc -std=c++17 -shared -Xcompiler -fPIC -I. cutlass_peers.cu peers-*.o -o peers.so
//
// where peers_list.h has a line PEERS(0, 1, 1) for each of them.
// TYPES: 0 f16 with f32 accumulators, 1 f16 with f16, 2 bf16, 3 tf32, 4 s8. LAYOUT: 0 nn, 1 nt, 2 tn, 3 tt.
// ALIGNED: 1 multistage kernels with accesses of 16 bytes, 0 kernels for any row, which load single elements: those of two bytes
// in two stages, as cp.async copies four bytes or more.
#include <cuda_runtime.h>
#include <cstring>
#include <string>
#include <vector>

struct Peer {
    std::string name, types, layout;
    int (*launch)(const void* a, const void* b, void* d, int m, int n, int k, int split, cudaStream_t stream);
    int split;
    bool aligned;
};

#ifdef TYPES
#include "cutlass/cutlass.h"
#include "cutlass/gemm/device/gemm_universal.h"

namespace { // NOTE: the objects have functions of the same names
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using LayoutA = std::conditional_t<LAYOUT / 2 == 0, Row, Column>;
using LayoutB = std::conditional_t<LAYOUT % 2 == 0, Row, Column>;
template <int N> struct Types;
template <> struct Types<0> { using In = cutlass::half_t; using Out = cutlass::half_t; using Sum = float; static constexpr auto name = "float16:float32"; };
template <> struct Types<1> { using In = cutlass::half_t; using Out = cutlass::half_t; using Sum = cutlass::half_t; static constexpr auto name = "float16:float16"; };
template <> struct Types<2> { using In = cutlass::bfloat16_t; using Out = cutlass::bfloat16_t; using Sum = float; static constexpr auto name = "bfloat16:float32"; };
template <> struct Types<3> { using In = cutlass::tfloat32_t; using Out = float; using Sum = float; static constexpr auto name = "tfloat32:float32"; };
template <> struct Types<4> { using In = int8_t; using Out = int32_t; using Sum = int32_t; static constexpr auto name = "int8:int32"; };
using T = Types<TYPES>;
constexpr int bits = cutlass::sizeof_bits<T::In>::value, each = ALIGNED ? 128 / bits : 1;
constexpr int each_of_d = ALIGNED ? 128 / cutlass::sizeof_bits<T::Out>::value : 1;

// The K of a tile is given for 16-bit elements.
template <int M, int N, int K, int WARP_M, int WARP_N, int STAGES>
int launch(const void* a, const void* b, void* d, int m, int n, int k, int split, cudaStream_t stream) {
    constexpr int depth = K * 16 / bits;
    using Epilogue = cutlass::epilogue::thread::LinearCombination<T::Out, each_of_d, T::Sum, T::Sum>;
    using Gemm = cutlass::gemm::device::GemmUniversal<
        T::In, LayoutA, T::In, LayoutB, T::Out, Row, T::Sum, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
        cutlass::gemm::GemmShape<M, N, depth>, cutlass::gemm::GemmShape<WARP_M, WARP_N, depth>,
        cutlass::gemm::GemmShape<16, 8, 256 / bits>, Epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>,
        STAGES, each, each, std::conditional_t<TYPES == 4, cutlass::arch::OpMultiplyAddSaturate, cutlass::arch::OpMultiplyAdd>>;
    const int lda = LAYOUT / 2 == 0 ? k : m, ldb = LAYOUT % 2 == 0 ? n : k;
    typename Gemm::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k}, split, {T::Sum(1), T::Sum(0)}, a, b, d, d,
                                       0, 0, 0, 0, lda, ldb, n, n);
    static void* workspace = nullptr;
    constexpr size_t most = 256 << 20;
    if (Gemm::can_implement(arguments) != cutlass::Status::kSuccess || Gemm::get_workspace_size(arguments) > most) return 1;
    if (split > 1 && !workspace && cudaMalloc(&workspace, most) != cudaSuccess) return 2;
    Gemm gemm;
    return gemm(arguments, workspace, stream) == cutlass::Status::kSuccess ? 0 : 3;
}

} // namespace

#define NAME2(types, layout, aligned) peers_##types##_##layout##_##aligned
#define NAME(types, layout, aligned) NAME2(types, layout, aligned)
#define TILE(m, n, k, warp_m, warp_n, stages)                                                                             \
    for (int split : {1, 4, 8})                                                                                           \
        peers.push_back({"cutlass " #m "x" #n "x" #k " warp " #warp_m "x" #warp_n " stages " #stages " split " + std::to_string(split), \
                         T::name, layout, launch<m, n, k, warp_m, warp_n, stages>, split, ALIGNED});
std::vector<Peer> NAME(TYPES, LAYOUT, ALIGNED)() {
    std::vector<Peer> peers;
    const std::string layout = {"nt"[LAYOUT / 2], "nt"[LAYOUT % 2]};
#if ALIGNED
    TILE(128, 256, 32, 64, 64, 3)
    TILE(256, 128, 32, 64, 64, 3)
    TILE(128, 256, 64, 64, 64, 3)
    TILE(256, 128, 64, 64, 64, 3)
    TILE(128, 128, 32, 64, 64, 3)
    TILE(128, 128, 32, 64, 64, 4)
    TILE(128, 128, 32, 64, 64, 5)
    TILE(128, 128, 64, 64, 64, 3)
    TILE(128, 128, 64, 64, 64, 4)
    TILE(128, 128, 32, 64, 32, 5)
    TILE(256, 64, 32, 64, 64, 4)
    TILE(64, 256, 32, 64, 64, 4)
    TILE(128, 64, 64, 64, 32, 3)
    TILE(64, 128, 64, 32, 64, 3)
    TILE(64, 64, 64, 32, 32, 5)
#elif TYPES == 3
    TILE(128, 256, 32, 64, 64, 3)
    TILE(256, 128, 32, 64, 64, 3)
    TILE(128, 128, 32, 64, 64, 4)
    TILE(128, 128, 32, 64, 32, 3)
#else
    TILE(128, 256, 32, 64, 64, 2)
    TILE(256, 128, 32, 64, 64, 2)
    TILE(128, 128, 32, 64, 64, 2)
    TILE(128, 128, 32, 64, 32, 2)
#endif
    return peers;
}
#else
#define PEERS(types, layout, aligned) std::vector<Peer> peers_##types##_##layout##_##aligned();
#include "peers_list.h"
#undef PEERS
static const std::vector<Peer>& all() {
    static const std::vector<Peer> peers = [] {
        std::vector<Peer> found;
        const auto add = [&](const std::vector<Peer>& some) { found.insert(found.end(), some.begin(), some.end()); };
#define PEERS(types, layout, aligned) add(peers_##types##_##layout##_##aligned());
#include "peers_list.h"
        return found;
    }();
    return peers;
}
extern "C" const char* peer_name(int i) { return i < int(all().size()) ? all()[i].name.c_str() : nullptr; }
extern "C" int peer_takes(int i, const char* types, const char* layout) { return all()[i].types == types && all()[i].layout == layout; }
extern "C" int peer_launch(int i, const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
    const Peer& peer = all()[i];
    if (!peer.aligned && (m | n | k) % 16 == 0) return 1; // slower than its neighbours
    if (peer.split > 1 && (m * 1LL * n > 1 << 20 || k < 4096)) return 1; // only where tiles are few
    return peer.launch(a, b, d, m, n, k, peer.split, static_cast<cudaStream_t>(stream));
}
#endif
