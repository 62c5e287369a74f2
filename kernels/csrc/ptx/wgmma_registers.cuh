// Operand lists of wgmma: n = 10 q + r accumulator registers (r even, 2 .. 10) as text "%0, %1, ..." and as
// asm operands X(0), X(1), ... An asm statement spells out each register, and a list cannot be computed:
// it is put together from q full tens and the first r of another ten.
#pragma once

// clang-format off
// The first 2 .. 10 of the ten registers that start with digits q.
#define TW_TEXT_2(q) "%" #q "0, %" #q "1"
#define TW_TEXT_4(q) TW_TEXT_2(q) ", %" #q "2, %" #q "3"
#define TW_TEXT_6(q) TW_TEXT_4(q) ", %" #q "4, %" #q "5"
#define TW_TEXT_8(q) TW_TEXT_6(q) ", %" #q "6, %" #q "7"
#define TW_TEXT_10(q) TW_TEXT_8(q) ", %" #q "8, %" #q "9"
#define TW_LIST_2(X, q) X(10 * q), X(10 * q + 1)
#define TW_LIST_4(X, q) TW_LIST_2(X, q), X(10 * q + 2), X(10 * q + 3)
#define TW_LIST_6(X, q) TW_LIST_4(X, q), X(10 * q + 4), X(10 * q + 5)
#define TW_LIST_8(X, q) TW_LIST_6(X, q), X(10 * q + 6), X(10 * q + 7)
#define TW_LIST_10(X, q) TW_LIST_8(X, q), X(10 * q + 8), X(10 * q + 9)

// All registers below 10 q, each followed by a comma.
#define TW_TEXT_TENS_0
#define TW_TEXT_TENS_1 TW_TEXT_TENS_0 TW_TEXT_10(0) ", "
#define TW_TEXT_TENS_2 TW_TEXT_TENS_1 TW_TEXT_10(1) ", "
#define TW_TEXT_TENS_3 TW_TEXT_TENS_2 TW_TEXT_10(2) ", "
#define TW_TEXT_TENS_4 TW_TEXT_TENS_3 TW_TEXT_10(3) ", "
#define TW_TEXT_TENS_5 TW_TEXT_TENS_4 TW_TEXT_10(4) ", "
#define TW_TEXT_TENS_6 TW_TEXT_TENS_5 TW_TEXT_10(5) ", "
#define TW_TEXT_TENS_7 TW_TEXT_TENS_6 TW_TEXT_10(6) ", "
#define TW_TEXT_TENS_8 TW_TEXT_TENS_7 TW_TEXT_10(7) ", "
#define TW_TEXT_TENS_9 TW_TEXT_TENS_8 TW_TEXT_10(8) ", "
#define TW_TEXT_TENS_10 TW_TEXT_TENS_9 TW_TEXT_10(9) ", "
#define TW_TEXT_TENS_11 TW_TEXT_TENS_10 TW_TEXT_10(10) ", "
#define TW_TEXT_TENS_12 TW_TEXT_TENS_11 TW_TEXT_10(11) ", "
#define TW_LIST_TENS_0(X)
#define TW_LIST_TENS_1(X) TW_LIST_TENS_0(X) TW_LIST_10(X, 0),
#define TW_LIST_TENS_2(X) TW_LIST_TENS_1(X) TW_LIST_10(X, 1),
#define TW_LIST_TENS_3(X) TW_LIST_TENS_2(X) TW_LIST_10(X, 2),
#define TW_LIST_TENS_4(X) TW_LIST_TENS_3(X) TW_LIST_10(X, 3),
#define TW_LIST_TENS_5(X) TW_LIST_TENS_4(X) TW_LIST_10(X, 4),
#define TW_LIST_TENS_6(X) TW_LIST_TENS_5(X) TW_LIST_10(X, 5),
#define TW_LIST_TENS_7(X) TW_LIST_TENS_6(X) TW_LIST_10(X, 6),
#define TW_LIST_TENS_8(X) TW_LIST_TENS_7(X) TW_LIST_10(X, 7),
#define TW_LIST_TENS_9(X) TW_LIST_TENS_8(X) TW_LIST_10(X, 8),
#define TW_LIST_TENS_10(X) TW_LIST_TENS_9(X) TW_LIST_10(X, 9),
#define TW_LIST_TENS_11(X) TW_LIST_TENS_10(X) TW_LIST_10(X, 10),
#define TW_LIST_TENS_12(X) TW_LIST_TENS_11(X) TW_LIST_10(X, 11),

#define TW_TEXT(q, r) TW_TEXT_TENS_##q TW_TEXT_##r(q)
#define TW_LIST(X, q, r) TW_LIST_TENS_##q(X) TW_LIST_##r(X, q)

