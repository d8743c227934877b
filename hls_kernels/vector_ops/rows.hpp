// The vector operations of a decoder block on one row; NUMERICS.md defines each.
//
// The kernel includes this file once, on its on-chip buffers; the fast build includes it once for
// each width of register, on the host's memory (sim/row_table.cpp). Hence the namespace by macro
// and no include guard. ecorl_row_lanes.hpp comes before it. Loops over a row take 16 values a
// cycle.

namespace ecorl {
namespace ECORL_ROWS {

ECORL_ROW lanes codes_of(const lanes& v, const quantiser_t& by) {
#pragma HLS INLINE
    const lanes top = lanes(v << by.room) >> 16;
    return lanes(lanes(top * by.factor) + (1 << 22)) >> 23;
}

ECORL_ROW lanes dequantised(const value_t* acc, const channels_t& by, dim_t j, dim_t n) {
#pragma HLS INLINE
    const lanes full = load(acc + j, n - j) << by.input_shift;
    return high(full, load(by.mantissa + j, n - j)) >> load(by.shift + j, n - j);
}

ECORL_ROW lanes absolute(const lanes& v, const fixed_t& fixed, lanes& changed) {
#pragma HLS INLINE
    return shifted(high(v, all(fixed.mantissa)), fixed.by, changed);
}

ECORL_ROW value_t peak_of(const value_t* v, dim_t n) {
    lanes peak = all(0);
PEAK:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 32768 avg = 4096
        peak = larger(peak, magnitude(load(v + j, n - j)));
    }
    return largest(peak);
}

/// codes[n] of v[n].
ECORL_ROW void codes_row(const value_t* v, const quantiser_t& by, code_t* codes, dim_t n) {
CODES:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 32768 avg = 4096
        store(codes + j, codes_of(load(v + j, n - j), by), n - j);
    }
}

/// INT16 codes of an embedding to the residual stream.
ECORL_ROW void embed_row(const sint<16>* codes, int exponent, int fraction_bits, value_t* x,
                         dim_t n, value_t& mark) {
    const shifter by = make_shifter(-(exponent + fraction_bits), VALUE_LIMIT);
    lanes changed = all(0);
EMBED:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 8192 avg = 4096
        store(x + j, shifted(load(codes + j, n - j), by, changed), n - j);
    }
    mark |= any_bit(changed);
}

/// RMSNorm of x[n] and its codes; `scratch` holds n values.
ECORL_ROW scale_t rmsnorm_row(const value_t* x, const value_t* weight, int weight_exponent,
                              scale_t eps, int fraction_bits, value_t* scratch, code_t* codes,
                              dim_t n) {
    const value_t peak_x = peak_of(x, n);
    const int room = peak_x == 0 ? 0 : room_of(peak_x);
    lanes peak = all(0);
    std::int64_t squares = 0;
NORM:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 8192 avg = 4096
        const lanes full = load(x + j, n - j) << room;
        const lanes top = lanes(lanes(full >> 15) + 1) >> 1;
        const lanes v = high(full, load(weight + j, n - j));
        squares += wide_sum(lanes(top * top));
        peak = larger(peak, magnitude(v));
        store(scratch + j, v, n - j);
    }
    const quantiser_t by =
        make_quantiser(largest(peak), weight_exponent + 32 - room - fraction_bits);
    codes_row(scratch, by, codes, n);
    if (peak_x == 0) return {0, 0};
    const scale_t mean = mean_of(squares, n, 2 * (16 - room - fraction_bits));
    return times(by.scale, inverse_root(plus(mean, eps)));
}

/// v[n] of the sums acc[n]; returns the largest magnitude.
ECORL_ROW value_t dequantise_row(const value_t* acc, const channels_t& by, value_t* v, dim_t n) {
    lanes peak = all(0);
DEQUANTISE:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 32768 avg = 4096
        const lanes value = dequantised(acc, by, j, n);
        peak = larger(peak, magnitude(value));
        store(v + j, value, n - j);
    }
    return largest(peak);
}

