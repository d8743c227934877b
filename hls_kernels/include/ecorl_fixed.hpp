// Fixed-point arithmetic of the kernels: scales, shifts and the functions. NUMERICS.md says what
// each computes; no floating point, no table but the seeds of the reciprocal square root.
//
// A number with W bits is sint<W>: exactly W bits in the strict build and in hardware, so that one
// that does not fit shows; a native integer in the fast build.
#pragma once

#include "ecorl_types.hpp"

namespace ecorl {

using code_t = sint<8>;
using value_t = sint<32>;
using wide_t = sint<64>;
using dim_t = std::int32_t;

/// m * 2^e, with 2^30 <= m < 2^31, or m = 0 for zero.
struct scale_t {
    std::int32_t m;
    std::int32_t e;
};

constexpr int ROPE_BITS = 14;
constexpr int SCORE_BITS = 16;      ///< fraction bits of logits, gates and rewards
constexpr int ATTENTION_BITS = 12;  ///< fraction bits of attention's scores
constexpr int SCORE_LIMIT = 29;     ///< scores and logits stay within 2^29
constexpr int VALUE_LIMIT = 30;     ///< residual stream, biases and rewards within 2^30
constexpr int LOGPROB_BITS = 20;    ///< fraction bits of log-probs
constexpr int MOST_LEFT = 16;       ///< a longer left shift would lose too much
constexpr int EXP_BITS = 15;
constexpr int EXP_SUM_BITS = 29;             ///< fraction bits of the terms of a log-sum-exp
constexpr std::int64_t LN2_31 = 1488522236;  ///< ln 2 with 31 fraction bits
constexpr std::int64_t LEAST_LOGPROB = -(std::int64_t{2954} << LOGPROB_BITS);  ///< in log2
constexpr scale_t LOG2_E = {1549082005, -30};                                  ///< log2(e)

inline value_t high(value_t a, value_t b) {
#pragma HLS INLINE
    return value_t(product<32, 32>(a, b) >> 32);
}

inline value_t magnitude(value_t v) {
#pragma HLS INLINE
    return v < 0 ? value_t(-v) : v;
}

inline value_t larger(value_t a, value_t b) {
#pragma HLS INLINE
    return a > b ? a : b;
}

inline value_t smaller(value_t a, value_t b) {
#pragma HLS INLINE
    return a < b ? a : b;
}

/// floor(log2 v) for v > 0.
inline int top_bit(std::int64_t v) {
#pragma HLS INLINE
#ifdef ECORL_NATIVE
    return 63 - __builtin_clzll(static_cast<unsigned long long>(v));
#else
    int bit = 0;
TOP_BIT:
    for (int i = 0; i < 63; ++i) {
#pragma HLS UNROLL
        if ((v >> i) != 0) bit = i;
    }
    return bit;
#endif
}

/// Left shift that brings v > 0 into [2^30, 2^31).
inline int room_of(value_t v) {
#pragma HLS INLINE
    return 30 - top_bit(static_cast<std::int64_t>(v));
}

inline scale_t normalised(std::int64_t v, int e) {
#pragma HLS INLINE
    if (v <= 0) return {0, 0};
    const int up = top_bit(v) - 30;
    const std::int64_t m = up >= 0 ? v >> up : v << -up;
    return {static_cast<std::int32_t>(m), e + up};
}

inline scale_t times(scale_t a, scale_t b) {
#pragma HLS INLINE
    if (a.m == 0 || b.m == 0) return {0, 0};
    const std::int64_t m = (static_cast<std::int64_t>(a.m) * b.m) >> 30;
    const int over = m >> 31 ? 1 : 0;
    return {static_cast<std::int32_t>(m >> over), a.e + b.e + 30 + over};
}

inline scale_t plus(scale_t a, scale_t b) {
#pragma HLS INLINE
    if (a.m == 0) return b;
    if (b.m == 0) return a;
    const int e = a.e > b.e ? a.e : b.e;
    const int da = e - a.e < 63 ? e - a.e : 63;
    const int db = e - b.e < 63 ? e - b.e : 63;
    return normalised(
        (static_cast<std::int64_t>(a.m) >> da) + (static_cast<std::int64_t>(b.m) >> db), e);
}

/// floor(sqrt(v)), bit by bit; used at compile time for the seeds.
constexpr std::int64_t integer_root(std::int64_t v) {
    std::int64_t root = 0;
    for (std::int64_t bit = std::int64_t{1} << 24; bit > 0; bit >>= 1) {
        if ((root + bit) * (root + bit) <= v) root += bit;
    }
    return root;
}

struct root_seeds {
    std::int32_t value[48];
};

constexpr root_seeds make_root_seeds() {
    root_seeds seeds = {};
    for (int i = 16; i < 64; ++i) {
        seeds.value[i - 16] =
            static_cast<std::int32_t>(integer_root((std::int64_t{1} << 37) / (2 * i + 1)));
    }
    return seeds;
}

static constexpr root_seeds ROOT_SEEDS = make_root_seeds();

/// 1 / sqrt(s) for s > 0: a seed of six bits, then three steps of Newton.
inline scale_t inverse_root(scale_t s) {
#pragma HLS INLINE
    const bool odd = (s.e & 1) != 0;
    const std::int64_t m =
        odd ? static_cast<std::int64_t>(s.m) << 1 : static_cast<std::int64_t>(s.m);
    const int e = odd ? s.e - 1 : s.e;
    std::int64_t y = static_cast<std::int64_t>(ROOT_SEEDS.value[(m >> 26) - 16]) << 15;
    for (int i = 0; i < 3; ++i) {
#pragma HLS UNROLL
        const std::int64_t y2 = (y * y) >> 32;
        const std::int64_t ty = ((m >> 1) * y2) >> 31;
        y = (y * ((std::int64_t{3} << 28) - ty)) >> 29;
    }
    return normalised(y, -46 - e / 2);
}

/// A shift by a number of bits that is fixed for a row, ready to be applied to many values.
struct shifter {
    std::int32_t limit;  ///< largest magnitude before a left shift
    std::int32_t half;
    std::int32_t right;
    std::int32_t left;
    std::int32_t keep;  ///< all ones, or 0 when everything is shifted out
};

/// To the right with rounding for s >= 0, to the left with clipping to 2^bits otherwise. Beyond
/// MOST_LEFT every value but 0 is clipped, to 0.
inline shifter make_shifter(int s, int bits) {
#pragma HLS INLINE
    const std::int32_t all = static_cast<std::int32_t>((std::int64_t{1} << bits) - 1);
    if (s > 30) return {INT32_MAX, 0, 0, 0, 0};
    if (s >= 0)
        return {INT32_MAX, static_cast<std::int32_t>((std::int64_t{1} << s) >> 1), s, 0, -1};
    if (s < -MOST_LEFT) return {0, 0, 0, 0, -1};
    return {all >> -s, 0, 0, -s, -1};
}

/// Rounding right shift by d in 0..31; 0 for d = 31.
inline value_t rounded_right(value_t t, int d) {
#pragma HLS INLINE
    if (d > 30) return 0;
    return value_t(t + value_t(static_cast<std::int32_t>((std::int64_t{1} << d) >> 1))) >> d;
}

/// log2(l) for l > 0, 20 fraction bits: each squaring gives one bit.
inline std::int64_t log2_of(std::int64_t l) {
#pragma HLS INLINE
    const int k = top_bit(l);
    std::int64_t m = k >= 30 ? l >> (k - 30) : l << (30 - k);
    std::int64_t bits = 0;
    for (int i = 0; i < LOGPROB_BITS; ++i) {
#pragma HLS UNROLL
        m = (m * m) >> 30;
        const int over = m >> 31 ? 1 : 0;
        m >>= over;
        bits = bits << 1 | over;
    }
    return (static_cast<std::int64_t>(k) << LOGPROB_BITS) + bits;
}

}  // namespace ecorl
