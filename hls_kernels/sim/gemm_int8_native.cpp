// Native inner products of the fast build, over the same tile order as the card's memory.
//
// Each instruction set has its own functions with a target attribute, chosen at run time, so that
// the library itself is built for the plain architecture. Integer sums are exact in any order:
// every path gives the same bits.
#include "gemm_int8_sim.hpp"

#ifdef ECORL_NATIVE

#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ecorl {
namespace gemm {

namespace {

/// Up to TILE_K values of a row from `step` on, zeros behind the end of the row.
inline std::int32_t load_quad(const std::int8_t* row, std::int32_t step, std::int32_t k) {
    std::int32_t quad = 0;
    const std::int32_t left = k - step * TILE_K;
    std::memcpy(&quad, row + step * TILE_K, left < TILE_K ? left : TILE_K);
    return quad;
}

}  // namespace

const std::int8_t* pad_rows(const std::int8_t* a, std::int32_t rows, std::int32_t k,
                            std::int32_t padded_k) {
    static thread_local std::vector<std::int8_t> padded;
    padded.resize(static_cast<std::size_t>(rows) * padded_k);
    for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(padded.data() + r * padded_k, a + r * k, k);
        std::memset(padded.data() + r * padded_k + k, 0, padded_k - k);
    }
    return padded.data();
}

void multiply_portable(const operands& p) {
    const std::int32_t steps = ceil_div(p.k, TILE_K);
    for (std::int64_t i = 0; i < p.m; ++i) {
        const std::int8_t* const a = p.a + i * p.k;
        for (std::int32_t j0 = 0; j0 < p.n; j0 += TILE_N) {
            const std::int8_t* w = p.packed + std::int64_t{j0 / TILE_N} * steps * WORD_BYTES;
            std::int32_t acc[TILE_N] = {};
            for (std::int32_t step = 0; step < steps; ++step, w += WORD_BYTES) {
                std::int8_t quad[TILE_K];
                const std::int32_t bytes = load_quad(a, step, p.k);
                std::memcpy(quad, &bytes, TILE_K);
                for (int j = 0; j < TILE_N; ++j) {
                    for (int t = 0; t < TILE_K; ++t) acc[j] += quad[t] * w[j * TILE_K + t];
                }
            }
            const std::int32_t live = p.n - j0 < TILE_N ? p.n - j0 : TILE_N;
            std::memcpy(p.c + i * p.n + j0, acc, live * sizeof(std::int32_t));
        }
    }
}

#if defined(__x86_64__)

// ---- AVX2 -----------------------------------------------------------------------------------
//
// vpmaddubsw saturates, so both sides are widened to INT16 and vpmaddwd adds pairs exactly
// (2 * 2^14 fits 32 bits). One 64-byte word gives four registers of four columns; each lane holds
// half of a column's four products until the end.

#define ECORL_AVX2 __attribute__((target("avx2")))
#define ECORL_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace {

/// Widen `rows` rows of A to INT16, four values a step, zeros behind k.
void widen_rows(const operands& p, std::int32_t first, std::int32_t rows, std::int16_t* wide) {
    const std::int64_t padded = std::int64_t{ceil_div(p.k, TILE_K)} * TILE_K;
    for (std::int32_t r = 0; r < rows; ++r) {
        const std::int8_t* const from = p.a + std::int64_t{first + r} * p.k;
        std::int16_t* const to = wide + r * padded;
        for (std::int32_t t = 0; t < p.k; ++t) to[t] = from[t];
        for (std::int64_t t = p.k; t < padded; ++t) to[t] = 0;
    }
}

