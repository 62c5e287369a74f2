// Stands in for kernels/common/ptx/ldmatrix.cuh: lane i gives the address of row i % 8 of matrix i / 8 and receives elements
// (i / 4, 2 * (i % 4) + {0, 1}) of every matrix or of its transpose.
#pragma once

template <int COUNT, bool TRANSPOSED> void emulated_ldmatrix(unsigned (&r)[COUNT], unsigned address) {
    warp_instruction({{&address}, &r}, [](const Lane(&lanes)[32]) {
        for (int lane = 0; lane < 32; ++lane)
            for (int matrix = 0; matrix < COUNT; ++matrix) {
                unsigned short pair[2];
                for (int half = 0; half < 2; ++half) {
                    int row = lane / 4, column = lane % 4 * 2 + half;
                    if (TRANSPOSED) std::swap(row, column);
                    const unsigned from = *static_cast<const unsigned*>(lanes[matrix * 8 + row].in[0]);
                    std::memcpy(&pair[half], smem + from + column * 2, 2);
                }
                std::memcpy(static_cast<unsigned*>(lanes[lane].out) + matrix, pair, 4);
            }
    });
}

inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) { emulated_ldmatrix<4, false>(r, address); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) { emulated_ldmatrix<4, true>(r, address); }
inline void ldmatrix_x2(unsigned (&r)[2], unsigned address) { emulated_ldmatrix<2, false>(r, address); }
inline void ldmatrix_x2_trans(unsigned (&r)[2], unsigned address) { emulated_ldmatrix<2, true>(r, address); }