/// out[n] = x[n] + the product; `bias` has the residual stream's format, or is null.
ECORL_ROW void added_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                         int fraction_bits, const value_t* bias, const value_t* x, value_t* out,
                         dim_t n, value_t& mark) {
    const fixed_t fixed = make_fixed(exponent, s, fraction_bits, VALUE_LIMIT);
    lanes changed = all(0);
RESIDUAL:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 8192 avg = 4096
        lanes y = absolute(dequantised(acc, by, j, n), fixed, changed);
        if (bias != nullptr) {
            y = clipped(lanes(y + load(bias + j, n - j)), VALUE_LIMIT, changed);
        }
        store(out + j, clipped(lanes(load(x + j, n - j) + y), VALUE_LIMIT, changed), n - j);
    }
    mark |= any_bit(changed);
}

/// x[n] += the product, in place.
ECORL_ROW void residual_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                            int fraction_bits, const value_t* bias, value_t* x, dim_t n,
                            value_t& mark) {
    added_row(acc, by, exponent, s, fraction_bits, bias, x, x, n, mark);
}

/// Values of the kernel's outputs in fixed point: rewards, with SCORE_BITS.
ECORL_ROW void fixed_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                         int fraction_bits, const value_t* bias, value_t* out, dim_t n,
                         value_t& mark) {
    const fixed_t fixed = make_fixed(exponent, s, fraction_bits, VALUE_LIMIT);
    lanes changed = all(0);
FIXED:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 1
        lanes y = absolute(dequantised(acc, by, j, n), fixed, changed);
        if (bias != nullptr) {
            y = clipped(lanes(y + load(bias + j, n - j)), VALUE_LIMIT, changed);
        }
        store(out + j, y, n - j);
    }
    mark |= any_bit(changed);
}

/// v[n] below 0 to 0, in place; returns the largest value.
ECORL_ROW value_t relu_row(value_t* v, dim_t n) {
    lanes peak = all(0);
RELU:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 16384 avg = 1024
        const lanes kept = larger(load(v + j, n - j), all(0));
        peak = larger(peak, kept);
        store(v + j, kept, n - j);
    }
    return largest(peak);
}

/// Turn a head: v[d] to 16 bits, then by the angles of its position. Returns the largest magnitude.
ECORL_ROW value_t rope_row(const value_t* v, int room, const sint<16>* cosine, const sint<16>* sine,
                           value_t* out, dim_t d) {
    const dim_t half = d / 2;
    lanes peak = all(0);
ROPE:
    for (dim_t j = 0; j < half; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 64 avg = 64
        const lanes a = lanes(load(v + j, half - j) << room) >> 16;
        const lanes b = lanes(load(v + half + j, half - j) << room) >> 16;
        const lanes c = load(cosine + j, half - j);
        const lanes t = load(sine + j, half - j);
        const lanes x = lanes(lanes(a * c) - lanes(b * t));
        const lanes y = lanes(lanes(b * c) + lanes(a * t));
        peak = larger(peak, larger(magnitude(x), magnitude(y)));
        store(out + j, x, half - j);
        store(out + half + j, y, half - j);
    }
    return largest(peak);
}

/// v[d] to the residual stream's fixed point, plus the bias; returns the largest magnitude.
ECORL_ROW value_t bias_row(value_t* v, const fixed_t& fixed, const value_t* bias, dim_t d,
                           value_t& mark) {
    lanes changed = all(0);
    lanes peak = all(0);
BIAS:
    for (dim_t j = 0; j < d; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        const lanes y = lanes(absolute(load(v + j, d - j), fixed, changed) + load(bias + j, d - j));
        const lanes kept = clipped(y, VALUE_LIMIT, changed);
        peak = larger(peak, magnitude(kept));
        store(v + j, kept, d - j);
    }
    mark |= any_bit(changed);
    return largest(peak);
}

