// Log-sum-exp over blocks of the vocabulary, and the log-prob; NUMERICS.md defines them. Included
// like vector_ops/rows.hpp, after it.

namespace ecorl {
namespace ECORL_ROWS {

/// One block of logits: acc[n] in place to units of log2 over the temperature, and its part.
ECORL_ROW partial_t logits_row(value_t* acc, const channels_t& by, int exponent, scale_t s, dim_t n,
                               value_t& mark) {
    const fixed_t fixed = make_fixed(exponent, s, SCORE_BITS, SCORE_LIMIT);
    const lanes outside = all(-(1 << SCORE_LIMIT));
    lanes top = outside;
    lanes changed = all(0);
LOGITS:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 2048 avg = 2048
        const lanes z = absolute(dequantised(acc, by, j, n), fixed, changed);
        top = larger(top, select(lanes(numbers() + j) < n, z, outside));
        store(acc + j, z, n - j);
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
        const lanes d = lanes(ceiling - load(acc + j, n - j));
        const lanes whole = smaller(lanes(d >> SCORE_BITS), all(31));
        const lanes y = exp2_minus(lanes(d & 65535));
        const lanes p = lanes(y << (EXP_SUM_BITS - EXP_BITS)) >> whole;
        part.sum += wide_sum(select(lanes(numbers() + j) < n, p, all(0)));
    }
    return part;
}

}  // namespace ECORL_ROWS
}  // namespace ecorl
