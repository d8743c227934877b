// The arithmetic of one lane, as NUMERICS.md defines it. P says what a lane is: `exact` in kernels,
// a register of sixteen on the host (ecorl_lanes.hpp). P::value is the lane.
#pragma once

#include "ecorl_lanes.hpp"
#include "ecorl_rows.hpp"

namespace ecorl {

// ---- shifts and clips -----------------------------------------------------------------------

/// Clip and shift by the same number of bits; `changed` is not 0 where a value was clipped.
template <class P>
ECORL_LANE typename P::value shifted(typename P::value v, const shifter& by,
                                     typename P::value& changed) {
#pragma HLS INLINE
    using V = typename P::value;
    const V low = P::larger(P::smaller(v, P::all(by.limit)), P::all(-by.limit));
    changed = V(changed | V(low ^ v));
    const V moved = P::right(V(low + by.half), P::all(by.right));
    return V(P::left(moved, P::all(by.left)) & by.keep);
}

/// Into +-(2^bits - 1); `changed` is not 0 where a value was clipped.
template <class P>
ECORL_LANE typename P::value clipped(typename P::value v, int bits, typename P::value& changed) {
#pragma HLS INLINE
    using V = typename P::value;
    const std::int32_t most = static_cast<std::int32_t>((std::int64_t{1} << bits) - 1);
    const V low = P::larger(P::smaller(v, P::all(most)), P::all(-most));
    changed = V(changed | V(low ^ v));
    return low;
}

// ---- functions ------------------------------------------------------------------------------

/// One step of a Horner scheme with 15 fraction bits; X are the bits of x with its sign.
template <class P, int X>
ECORL_LANE typename P::value horner(typename P::value y, typename P::value x,
                                    std::int32_t coefficient) {
#pragma HLS INLINE
    using V = typename P::value;
    return V(V(P::template product<17, X>(y, x) >> EXP_BITS) + coefficient);
}

/// EXP: 2^15 * 2^(-f / 2^16) for f in 0..65535.
template <class P>
ECORL_LANE typename P::value exp2_minus(typename P::value f) {
#pragma HLS INLINE
    const typename P::value g = f >> 1;
    typename P::value y = P::all(224);
    y = horner<P, 16>(y, g, -1744);
    y = horner<P, 16>(y, g, 7846);
    y = horner<P, 16>(y, g, -22708);
    return horner<P, 16>(y, g, 32768);
}

/// RECIP: 2^15 / (1 + e / 2^15) for e in 0..32768.
template <class P>
ECORL_LANE typename P::value one_over_one_plus(typename P::value e) {
#pragma HLS INLINE
    typename P::value y = P::all(-3528);
    y = horner<P, 17>(y, e, 13959);
    y = horner<P, 17>(y, e, -25486);
    y = horner<P, 17>(y, e, 31329);
    y = horner<P, 17>(y, e, -32655);
    return horner<P, 17>(y, e, 32766);
}

// ---- between products and values ------------------------------------------------------------

/// A sum of products as a value of its segment: high(acc << input_shift, mantissa) >> down.
template <class P>
ECORL_LANE typename P::value dequantised(typename P::value acc, typename P::value mantissa,
                                         typename P::value down, int input_shift) {
#pragma HLS INLINE
    return P::right(P::high(P::left(acc, P::all(input_shift)), mantissa), down);
}

/// A value of a segment in fixed point.
template <class P>
ECORL_LANE typename P::value absolute(typename P::value v, const fixed_t& fixed,
                                      typename P::value& changed) {
#pragma HLS INLINE
    return shifted<P>(P::high(v, P::all(fixed.mantissa)), fixed.by, changed);
}

/// The upper 16 bits of a value whose row's peak fills 31.
template <class P>
ECORL_LANE typename P::value upper_16(typename P::value v, int room) {
#pragma HLS INLINE
    using V = typename P::value;
    return V(P::left(v, P::all(room)) >> 16);
}

/// A value as a code, within +-127.
template <class P>
ECORL_LANE typename P::value coded(typename P::value v, const quantiser_t& by) {
#pragma HLS INLINE
    using V = typename P::value;
    const V scaled = P::template product<16, 17>(upper_16<P>(v, by.room), P::all(by.factor));
    return V(V(scaled + (1 << 22)) >> 23);
}

// ---- the operations of a decoder ------------------------------------------------------------

/// The 16-bit square of a value whose row's peak fills 31 bits.
template <class P>
ECORL_LANE typename P::value norm_square(typename P::value full) {
#pragma HLS INLINE
    using V = typename P::value;
    const V top = V(V(V(full >> 15) + 1) >> 1);
    return P::template product<17, 17>(top, top);
}

/// A value times its norm's weight.
template <class P>
ECORL_LANE typename P::value normed(typename P::value full, typename P::value weight) {
#pragma HLS INLINE
    return P::high(full, weight);
}

/// A pair of values that RoPE rotates.
template <class P>
struct rotated_t {
    typename P::value low, high;
};

/// RoPE of the 16-bit values a of the lower half and b of the upper.
template <class P>
ECORL_LANE rotated_t<P> rotated(typename P::value a, typename P::value b, typename P::value cosine,
                                typename P::value sine) {
#pragma HLS INLINE
    using V = typename P::value;
    const V x = V(P::template product<16, 16>(a, cosine) - P::template product<16, 16>(b, sine));
    const V y = V(P::template product<16, 16>(b, cosine) + P::template product<16, 16>(a, sine));
    return {x, y};
}

/// One value of a pair that RoPE rotates, beside its partner; the lower half's sine is negative.
template <class P>
ECORL_LANE typename P::value rotated_one(typename P::value own, typename P::value partner,
                                         typename P::value cosine, typename P::value sine) {
#pragma HLS INLINE
    using V = typename P::value;
    return V(P::template product<16, 16>(own, cosine) + P::template product<16, 16>(partner, sine));
}

/// silu(gate) * up. A gate that is clipped is so large that silu is 0 or the gate itself, unless it
/// is lost altogether (gate_t).
template <class P>
ECORL_LANE typename P::value gated(typename P::value gate, typename P::value up, const gate_t& by,
                                   typename P::value& changed) {
#pragma HLS INLINE
    using V = typename P::value;
    const V z = absolute<P>(gate, by.fixed, changed);
    const V u = P::magnitude(z);
    const V y = exp2_minus<P>(V(u & 65535));
    const V whole = P::smaller(V(u >> SCORE_BITS), P::all(31));
    const V r = one_over_one_plus<P>(P::right(y, whole));
    const V small = V(P::template product<17, 17>(y, r) >> EXP_BITS);
    const V factor = P::select(z < 0, small, r);
    const V down = P::select(z < 0, whole, P::all(0));
    const V both = P::high(P::left(gate, P::all(by.room_gate)), P::left(up, P::all(by.room_up)));
    return P::right(P::high_of_17(both, factor), down);
}

/// 2^15 * 2^(z - ceiling) for a z of SCORE_BITS below a whole ceiling: EXP of the fraction, shifted
/// by the rest. `finer` more bits are kept.
template <class P>
ECORL_LANE typename P::value power_below(typename P::value ceiling, typename P::value z,
                                         int finer) {
#pragma HLS INLINE
    using V = typename P::value;
    const V d = V(ceiling - z);
    const V whole = P::smaller(V(d >> SCORE_BITS), P::all(31));
    return P::right(V(exp2_minus<P>(V(d & 65535)) << finer), whole);
}

/// The term of a log-sum-exp of a logit below its block's ceiling, EXP_SUM_BITS fraction bits.
template <class P>
ECORL_LANE typename P::value log_sum_term(typename P::value ceiling, typename P::value logit) {
#pragma HLS INLINE
    return power_below<P>(ceiling, logit, EXP_SUM_BITS - EXP_BITS);
}

/// The weight of an objective by its gate.
template <class P>
ECORL_LANE typename P::value gate_weight(typename P::value ceiling, typename P::value gate) {
#pragma HLS INLINE
    return power_below<P>(ceiling, gate, 0);
}

}  // namespace ecorl