/// What a head of queries, keys or values has besides its sums.
struct head_t {
    channels_t channels;
    const value_t* bias;
    const sint<16>* cosine;
    const sint<16>* sine;
    std::int32_t exponent;
    std::int32_t fraction_bits;
    bool has_bias;
    bool is_turned;
};

/// One head: codes[d] and their scale. `v` and `turned` hold d values each.
ECORL_ROW scale_t head_codes(const value_t* acc, const head_t& head, scale_t s, value_t* v,
                             value_t* turned, code_t* codes, dim_t d, value_t& mark) {
    value_t peak = dequantise_row(acc, head.channels, v, d);
    int exponent = head.exponent;
    if (head.has_bias) {
        const fixed_t fixed = make_fixed(exponent, s, head.fraction_bits, VALUE_LIMIT);
        peak = bias_row(v, fixed, head.bias, d, mark);
        exponent = -head.fraction_bits;
    }
    quantiser_t q;
    if (head.is_turned) {
        const int room = peak == 0 ? 0 : room_of(peak);
        peak = rope_row(v, room, head.cosine, head.sine, turned, d);
        q = make_quantiser(peak, exponent + 2 - room);
        codes_row(turned, q, codes, d);
    } else {
        q = make_quantiser(peak, exponent);
        codes_row(v, q, codes, d);
    }
    return head.has_bias ? q.scale : times(q.scale, s);
}

/// One head of queries, keys (with angles) or values (cosine null), with a bias or null: codes[d]
/// and their scale. `scratch` holds 2 d values.
ECORL_ROW scale_t head_row(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                           int fraction_bits, const value_t* bias, const sint<16>* cosine,
                           const sint<16>* sine, value_t* scratch, code_t* codes, dim_t d,
                           value_t& mark) {
    const bool has_bias = bias != nullptr;
    const bool is_turned = cosine != nullptr;
    const head_t head = {by, bias, cosine, sine, exponent, fraction_bits, has_bias, is_turned};
    return head_codes(acc, head, s, scratch, scratch + d, codes, d, mark);
}

/// silu(gate) * up into gate[n]; returns the largest magnitude. Both peaks are above 0. A gate that
/// is clipped is so large that silu is 0 or the gate itself, unless it is lost altogether.
ECORL_ROW value_t gated_row(value_t* gate, const value_t* up, const gate_t& by, dim_t n,
                            value_t& mark) {
    lanes peak = all(0);
    lanes changed = all(0);
GATED:
    for (dim_t j = 0; j < n; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 32768 avg = 14336
        const lanes g = load(gate + j, n - j);
        const lanes z = absolute(g, by.fixed, changed);
        const lanes u = magnitude(z);
        const lanes y = exp2_minus(lanes(u & 65535));
        const lanes whole = smaller(lanes(u >> 16), all(31));
        const lanes r = one_over_one_plus(lanes(y >> whole));
        const lanes factor = select(z < 0, lanes(lanes(y * r) >> EXP_BITS), r);
        const lanes right = select(z < 0, whole, all(0));
        const lanes both = high(lanes(g << by.room_gate), lanes(load(up + j, n - j) << by.room_up));
        const lanes h = high(both, lanes(factor << 16)) >> right;
        peak = larger(peak, magnitude(h));
        store(gate + j, h, n - j);
    }
    if (by.lost) mark |= any_bit(changed);
    return largest(peak);
}

/// out[d] = v[d] >> right; returns the largest magnitude.
ECORL_ROW value_t aligned_row(const value_t* v, int right, value_t* out, dim_t d) {
    lanes peak = all(0);
ALIGN:
    for (dim_t j = 0; j < d; j += STEP) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        const lanes moved = load(v + j, d - j) >> right;
        peak = larger(peak, magnitude(moved));
        store(out + j, moved, d - j);
    }
    return largest(peak);
}

/// v[d] >> right in place.
ECORL_ROW value_t align_row(value_t* v, int right, dim_t d) {
    return aligned_row(v, right, v, d);
}

}  // namespace ECORL_ROWS
}  // namespace ecorl
