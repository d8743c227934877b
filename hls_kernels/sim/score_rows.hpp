// Log-sum-exp over blocks of the vocabulary, and gated rewards, of rows in the host's memory, as
// templates over the row policy (row_lanes.hpp). NUMERICS.md defines them; the kernels never see
// this file.
#pragma once

#include "row_functions.hpp"

namespace ecorl {

template <class R>
struct score_rows {
    using V = typename R::value;
    static constexpr dim_t STEP = R::STEP;

    /// One block of logits in place, acc[n] in units of log2 over the temperature, and its part.
    static partial_t logits(value_t* acc, const channels_t& by, int exponent, scale_t s, dim_t n,
                            value_t& mark) {
        const fixed_t fixed = make_fixed(exponent, s, SCORE_BITS, SCORE_LIMIT);
        const V outside = R::all(-(1 << SCORE_LIMIT));
        V top = outside;
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            const V logit = absolute<R>(dequantised_at<R>(acc, by, j, n), fixed, changed);
            top = R::larger(top, R::select(V(R::numbers() + j) < n, logit, outside));
            R::store(acc + j, logit, n - j);
        }
        mark |= R::any_bit(changed);
        partial_t part = begin_partial(R::largest(top));
        const V ceiling = R::all(part.top * (1 << SCORE_BITS));
        for (dim_t j = 0; j < n; j += STEP) {
            const V term = log_sum_term<R>(ceiling, R::load(acc + j, n - j));
            part.sum += R::wide_total(R::select(V(R::numbers() + j) < n, term, R::all(0)));
        }
        return part;
    }

    /// Gates z[n] of several objectives in units of log2, with their bias of SCORE_BITS or null.
    static void gates(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                      const value_t* bias, value_t* z, dim_t n, value_t& mark) {
        const fixed_t fixed = make_fixed(exponent, s, SCORE_BITS, VALUE_LIMIT);
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            V y = absolute<R>(dequantised_at<R>(acc, by, j, n), fixed, changed);
            if (bias != nullptr) y = V(y + R::load(bias + j, n - j));
            // The sum is clipped once: within SCORE_LIMIT it is within VALUE_LIMIT too.
            R::store(z + j, clipped<R>(y, SCORE_LIMIT, changed), n - j);
        }
        mark |= R::any_bit(changed);
    }

    /// The mean of n rewards, at most MAX_OBJECTIVES, by their gates z: weights 2^z.
    static value_t gated_reward(const value_t* rewards, const value_t* z, dim_t n) {
        const V outside = R::all(-(1 << SCORE_LIMIT));
        V top = outside;
        for (dim_t j = 0; j < n; j += STEP) {
            const V gate = R::load(z + j, n - j);
            top = R::larger(top, R::select(V(R::numbers() + j) < n, gate, outside));
        }
        const V ceiling = R::all(begin_partial(R::largest(top)).top * (1 << SCORE_BITS));
        value_t weight[MAX_OBJECTIVES];
        for (dim_t j = 0; j < n; j += STEP) {
            R::store(weight + j, gate_weight<R>(ceiling, R::load(z + j, n - j)), n - j);
        }
        weighted_mean_t mean = {0, 0};
        for (dim_t j = 0; j < n; ++j) add(mean, weight[j], rewards[j]);
        return mean_of(mean);
    }
};

}  // namespace ecorl
