// Adds up the parts of split-K in their order and finishes D: a kernel after the one that left them.
#pragma once
#include "ptx/dependent.cuh"
#include "tile/epilogue.cuh"
#include "wgmma_ws/scheduler.cuh"

// blockIdx = (128 columns fastest, then 8 rows; 0; batch), threads = 32 x 8: four columns a thread.
extern "C" __global__ void __launch_bounds__(256) reduce_parts(int batch, GEMM_PARAMETERS) {
    if constexpr (!cfg::by_gpc) release_next_kernel();
    const int across = (n + 127) / 128;
    const int row = blockIdx.x / across * 8 + threadIdx.y, column = blockIdx.x % across * 128 + threadIdx.x * 4;
    const Scheduler whole(m, n, k, batch, 0);
    const long long stride = whole.columns(), part = stride * whole.rows();
    const Real* from = static_cast<const Real*>(workspace) + blockIdx.z * part + row * stride + column;
    struct alignas(4 * sizeof(Real)) Four { Real x, y, z, w; };
    Four sums = {};
    await_previous_kernel();
    if (row >= m || column >= n) return;
#pragma unroll
    for (int i = 0; i < cfg::split_k; ++i) {
        const Four x = *reinterpret_cast<const Four*>(from + i * part * batch);
        sums = {sums.x + x.x, sums.y + x.y, sums.z + x.z, sums.w + x.w};
    }
    const Epilogue epilogue{cfg::has_c ? c + blockIdx.z * stride_c : c, d + blockIdx.z * stride_d, bias, ldc, ldd, m, n, alpha, beta};
    epilogue.store2(sums.x, sums.y, row, column);
    epilogue.store2(sums.z, sums.w, row, column + 2);
}
