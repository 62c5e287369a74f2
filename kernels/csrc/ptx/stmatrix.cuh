// stmatrix (sm_90+): 8x8 matrices of 16-bit elements from mma fragments to shared memory, the inverse of
// ldmatrix. Lane i gives the address of row i % 8 of matrix i / 8 (16 bytes) and holds its elements
// (i / 4, 2 * (i % 4) + {0, 1}) of every matrix.
// TRANSPOSED stores the transposes: lane i then gives the address of column i % 8 of matrix i / 8.
#pragma once

template <bool TRANSPOSED = false> __device__ __forceinline__ void stmatrix_x4(unsigned smem, const unsigned (&r)[4]) {
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r[0]), "r"(r[1]),
                     "r"(r[2]), "r"(r[3])
                     : "memory");
}

// The first two matrices alone; the addresses of lanes 16 .. 31 are ignored.
template <bool TRANSPOSED = false> __device__ __forceinline__ void stmatrix_x2(unsigned smem, unsigned r0, unsigned r1) {
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(smem), "r"(r0), "r"(r1) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(smem), "r"(r0), "r"(r1) : "memory");
}
