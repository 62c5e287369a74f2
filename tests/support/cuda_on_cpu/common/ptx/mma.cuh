// Stands in for kernels/common/ptx/mma.cuh: the fragments of the PTX ISA, decoded element by element. Products are exact, and
// are added to the accumulator in double precision or in integers; the tensor cores round more.
#pragma once
#include "common/ptx/convert.cuh"

inline float truncated(float x) { // to the 19 bits of a tf32
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return __uint_as_float(bits & 0xFFFFE000u);
}
template <class T> double operand(T x) { return to_accumulator(x); }
inline double operand(tf32 x) { return truncated(x.value); }

// Element i of a lane's registers. With g = lane / 4 and t = lane % 4, register r of A holds bytes 4t .. 4t + 3 of row
// g + 8 * (r % 2) and 16-byte half r / 2, register r of B those of column g and half r; of double two registers hold k = t.
template <class T> double held(const void* registers, int r, int i) {
    T x;
    std::memcpy(&x, static_cast<const char*>(registers) + r * 4 + i * int(sizeof(T)), sizeof(T));
    return operand(x);
}
template <class T> double element_of_a(const Lane (&lanes)[32], int row, int k) {
    if (sizeof(T) == 8) return held<T>(lanes[row % 8 * 4 + k].in[0], row / 8 * 2, 0);
    constexpr int each = 4 / sizeof(T) > 0 ? 4 / sizeof(T) : 1;
    const int half = k / (4 * each), within = k % (4 * each);
    return held<T>(lanes[row % 8 * 4 + within / each].in[0], half * 2 + row / 8, within % each);
}
template <class T> double element_of_b(const Lane (&lanes)[32], int k, int column) {
    if (sizeof(T) == 8) return held<T>(lanes[column * 4 + k].in[1], 0, 0);
    constexpr int each = 4 / sizeof(T) > 0 ? 4 / sizeof(T) : 1;
    const int half = k / (4 * each), within = k % (4 * each);
    return held<T>(lanes[column * 4 + within / each].in[1], half, within % each);
}

// C += A * B over K of k. Lane (g, t) holds C at rows g, g + 8 and columns 2t, 2t + 1, as four C or as four f16.
template <class T, class C, int K> void emulated_mma(void* c, const void* a, const void* b) {
    warp_instruction({{a, b}, c}, [](const Lane(&lanes)[32]) {
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < 8; ++column) {
                char* at = static_cast<char*>(lanes[row % 8 * 4 + column / 2].out) + (row / 8 * 2 + column % 2) * int(sizeof(C));
                C before;
                std::memcpy(&before, at, sizeof(C));
                double sum = to_accumulator(before);
                for (int k = 0; k < K; ++k) sum += element_of_a<T>(lanes, row, k) * element_of_b<T>(lanes, k, column);
                const C after = Convert<C>::from(sum);
                std::memcpy(at, &after, sizeof(C));
            }
    });
}

template <class T> struct Mma {
    static constexpr int k = 32 / sizeof(T);
    template <class C> static void full(C (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { emulated_mma<T, C, k>(c, a, b); }
    template <class C> static void k8(C (&c)[4], unsigned a0, unsigned a1, unsigned b) {
        const unsigned a[2] = {a0, a1};
        emulated_mma<T, C, k / 2>(c, a, &b);
    }
};
inline void mma_f16_k16(unsigned (&c)[2], const unsigned (&a)[4], const unsigned (&b)[2]) { emulated_mma<f16, f16, 16>(c, a, b); }
inline void mma_f16_k8(unsigned (&c)[2], unsigned a0, unsigned a1, unsigned b) {
    const unsigned a[2] = {a0, a1};
    emulated_mma<f16, f16, 8>(c, a, &b);
}
