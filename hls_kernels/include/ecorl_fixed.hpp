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

static inline value_t high(value_t a, value_t b) {
#pragma HLS INLINE
    return value_t(product<32, 32>(a, b) >> 32);
}

static inline value_t magnitude(value_t v) {
#pragma HLS INLINE
    return v < 0 ? value_t(-v) : v;
}

static inline value_t larger(value_t a, value_t b) {
#pragma HLS INLINE
    return a > b ? a : b;
}

static inline value_t smaller(value_t a, value_t b) {
#pragma HLS INLINE
    return a < b ? a : b;
}

/// floor(log2 v) for v > 0 of less than W bits: halvings, so that six comparisons find one of 63.
template <int W>
static inline int top_bit(sint<W> v) {
#pragma HLS INLINE
#ifdef ECORL_NATIVE
    return 63 - __builtin_clzll(static_cast<unsigned long long>(v));
#else
    int bit = 0;
HALVE:
    for (int half = 32; half > 0; half >>= 1) {
#pragma HLS UNROLL
        if (half < W && (v >> half) != 0) {
            v = v >> half;
            bit += half;
        }
    }
    return bit;
#endif
}

/// floor(n / d) for 0 <= n < 2^N and 0 < d < 2^D: the kernels' only division.
template <int N, int D>
static inline sint<N + 1> quotient(sint<N + 1> n, sint<D + 1> d) {
#pragma HLS INLINE
    return sint<N + 1>(n / d);
}

/// Left shift that brings v > 0 into [2^30, 2^31).
static inline int room_of(value_t v) {
#pragma HLS INLINE
    return 30 - top_bit<32>(v);
}

/// v * 2^e as a scale, for v of less than W bits; zero for v <= 0.
template <int W>
static inline scale_t normalised(sint<W> v, int e) {
#pragma HLS INLINE
    if (v <= 0) return {0, 0};
    const int up = top_bit<W>(v) - 30;
    const sint<(W > 32 ? W : 32)> wide = v;
    const sint<32> m = up >= 0 ? sint<32>(wide >> up) : sint<32>(sint<32>(wide) << -up);
    return {static_cast<std::int32_t>(m), e + up};
}

static inline scale_t times(scale_t a, scale_t b) {
#pragma HLS INLINE
    if (a.m == 0 || b.m == 0) return {0, 0};
    const sint<33> m = sint<33>(product<32, 32>(value_t(a.m), value_t(b.m)) >> 30);
    const int over = (m >> 31) != 0 ? 1 : 0;
    return {static_cast<std::int32_t>(m >> over), a.e + b.e + 30 + over};
}

static inline scale_t plus(scale_t a, scale_t b) {
#pragma HLS INLINE
    if (a.m == 0) return b;
    if (b.m == 0) return a;
    const int e = a.e > b.e ? a.e : b.e;
    const int da = e - a.e < 31 ? e - a.e : 31;  // a mantissa has 31 bits
    const int db = e - b.e < 31 ? e - b.e : 31;
    const sint<33> sum = sint<33>(a.m >> da) + sint<33>(b.m >> db);
    return normalised<33>(sum, e);
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

/// 1 / sqrt(s) for s > 0: a seed of six bits, then three steps of Newton. With m = s / 2^32 in
/// [1/4, 1), y stays within 2^31, its square over 2^32 within 2^30 and m y^2 within 2^29.
static inline scale_t inverse_root(scale_t s) {
#pragma HLS INLINE
    const bool odd = (s.e & 1) != 0;
    const sint<33> m = odd ? sint<33>(sint<33>(s.m) << 1) : sint<33>(s.m);
    const sint<32> half = sint<32>(m >> 1);
    const int e = odd ? s.e - 1 : s.e;
    const int seed = static_cast<int>(m >> 26) - 16;
    sint<33> y = sint<33>(ROOT_SEEDS.value[seed]) << 15;
NEWTON:
    for (int i = 0; i < 3; ++i) {
#pragma HLS UNROLL
        const sint<32> y2 = sint<32>(sint<64>(y * y) >> 32);
        const sint<32> ty = sint<32>(product<32, 32>(half, y2) >> 31);
        const sint<31> correction = sint<31>((3 << 28) - ty);
        y = sint<33>(product<33, 31>(y, correction) >> 29);
    }
    return normalised<33>(y, -46 - e / 2);
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
static inline shifter make_shifter(int s, int bits) {
#pragma HLS INLINE
    const std::int32_t all = static_cast<std::int32_t>((std::int64_t{1} << bits) - 1);
    if (s > 30) return {INT32_MAX, 0, 0, 0, 0};
    if (s >= 0)
        return {INT32_MAX, static_cast<std::int32_t>((std::int64_t{1} << s) >> 1), s, 0, -1};
    if (s < -MOST_LEFT) return {0, 0, 0, 0, -1};
    return {all >> -s, 0, 0, -s, -1};
}

/// Rounding right shift by d in 0..31; 0 for d = 31.
static inline value_t rounded_right(value_t t, int d) {
#pragma HLS INLINE
    if (d > 30) return 0;
    return value_t(t + value_t(static_cast<std::int32_t>((std::int64_t{1} << d) >> 1))) >> d;
}

/// log2(l) for l > 0, 20 fraction bits: each squaring gives one bit.
static inline sint<32> log2_of(sint<64> l) {
#pragma HLS INLINE
    const int k = top_bit<64>(l);
    sint<33> m = normalised<64>(l, 0).m;
    sint<LOGPROB_BITS + 1> bits = 0;
SQUARE:
    for (int i = 0; i < LOGPROB_BITS; ++i) {
#pragma HLS UNROLL
        m = sint<33>(product<32, 32>(sint<32>(m), sint<32>(m)) >> 30);
        const int over = (m >> 31) != 0 ? 1 : 0;
        m = m >> over;
        bits = sint<LOGPROB_BITS + 1>(bits << 1) | sint<LOGPROB_BITS + 1>(over);
    }
    return (sint<32>(k) << LOGPROB_BITS) + sint<32>(bits);
}

}  // namespace ecorl
