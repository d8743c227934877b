// Two INT8 products in one DSP48E2, and a cascade of several.
//
// The multiplier takes (high << 18) + low times one weight, the cascade adds a few such products.
// The sum holds both results: bits 0..17 the low one, the bits above the high one, less 1 wherever
// the low one is negative (its borrow). The low sum must stay within 18 bits: with the full range
// -128..127 one product is at most 2^14, so 7 products fit (7 * 2^14 < 2^17) and 8 do not; within
// +-127 it would be 8. No more than 7 are ever summed.
#pragma once

#include "ecorl_types.hpp"

namespace ecorl {

constexpr int LOW_BITS = 18;
constexpr int MAX_CASCADE = 7;

constexpr int PACKED_BITS = 27;  ///< the wide input of a DSP48E2
using packed_act_t = sint<PACKED_BITS>;
using packed_sum_t = sint<48>;  ///< P output

/// Results of the two halves.
struct pair_t {
    sint<32> low;
    sint<32> high;
};

/// (high << 18) + low, exact in 27 bits. One row pair shares it over all columns.
inline packed_act_t pack_pair(sint<8> low, sint<8> high) {
#pragma HLS INLINE
    return packed_act_t(high) * (1 << LOW_BITS) + low;
}

/// TK packed products, summed and taken apart.
template <int TK>
pair_t dsp_cascade(const packed_act_t act[TK], const sint<8> weight[TK]) {
#pragma HLS INLINE
    static_assert(TK <= MAX_CASCADE, "the low half of a DSP overflows beyond 7 products");
    packed_sum_t sum = 0;
CASCADE:
    for (int t = 0; t < TK; ++t) {
#pragma HLS UNROLL
        sum += product<PACKED_BITS, 8>(act[t], weight[t]);
    }
    const sint<32> low = sint<32>(low_bits<LOW_BITS>(sum));
    const sint<32> high = sint<32>(sum >> LOW_BITS) + sint<32>(low < 0 ? 1 : 0);
    return {low, high};
}

}  // namespace ecorl