/// R rows times 16 columns.
template <int R>
ECORL_AVX2_INLINE void tile_avx2(const std::int16_t* wide, const std::int8_t* w, std::int32_t steps,
                                 std::int32_t* c, std::int64_t c_stride, std::int32_t live) {
    __m256i acc[R][4];
    for (int r = 0; r < R; ++r) {
        for (int q = 0; q < 4; ++q) acc[r][q] = _mm256_setzero_si256();
    }
    for (std::int32_t step = 0; step < steps; ++step, w += WORD_BYTES) {
        __m256i act[R];
        for (int r = 0; r < R; ++r) {
            long long quad;
            std::memcpy(&quad, wide + (std::int64_t{r} * steps + step) * TILE_K, sizeof quad);
            act[r] = _mm256_set1_epi64x(quad);
        }
        for (int q = 0; q < 4; ++q) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 16 * q));
            const __m256i weights = _mm256_cvtepi8_epi16(bytes);
            for (int r = 0; r < R; ++r) {
                acc[r][q] = _mm256_add_epi32(acc[r][q], _mm256_madd_epi16(act[r], weights));
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        // hadd works in 128-bit halves: columns come out as 0 1 4 5 2 3 6 7.
        alignas(32) std::int32_t row[TILE_N];
        for (int h = 0; h < 2; ++h) {
            const __m256i sums = _mm256_hadd_epi32(acc[r][2 * h], acc[r][2 * h + 1]);
            const __m256i ordered = _mm256_permute4x64_epi64(sums, 0xD8);
            _mm256_store_si256(reinterpret_cast<__m256i*>(row + 8 * h), ordered);
        }
        std::memcpy(c + r * c_stride, row, live * sizeof(std::int32_t));
    }
}

template <int R>
ECORL_AVX2 void rows_avx2(const operands& p, std::int32_t first, const std::int16_t* wide) {
    const std::int32_t steps = ceil_div(p.k, TILE_K);
    for (std::int32_t j0 = 0; j0 < p.n; j0 += TILE_N) {
        const std::int8_t* const w = p.packed + std::int64_t{j0 / TILE_N} * steps * WORD_BYTES;
        const std::int32_t live = p.n - j0 < TILE_N ? p.n - j0 : TILE_N;
        tile_avx2<R>(wide, w, steps, p.c + std::int64_t{first} * p.n + j0, p.n, live);
    }
}

}  // namespace

bool has_avx2() {
    return __builtin_cpu_supports("avx2");
}

void multiply_avx2(const operands& p) {
    constexpr std::int32_t ROWS = 3;  // 12 accumulators of 16 registers
    static thread_local std::vector<std::int16_t> wide;
    wide.resize(static_cast<std::size_t>(ROWS) * ceil_div(p.k, TILE_K) * TILE_K);
    std::int32_t i = 0;
    for (; i + ROWS <= p.m; i += ROWS) {
        widen_rows(p, i, ROWS, wide.data());
        rows_avx2<ROWS>(p, i, wide.data());
    }
    for (; i < p.m; ++i) {
        widen_rows(p, i, 1, wide.data());
        rows_avx2<1>(p, i, wide.data());
    }
}

// ---- AVX512-VNNI ----------------------------------------------------------------------------
//
// vpdpbusd multiplies unsigned by signed bytes. The weights are made unsigned on the fly
// (w + 128, one XOR a register), the activations stay as they lie in memory, and each row starts
// from the correction -128 * sum of its activations: sum(a * (w + 128)) - 128 * sum(a).
// Intermediate sums may wrap; the last one is exact modulo 2^32, and the result fits.

#define ECORL_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define ECORL_VNNI_INLINE \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"), always_inline)) inline

namespace {

constexpr std::int32_t CHUNK = 96;  // rows whose activations stay in cache while W passes

/// -128 times the sum of a row.
ECORL_VNNI std::int32_t correction(const std::int8_t* row, std::int32_t k) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sums = _mm512_setzero_si512();
    std::int32_t t = 0;
    for (; t + 64 <= k; t += 64)
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_loadu_si512(row + t));
    if (t < k) {
        const __mmask64 mask = ~std::uint64_t{0} >> (64 - (k - t));
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_maskz_loadu_epi8(mask, row + t));
    }
    return -128 * _mm512_reduce_add_epi32(sums);
}

/// acc += weights (unsigned) * act (signed), four bytes a lane. Written as assembly because g++
/// 12 copies the accumulators of the intrinsic around, which halves the speed.
ECORL_VNNI_INLINE void dot(__m512i& acc, __m512i weights, __m512i act) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(act));
}

