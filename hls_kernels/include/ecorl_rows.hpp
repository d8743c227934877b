// What the row functions of the kernels take and give; the arithmetic of a lane is in
// lane_functions.hpp.
#pragma once

#include "ecorl_fixed.hpp"

namespace ecorl {

constexpr int PAGE = 64;  ///< keys of one page of the cache, and of one softmax step
constexpr std::int32_t NO_EXPONENT = -(1 << 20);  ///< of a head of zeros
constexpr int HEAD_BLOCK = 2048;                  ///< outputs of the vocabulary summed together
constexpr int MAX_OBJECTIVES = 64;                ///< of a gated reward
constexpr int BEAT = 64;                          ///< bytes of a 512-bit word of memory

/// Beats of the codes of a token's query, key or value: one for every 64 channels of the head,
/// filled up with zeros. vector_ops writes them, kv_cache_router and mha_int8 read them.
constexpr dim_t token_beats(dim_t d) {
    return d > BEAT ? 2 : 1;
}

/// What stands beside these codes. 128 bits.
struct head_row_t {
    std::int32_t m, e;      ///< scale
    std::int32_t position;  ///< of the token in its sequence
    std::int32_t spare;
};

/// How a row is brought to codes.
struct quantiser_t {
    std::int32_t room;    ///< left shift that fills 31 bits
    std::int32_t factor;  ///< 127 * 2^23 / the largest 16-bit magnitude; 0 for a row of zeros
    scale_t scale;
};

/// How dequantised values with exponent x, times a row's scale, become fixed point.
struct fixed_t {
    value_t mantissa;
    shifter by;
};

/// What all gates of a row share.
struct gate_t {
    std::int32_t room_gate, room_up;
    fixed_t fixed;  ///< the gate in units of log2
    bool lost;      ///< whether the gate is too large for these units
};

/// The running state of a query row. Exponents are of base 2.
struct softmax_t {
    std::int64_t sum;       ///< of the weights, 23 fraction bits below `top`
    std::int32_t top;       ///< exponent of the largest weight
    std::int32_t weighted;  ///< of the largest weight times its value's scale
};

/// Before the first page.
constexpr softmax_t NOTHING_SEEN = {0, -(1 << 18), -(1 << 18)};

/// A block's part of a log-sum-exp: 2^top * sum / 2^29.
struct partial_t {
    std::int64_t sum;
    std::int32_t top;
    std::int32_t used;
};

/// floor(128 x / 127) for 0 <= x < 2^31.
static inline sint<33> over_127(value_t x) {
#pragma HLS INLINE
    return sint<33>(x) + sint<33>(quotient<31, 7>(x, sint<8>(127)));
}

static inline quantiser_t make_quantiser(value_t peak, int exponent) {
#pragma HLS INLINE
    if (peak == 0) return {0, 0, {0, 0}};
    const int room = room_of(peak);
    const value_t full = peak << room;
    const sint<33> m = over_127(full);
    const int over = (m >> 31) != 0 ? 1 : 0;
    const sint<31> factor = quotient<30, 15>(sint<31>(127 << 23), sint<16>(full >> 16));
    return {room,
            static_cast<std::int32_t>(factor),
            {static_cast<std::int32_t>(m >> over), exponent - room - 7 + over}};
}

/// The mean of n squares of a row, `squares` their sum, with 16 more fraction bits.
static inline scale_t mean_of(sint<46> squares, dim_t n, int exponent) {
#pragma HLS INLINE
    const sint<63> sum = sint<63>(squares) << 16;
    return normalised<63>(quotient<62, 20>(sum, sint<21>(n)), exponent - 16);
}

static inline fixed_t make_fixed(int exponent, scale_t s, int fraction_bits, int limit) {
#pragma HLS INLINE
    return {s.m, make_shifter(-(exponent + s.e + 32 + fraction_bits), limit)};
}

static inline gate_t make_gate(value_t peak_gate, value_t peak_up, int exponent_gate, scale_t s) {
#pragma HLS INLINE
    const fixed_t fixed = make_fixed(exponent_gate, times(s, LOG2_E), SCORE_BITS, VALUE_LIMIT);
    return {room_of(peak_gate), room_of(peak_up), fixed, fixed.by.limit == 0};
}

static inline int gated_exponent(const gate_t& by, int exponent_gate, int exponent_up) {
#pragma HLS INLINE
    return 33 + exponent_gate - by.room_gate + exponent_up - by.room_up;
}

/// The part of a block whose largest logit is `top`, before its sum.
static inline partial_t begin_partial(value_t top) {
#pragma HLS INLINE
    const value_t above = top + 65535;
    return {0, static_cast<std::int32_t>(above >> SCORE_BITS), 1};
}

/// Sums of a mean by weights of at most 2^15.
struct weighted_mean_t {
    sint<24> weights;
    sint<56> rewarded;
};

static inline void add(weighted_mean_t& mean, value_t weight, value_t reward) {
#pragma HLS INLINE
    mean.weights = mean.weights + sint<24>(weight);
    mean.rewarded = mean.rewarded + sint<56>(product<17, 32>(sint<17>(weight), reward));
}

/// The mean, truncated towards zero; the largest gate has a weight of 2^14 or more.
static inline value_t mean_of(const weighted_mean_t& mean) {
#pragma HLS INLINE
    const bool is_below = mean.rewarded < 0;
    const sint<56> size = is_below ? sint<56>(-mean.rewarded) : mean.rewarded;
    const sint<56> whole = quotient<55, 23>(size, mean.weights);
    return value_t(is_below ? sint<56>(-whole) : whole);
}

/// A part as a term of a sum whose exponent is `top`.
static inline sint<64> merged_part(const partial_t& part, std::int32_t top) {
#pragma HLS INLINE
    const std::int32_t down = top - part.top;
    return sint<64>(part.sum) >> (down < 63 ? down : 63);
}

/// log2 of 2^top * sum / 2^29, LOGPROB_BITS fraction bits.
static inline std::int64_t log_of_sum(sint<64> sum, std::int32_t top) {
#pragma HLS INLINE
    return (static_cast<std::int64_t>(top - EXP_SUM_BITS) << LOGPROB_BITS) +
           static_cast<std::int64_t>(log2_of(sum));
}

/// The log-prob in nats, LOGPROB_BITS fraction bits, at most 0.
static inline std::int32_t log_prob(value_t target, std::int64_t log_sum, value_t& mark) {
    const std::int64_t z = static_cast<std::int64_t>(target) << (LOGPROB_BITS - SCORE_BITS);
    const std::int64_t below = z - log_sum;
    if (below < LEAST_LOGPROB) {
        mark |= 1;
        return INT32_MIN;
    }
    const std::int64_t nats = (below * LN2_31) >> 31;
    return nats < 0 ? static_cast<std::int32_t>(nats) : 0;
}

}  // namespace ecorl