// Every N with its list: M(N, q, r, n, n + 1, .., n + 4), the last five being the numbers of the operands
// that follow the n registers. f32: n = N / 2 registers of one element.
#define TW_EVERY_N_F32(M) \
    M(8, 0, 4, 4, 5, 6, 7, 8) M(16, 0, 8, 8, 9, 10, 11, 12) M(24, 1, 2, 12, 13, 14, 15, 16) \
    M(32, 1, 6, 16, 17, 18, 19, 20) M(40, 1, 10, 20, 21, 22, 23, 24) M(48, 2, 4, 24, 25, 26, 27, 28) \
    M(56, 2, 8, 28, 29, 30, 31, 32) M(64, 3, 2, 32, 33, 34, 35, 36) M(72, 3, 6, 36, 37, 38, 39, 40) \
    M(80, 3, 10, 40, 41, 42, 43, 44) M(88, 4, 4, 44, 45, 46, 47, 48) M(96, 4, 8, 48, 49, 50, 51, 52) \
    M(104, 5, 2, 52, 53, 54, 55, 56) M(112, 5, 6, 56, 57, 58, 59, 60) M(120, 5, 10, 60, 61, 62, 63, 64) \
    M(128, 6, 4, 64, 65, 66, 67, 68) M(136, 6, 8, 68, 69, 70, 71, 72) M(144, 7, 2, 72, 73, 74, 75, 76) \
    M(152, 7, 6, 76, 77, 78, 79, 80) M(160, 7, 10, 80, 81, 82, 83, 84) M(168, 8, 4, 84, 85, 86, 87, 88) \
    M(176, 8, 8, 88, 89, 90, 91, 92) M(184, 9, 2, 92, 93, 94, 95, 96) M(192, 9, 6, 96, 97, 98, 99, 100) \
    M(200, 9, 10, 100, 101, 102, 103, 104) M(208, 10, 4, 104, 105, 106, 107, 108) M(216, 10, 8, 108, 109, 110, 111, 112) \
    M(224, 11, 2, 112, 113, 114, 115, 116) M(232, 11, 6, 116, 117, 118, 119, 120) M(240, 11, 10, 120, 121, 122, 123, 124) \
    M(248, 12, 4, 124, 125, 126, 127, 128) M(256, 12, 8, 128, 129, 130, 131, 132)
// f16: n = N / 4 registers of two elements.
#define TW_EVERY_N_F16(M) \
    M(8, 0, 2, 2, 3, 4, 5, 6) M(16, 0, 4, 4, 5, 6, 7, 8) M(24, 0, 6, 6, 7, 8, 9, 10) \
    M(32, 0, 8, 8, 9, 10, 11, 12) M(40, 0, 10, 10, 11, 12, 13, 14) M(48, 1, 2, 12, 13, 14, 15, 16) \
    M(56, 1, 4, 14, 15, 16, 17, 18) M(64, 1, 6, 16, 17, 18, 19, 20) M(72, 1, 8, 18, 19, 20, 21, 22) \
    M(80, 1, 10, 20, 21, 22, 23, 24) M(88, 2, 2, 22, 23, 24, 25, 26) M(96, 2, 4, 24, 25, 26, 27, 28) \
    M(104, 2, 6, 26, 27, 28, 29, 30) M(112, 2, 8, 28, 29, 30, 31, 32) M(120, 2, 10, 30, 31, 32, 33, 34) \
    M(128, 3, 2, 32, 33, 34, 35, 36) M(136, 3, 4, 34, 35, 36, 37, 38) M(144, 3, 6, 36, 37, 38, 39, 40) \
    M(152, 3, 8, 38, 39, 40, 41, 42) M(160, 3, 10, 40, 41, 42, 43, 44) M(168, 4, 2, 42, 43, 44, 45, 46) \
    M(176, 4, 4, 44, 45, 46, 47, 48) M(184, 4, 6, 46, 47, 48, 49, 50) M(192, 4, 8, 48, 49, 50, 51, 52) \
    M(200, 4, 10, 50, 51, 52, 53, 54) M(208, 5, 2, 52, 53, 54, 55, 56) M(216, 5, 4, 54, 55, 56, 57, 58) \
    M(224, 5, 6, 56, 57, 58, 59, 60) M(232, 5, 8, 58, 59, 60, 61, 62) M(240, 5, 10, 60, 61, 62, 63, 64) \
    M(248, 6, 2, 62, 63, 64, 65, 66) M(256, 6, 4, 64, 65, 66, 67, 68)
// s32: as f32, but above 32 multiples of 16 only.
#define TW_EVERY_N_S32(M) \
    M(8, 0, 4, 4, 5, 6, 7, 8) M(16, 0, 8, 8, 9, 10, 11, 12) M(24, 1, 2, 12, 13, 14, 15, 16) \
    M(32, 1, 6, 16, 17, 18, 19, 20) M(48, 2, 4, 24, 25, 26, 27, 28) M(64, 3, 2, 32, 33, 34, 35, 36) \
    M(80, 3, 10, 40, 41, 42, 43, 44) M(96, 4, 8, 48, 49, 50, 51, 52) M(112, 5, 6, 56, 57, 58, 59, 60) \
    M(128, 6, 4, 64, 65, 66, 67, 68) M(144, 7, 2, 72, 73, 74, 75, 76) M(160, 7, 10, 80, 81, 82, 83, 84) \
    M(176, 8, 8, 88, 89, 90, 91, 92) M(192, 9, 6, 96, 97, 98, 99, 100) \
    M(208, 10, 4, 104, 105, 106, 107, 108) M(224, 11, 2, 112, 113, 114, 115, 116) \
    M(240, 11, 10, 120, 121, 122, 123, 124) M(256, 12, 8, 128, 129, 130, 131, 132)
// clang-format on
