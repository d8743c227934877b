// One query row of causal attention over one page of keys, and what follows; NUMERICS.md defines
// it. Included like vector_ops/rows.hpp: by the kernel, and once for each width of register.

namespace ecorl {
namespace ECORL_ROWS {

/// The exponents of a page's largest weight, alone and times its value's scale.
struct page_tops_t {
    std::int32_t top, weighted;
};

/// Scores of a whole page: acc[PAGE] in place to units of log2.
ECORL_ROW page_tops_t scores_row(value_t* acc, const page_scales_t& by, scale_t query, dim_t live,
                                 value_t& mark) {
    constexpr std::int32_t BELOW_ONE = (1 << ATTENTION_BITS) - 1;
    const lanes base = all(-(query.e + 55 + ATTENTION_BITS));
    const lanes masked = all(-(1 << SCORE_LIMIT));
    const lanes none = all(-(1 << (SCORE_LIMIT + 1)));
    lanes top = masked;
    lanes weighted = none;
    lanes changed = all(0);
SCORES:
    for (dim_t j = 0; j < PAGE; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
        const lanes m = high(load(by.key_m + j, STEP), all(query.m));
        const lanes t = high(lanes(load(acc + j, STEP) << 9), m);
        const lanes right = lanes(base - load(by.key_e + j, STEP));
        const lanes left = larger(smaller(lanes(-right), all(MOST_LEFT)), all(0));
        const lanes most = lanes(all((1 << SCORE_LIMIT) - 1) >> left);
        const lanes limit = select(right < -MOST_LEFT, all(0), most);
        const lanes low = larger(smaller(t, limit), lanes(-limit));
        const lanes s = lanes(low << left) >> larger(smaller(right, all(31)), all(0));
        const lanes number = lanes(numbers() + j);
        changed |= select(number < live, lanes(low ^ t), all(0));
        const lanes score = select(number < live, s, masked);
        const lanes with = lanes(score + lanes(load(by.value_e + j, STEP) << ATTENTION_BITS));
        const lanes used = select(number < live, load(by.value_m + j, STEP), all(0));
        top = larger(top, score);
        weighted = larger(weighted, select(used == 0, none, with));
        store(acc + j, score, STEP);
    }
    mark |= any_bit(changed);
    const value_t highest = largest(top) + BELOW_ONE;
    const value_t heaviest = largest(weighted) + BELOW_ONE;
    return {static_cast<std::int32_t>(highest >> ATTENTION_BITS),
            static_cast<std::int32_t>(heaviest >> ATTENTION_BITS)};
}

/// Weights of a page, times their values' scales, as two codes each, high and low; returns the sum
/// of the weights alone.
ECORL_ROW value_t weights_row(const value_t* scores, const page_scales_t& by,
                              const softmax_t& state, dim_t live, code_t* high_codes,
                              code_t* low_codes) {
    constexpr int FINER = SCORE_BITS - ATTENTION_BITS;
    constexpr int PART = (1 << ATTENTION_BITS) - 1;
    const lanes ceiling = lanes(all(state.top) << ATTENTION_BITS);
    const lanes offset = all(16 + state.weighted - state.top);
    lanes total = all(0);
WEIGHTS:
    for (dim_t j = 0; j < PAGE; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
        const lanes z = lanes(ceiling - load(scores + j, STEP));
        const lanes whole = lanes(z >> ATTENTION_BITS);
        const lanes y = smaller(exp2_minus(lanes(lanes(z & PART) << FINER)), all(32767));
        const lanes number = lanes(numbers() + j);
        const lanes p = lanes(y << 8) >> smaller(whole, all(31));
        total += select(number < live, p, all(0));
        const lanes far = lanes(lanes(offset + whole) - load(by.value_e + j, STEP));
        const lanes down = larger(smaller(far, all(30)), all(0));
        const lanes product = lanes(y * load(by.value_m + j, STEP));
        const lanes rounded = lanes(product + lanes(lanes(all(1) << down) >> 1)) >> down;
        const lanes near = select(far > 30, all(0), rounded);
        const lanes w = select(number < live, near, all(0));
        store(high_codes + j, lanes(w >> 7), STEP);
        store(low_codes + j, lanes(w & 127), STEP);
    }
    return sum(total);
}

/// A row's weights for one page, and how far its former context moves down.
ECORL_ROW int softmax_row(value_t* acc, const page_scales_t& by, scale_t query, dim_t live,
                          softmax_t& state, code_t* high_codes, code_t* low_codes, value_t& mark) {
    const page_tops_t page = scores_row(acc, by, query, live, mark);
    if (page.top > state.top) {
        const std::int32_t by_bits = page.top - state.top;
        state.sum >>= by_bits < 63 ? by_bits : 63;
        state.top = page.top;
    }
    int down = 0;
    if (page.weighted > state.weighted) {
        down = page.weighted - state.weighted < 31 ? page.weighted - state.weighted : 31;
        state.weighted = page.weighted;
    }
    state.sum +=
        static_cast<std::int64_t>(weights_row(acc, by, state, live, high_codes, low_codes));
    return down;
}

/// context[d] = context >> down + (128 * upper + lower) / 64.
ECORL_ROW void accumulate_row(value_t* context, const value_t* upper, const value_t* lower,
                              int down, dim_t d) {
    const std::int32_t half = static_cast<std::int32_t>((std::int64_t{1} << down) >> 1);
    const std::int32_t keep = down > 30 ? 0 : -1;
    const std::int32_t right = down > 30 ? 0 : down;
ACCUMULATE:
    for (dim_t j = 0; j < d; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        const lanes moved = lanes(lanes(load(context + j, d - j) + half) >> right) & keep;
        const lanes both = lanes(lanes(load(upper + j, d - j) << 7) + load(lower + j, d - j));
        store(context + j, lanes(moved + lanes(lanes(both + 32) >> 6)), d - j);
    }
}

/// The head's context in place, and its exponent; false for a head of zeros.
ECORL_ROW bool finish_row(value_t* context, const softmax_t& state, std::int32_t& exponent,
                          dim_t d) {
    const value_t peak = peak_of(context, d);
    if (peak == 0) {
        exponent = NO_EXPONENT;
        return false;
    }
    const int room = room_of(peak);
    const scale_t total = normalised<64>(state.sum, 0);
    const lanes inverse =
        all(static_cast<std::int32_t>(((std::int64_t{1} << 61) - 1) / std::int64_t{total.m}));
    exponent = 17 + state.weighted - state.top - room - total.e;
FINISH:
    for (dim_t j = 0; j < d; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        store(context + j, high(lanes(load(context + j, d - j) << room), inverse), d - j);
    }
    return true;
}

}  // namespace ECORL_ROWS
}  // namespace ecorl
