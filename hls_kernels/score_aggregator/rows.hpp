// Log-sum-exp over blocks of the vocabulary, and gated rewards; NUMERICS.md defines them. Included
// like vector_ops/rows.hpp, after it.

namespace ecorl {
namespace ECORL_ROWS {

/// One block of logits: z[n], acc[n] in units of log2 over the temperature, and its part.
ECORL_ROW partial_t block_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                              value_t* z, dim_t n, value_t& mark) {
    const fixed_t fixed = make_fixed(exponent, s, SCORE_BITS, SCORE_LIMIT);
    const lanes outside = all(-(1 << SCORE_LIMIT));
    lanes top = outside;
    lanes changed = all(0);
LOGITS:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 2048 avg = 2048
        const lanes value = absolute(dequantised(acc, by, j, n), fixed, changed);
        top = larger(top, select(lanes(numbers() + j) < n, value, outside));
        store(z + j, value, n - j);
    }
    mark |= any_bit(changed);
    const value_t above = largest(top) + 65535;
    partial_t part = {0, static_cast<std::int32_t>(above >> SCORE_BITS), 1};
    const lanes ceiling = lanes(all(part.top) << SCORE_BITS);
SUM:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 2048 avg = 2048
        const lanes d = lanes(ceiling - load(z + j, n - j));
        const lanes whole = smaller(lanes(d >> SCORE_BITS), all(31));
        const lanes y = exp2_minus(lanes(d & 65535));
        const lanes p = lanes(y << (EXP_SUM_BITS - EXP_BITS)) >> whole;
        part.sum += wide_sum(select(lanes(numbers() + j) < n, p, all(0)));
    }
    return part;
}

/// One block of logits in place.
ECORL_ROW partial_t logits_row(value_t* acc, const channels_t& by, int exponent, scale_t s, dim_t n,
                               value_t& mark) {
    return block_row(acc, by, exponent, s, acc, n, mark);
}

/// Gates z[n] of several objectives in units of log2, with their bias of SCORE_BITS or null. At
/// most MAX_OBJECTIVES of them.
ECORL_ROW void gates_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                         const value_t* bias, value_t* z, dim_t n, value_t& mark) {
    const fixed_t fixed = make_fixed(exponent, s, SCORE_BITS, VALUE_LIMIT);
    lanes changed = all(0);
GATES:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 10
        lanes y = absolute(dequantised(acc, by, j, n), fixed, changed);
        if (bias != nullptr) y = lanes(y + load(bias + j, n - j));
        // The sum is clipped once: within SCORE_LIMIT it is within VALUE_LIMIT too.
        store(z + j, clipped(y, SCORE_LIMIT, changed), n - j);
    }
    mark |= any_bit(changed);
}

/// Gates z[n] of several objectives in units of log2: the mean of their rewards by 2^z. At most
/// MAX_OBJECTIVES of them.
ECORL_ROW value_t gated_reward_row(const value_t* rewards, const value_t* z, dim_t n) {
    value_t weight[MAX_OBJECTIVES];
    const lanes outside = all(-(1 << SCORE_LIMIT));
    lanes top = outside;
GATE_TOP:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 10
        top = larger(top, select(lanes(numbers() + j) < n, load(z + j, n - j), outside));
    }
    const value_t above = largest(top) + 65535;
    const lanes ceiling = all(value_t(above >> SCORE_BITS) << SCORE_BITS);
GATE_WEIGHT:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 10
        const lanes d = lanes(ceiling - load(z + j, n - j));
        const lanes whole = smaller(lanes(d >> SCORE_BITS), all(31));
        store(weight + j, exp2_minus(lanes(d & 65535)) >> whole, n - j);
    }
    std::int64_t weights = 0;
    std::int64_t rewarded = 0;
GATED_REWARD:
    for (dim_t j = 0; j < n; ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 10
        weights += static_cast<std::int64_t>(weight[j]);
        rewarded += static_cast<std::int64_t>(product<32, 32>(weight[j], rewards[j]));
    }
    return value_t(rewarded / weights);  // truncated; the largest gate has a weight of 2^14 or more
}

}  // namespace ECORL_ROWS
}  // namespace ecorl
