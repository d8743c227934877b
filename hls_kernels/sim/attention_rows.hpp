// Attention of one query row in the host's memory, as templates over the row policy
// (row_lanes.hpp). NUMERICS.md defines it; the kernels never see this file.
#pragma once

#include "../include/attention_lanes.hpp"
#include "row_functions.hpp"

namespace ecorl {

template <class R>
struct attention_rows {
    using V = typename R::value;
    static constexpr dim_t STEP = R::STEP;

    ECORL_LANE key_scales_t<R> scales_at(const page_scales_t& by, dim_t j) {
        return {R::load(by.key_m + j, STEP), R::load(by.key_e + j, STEP),
                R::load(by.value_m + j, STEP), R::load(by.value_e + j, STEP)};
    }

    /// A row's weights for one page, times their values' scales, as two codes each. acc[PAGE]
    /// becomes the scores. Returns how far the row's former context moves to the right.
    static int softmax(value_t* acc, const page_scales_t& by, scale_t query, dim_t live,
                       softmax_t& state, code_t* high_codes, code_t* low_codes, value_t& mark) {
        V top = R::all(NO_SCORE);
        V weighted = R::all(NO_WEIGHT);
        V changed = R::all(0);
        for (dim_t j = 0; j < PAGE; j += STEP) {
            const V number = V(R::numbers() + j);
            const scored_t<R> key =
                scored<R>(R::load(acc + j, STEP), scales_at(by, j), query, number, live, changed);
            top = R::larger(top, key.score);
            weighted = R::larger(weighted, key.weighted);
            R::store(acc + j, key.score, STEP);
        }
        mark |= R::any_bit(changed);
        const raised_t up = raised(state.top, state.weighted, exponent_of_score(R::largest(top)),
                                   exponent_of_score(R::largest(weighted)));
        state = {state.sum >> up.sum_right, up.top, up.weighted};
        const std::int32_t ceiling = state.top * (1 << ATTENTION_BITS);
        const std::int32_t offset = 16 + state.weighted - state.top;
        V sum = R::all(0);
        for (dim_t j = 0; j < PAGE; j += STEP) {
            const V number = V(R::numbers() + j);
            const weighed_t<R> key =
                weighed<R>(R::load(acc + j, STEP), scales_at(by, j), ceiling, offset, number, live);
            sum = V(sum + key.part);
            R::store(high_codes + j, key.high, STEP);
            R::store(low_codes + j, key.low, STEP);
        }
        state.sum += static_cast<std::int64_t>(R::total(sum));
        return up.context_right;
    }

    /// context[d] = context >> down + (128 * upper + lower) / 64.
    static void accumulate(value_t* context, const value_t* upper, const value_t* lower, int down,
                           dim_t d) {
        for (dim_t j = 0; j < d; j += STEP) {
            const V sum = V(V(R::load(upper + j, d - j) << 7) + R::load(lower + j, d - j));
            R::store(context + j, accumulated<R>(R::load(context + j, d - j), sum, down), d - j);
        }
    }

    /// The head's context in place, and its exponent; false for a head of zeros.
    static bool finish(value_t* context, const softmax_t& state, std::int32_t& exponent, dim_t d) {
        const finisher_t by = make_finisher(row_functions<R>::peak_of(context, d),
                                            sint<40>(state.sum), state.weighted - state.top);
        exponent = by.exponent;
        if (by.exponent == NO_EXPONENT) return false;
        for (dim_t j = 0; j < d; j += STEP) {
            const V full = R::left(R::load(context + j, d - j), R::all(by.room));
            R::store(context + j, R::high(full, R::all(by.inverse)), d - j);
        }
        return true;
    }
};

}  // namespace ecorl