/// R rows times NB words of 16 columns. `live` counts the columns of the last word.
template <int R, int NB>
ECORL_VNNI_INLINE void tile_vnni(const std::int8_t* a, std::int32_t k, const std::int8_t* w,
                                 const std::int32_t* corrections, std::int32_t* c,
                                 std::int64_t c_stride, std::int32_t live) {
    const std::int32_t whole = k / TILE_K;
    const std::int64_t w_stride = std::int64_t{whole} * WORD_BYTES;
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    __m512i acc[R][NB];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int b = 0; b < NB; ++b) acc[r][b] = _mm512_set1_epi32(corrections[r]);
    }
    for (std::int32_t step = 0; step < whole; ++step, w += WORD_BYTES) {
        __m512i weights[NB];
#pragma GCC unroll 4
        for (int b = 0; b < NB; ++b) {
            weights[b] = _mm512_xor_si512(_mm512_loadu_si512(w + b * w_stride), sign);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            std::int32_t quad;
            std::memcpy(&quad, a + std::int64_t{r} * k + step * TILE_K, sizeof quad);
            const __m512i act = _mm512_set1_epi32(quad);
#pragma GCC unroll 4
            for (int b = 0; b < NB; ++b) dot(acc[r][b], weights[b], act);
        }
    }
    const __mmask16 mask = static_cast<__mmask16>(0xFFFFu >> (TILE_N - live));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        std::int32_t* const row = c + r * c_stride;
#pragma GCC unroll 4
        for (int b = 0; b < NB - 1; ++b) _mm512_storeu_si512(row + b * TILE_N, acc[r][b]);
        _mm512_mask_storeu_epi32(row + (NB - 1) * TILE_N, mask, acc[r][NB - 1]);
    }
}

/// `rows` rows of A times NB words of columns from j0 on. `k` is a whole number of steps.
struct strip {
    const std::int8_t* a;
    std::int32_t* c;
    std::int32_t rows, k;
    const std::int32_t* corrections;
};

template <int R, int NB>
ECORL_VNNI_INLINE void advance(strip& s, const std::int8_t* w, std::int64_t c_stride,
                               std::int32_t live) {
    for (; s.rows >= R; s.rows -= R) {
        tile_vnni<R, NB>(s.a, s.k, w, s.corrections, s.c, c_stride, live);
        s.a += std::int64_t{R} * s.k;
        s.c += R * c_stride;
        s.corrections += R;
    }
}

template <int NB>
ECORL_VNNI void panel_vnni(strip s, const operands& p, std::int32_t j0) {
    constexpr int ROWS = NB == 4 ? 6 : NB == 3 ? 8 : 12;  // 24 accumulators, 12 for one word
    const std::int8_t* const w = p.packed + std::int64_t{j0 / TILE_N} * (s.k / TILE_K) * WORD_BYTES;
    const std::int32_t live = p.n - j0 >= NB * TILE_N ? TILE_N : p.n - j0 - (NB - 1) * TILE_N;
    s.c += j0;
    advance<ROWS, NB>(s, w, p.n, live);
    advance<4, NB>(s, w, p.n, live);
    advance<2, NB>(s, w, p.n, live);
    advance<1, NB>(s, w, p.n, live);
}

}  // namespace

bool has_vnni() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

ECORL_VNNI void multiply_vnni(const operands& p) {
    std::int32_t corrections[CHUNK];
    const std::int32_t padded_k = ceil_div(p.k, TILE_K) * TILE_K;
    for (std::int32_t first = 0; first < p.m; first += CHUNK) {
        const std::int32_t rows = p.m - first < CHUNK ? p.m - first : CHUNK;
        const std::int8_t* a = p.a + std::int64_t{first} * p.k;
        for (std::int32_t r = 0; r < rows; ++r) {
            corrections[r] = correction(a + std::int64_t{r} * p.k, p.k);
        }
        if (padded_k != p.k) a = pad_rows(a, rows, p.k, padded_k);
        const strip s = {a, p.c + std::int64_t{first} * p.n, rows, padded_k, corrections};
        std::int32_t j0 = 0;
        for (; p.n - j0 > 3 * TILE_N; j0 += 4 * TILE_N) panel_vnni<4>(s, p, j0);
        if (p.n - j0 > 2 * TILE_N) {
            panel_vnni<3>(s, p, j0);
        } else if (p.n - j0 > TILE_N) {
            panel_vnni<2>(s, p, j0);
        } else if (p.n > j0) {
            panel_vnni<1>(s, p, j0);
        }
    }
}

#else

bool has_avx2() {
    return false;
}
void multiply_avx2(const operands& p) {
    multiply_portable(p);
}
bool has_vnni() {
    return false;
}
void multiply_vnni(const operands& p) {
    multiply_portable(p);
}

#endif  // __x86_64__

}  // namespace gemm
}  // namespace ecorl

#endif  // ECORL_NATIVE
