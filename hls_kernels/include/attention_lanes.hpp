// Attention of one query row over one page of keys: the arithmetic of a lane, and what a row keeps
// between pages. NUMERICS.md defines it.
#pragma once

#include "lane_functions.hpp"

namespace ecorl {

/// The scales of a key and its value.
template <class P>
struct key_scales_t {
    typename P::value key_m, key_e;
    typename P::value value_m;  ///< upper 16 bits of the mantissa
    typename P::value value_e;
};

/// A key's score in units of log2, and the same with its value's scale.
template <class P>
struct scored_t {
    typename P::value score, weighted;
};

/// A weight as two codes, and its part of the sum of all.
template <class P>
struct weighed_t {
    typename P::value high, low, part;
};

constexpr std::int32_t NO_SCORE = -(1 << SCORE_LIMIT);         ///< of a key beyond the query
constexpr std::int32_t NO_WEIGHT = -(1 << (SCORE_LIMIT + 1));  ///< of a key whose value is 0

/// The score of key `number` of a page, of which the query sees the first `live`; `changed` is not
/// 0 where it was clipped.
template <class P>
ECORL_LANE scored_t<P> scored(typename P::value acc, const key_scales_t<P>& by, scale_t query,
                              typename P::value number, dim_t live, typename P::value& changed) {
#pragma HLS INLINE
    using V = typename P::value;
    const V m = P::high(by.key_m, P::all(query.m));
    const V t = P::high(V(acc << 9), m);
    const V right = V(P::all(-(query.e + 55 + ATTENTION_BITS)) - by.key_e);
    const V left = P::larger(P::smaller(V(-right), P::all(MOST_LEFT)), P::all(0));
    const V most = P::right(P::all((1 << SCORE_LIMIT) - 1), left);
    const V limit = P::select(right < -MOST_LEFT, P::all(0), most);
    const V low = P::larger(P::smaller(t, limit), V(-limit));
    const V down = P::larger(P::smaller(right, P::all(31)), P::all(0));
    const V s = P::right(P::left(low, left), down);
    changed = V(changed | P::select(number < live, V(low ^ t), P::all(0)));
    const V score = P::select(number < live, s, P::all(NO_SCORE));
    const V with = V(score + V(by.value_e << ATTENTION_BITS));
    const V used = P::select(number < live, by.value_m, P::all(0));
    return {score, P::select(used == 0, P::all(NO_WEIGHT), with)};
}

/// The exponent of a largest score: rounded up to a whole power of 2.
static inline std::int32_t exponent_of_score(value_t largest) {
#pragma HLS INLINE
    const value_t above = largest + value_t((1 << ATTENTION_BITS) - 1);
    return static_cast<std::int32_t>(above >> ATTENTION_BITS);
}

/// A row's exponents after one more page, and how far its former sums move to the right.
struct raised_t {
    std::int32_t top, weighted;
    std::int32_t sum_right;      ///< of the weights, 0..63
    std::int32_t context_right;  ///< of the values under the weights, 0..31
};

/// Take the exponents of a page's largest weight, alone and with its value's scale, into those of a
/// row.
static inline raised_t raised(std::int32_t top, std::int32_t weighted, std::int32_t page_top,
                              std::int32_t page_weighted) {
#pragma HLS INLINE
    const std::int32_t up = page_top > top ? page_top - top : 0;
    const std::int32_t more = page_weighted > weighted ? page_weighted - weighted : 0;
    return {top + up, weighted + more, up < 63 ? up : 63, more < 31 ? more : 31};
}

/// The weight of key `number`, times its value's scale. `ceiling` is the row's top with
/// ATTENTION_BITS, `offset` is 16 + weighted - top.
template <class P>
ECORL_LANE weighed_t<P> weighed(typename P::value score, const key_scales_t<P>& by,
                                std::int32_t ceiling, std::int32_t offset, typename P::value number,
                                dim_t live) {
#pragma HLS INLINE
    using V = typename P::value;
    constexpr int FINER = SCORE_BITS - ATTENTION_BITS;
    constexpr int PART = (1 << ATTENTION_BITS) - 1;
    const V z = V(P::all(ceiling) - score);
    const V whole = V(z >> ATTENTION_BITS);
    const V y = P::smaller(exp2_minus<P>(V(V(z & PART) << FINER)), P::all(32767));
    const V p = P::right(V(y << 8), P::smaller(whole, P::all(31)));
    const V far = V(V(P::all(offset) + whole) - by.value_e);
    const V down = P::larger(P::smaller(far, P::all(30)), P::all(0));
    const V half = V(P::left(P::all(1), down) >> 1);
    const V scaled = P::template product<16, 17>(y, by.value_m);
    const V rounded = P::right(V(scaled + half), down);
    const V near = P::select(far > 30, P::all(0), rounded);
    const V w = P::select(number < live, near, P::all(0));
    return {V(w >> 7), V(w & 127), P::select(number < live, p, P::all(0))};
}

/// context >> down + sum / 64, both rounded; `sum` is 128 times that under the weights' high codes
/// and that under their low codes.
template <class P>
ECORL_LANE typename P::value accumulated(typename P::value context, typename P::value sum,
                                         std::int32_t down) {
#pragma HLS INLINE
    using V = typename P::value;
    const std::int32_t half = static_cast<std::int32_t>((std::int64_t{1} << down) >> 1);
    const std::int32_t keep = down > 30 ? 0 : -1;
    const V moved = V(P::right(V(context + half), P::all(down)) & keep);
    return V(moved + V(V(sum + 32) >> 6));
}

/// How the sums of a row become its head's context: high(c << room, inverse).
struct finisher_t {
    std::int32_t room;
    std::int32_t inverse;
    std::int32_t exponent;  ///< NO_EXPONENT for a head of zeros
};

/// `peak` is the largest magnitude of a row's sums, `weights` the sum of its weights: at most
/// 65,536 of 23 bits. `lead` is weighted - top.
static inline finisher_t make_finisher(value_t peak, sint<40> weights, std::int32_t lead) {
#pragma HLS INLINE
    if (peak == 0) return {0, 0, NO_EXPONENT};
    const int room = room_of(peak);
    const scale_t sum = normalised<40>(weights, 0);
    const sint<62> inverse =
        quotient<61, 31>(sint<62>((std::int64_t{1} << 61) - 1), sint<32>(sum.m));
    return {room, static_cast<std::int32_t>(inverse), 17 + lead - room - sum.e};
}

}  // namespace ecorl
