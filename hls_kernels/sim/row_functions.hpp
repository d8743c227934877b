// The operations of a decoder on whole rows in the host's memory, as templates over the row policy
// (row_lanes.hpp): the host's own schedule of the arithmetic that the kernels do word by word.
// NUMERICS.md defines each. The kernels never see this file.
#pragma once

#include "row_lanes.hpp"
#include "row_table.hpp"

namespace ecorl {

template <class R>
ECORL_LANE typename R::value dequantised_at(const value_t* acc, const channels_t& by, dim_t j,
                                            dim_t n) {
    return dequantised<R>(R::load(acc + j, n - j), R::load(by.mantissa + j, n - j),
                          R::load(by.shift + j, n - j), by.input_shift);
}

template <class R>
struct row_functions {
    using V = typename R::value;
    static constexpr dim_t STEP = R::STEP;

    static value_t peak_of(const value_t* v, dim_t n) {
        V peak = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            peak = R::larger(peak, R::magnitude(R::load(v + j, n - j)));
        }
        return R::largest(peak);
    }

    /// codes[n] of v[n].
    static void codes(const value_t* v, const quantiser_t& by, code_t* out, dim_t n) {
        for (dim_t j = 0; j < n; j += STEP) {
            R::store(out + j, coded<R>(R::load(v + j, n - j), by), n - j);
        }
    }

    /// INT16 codes of an embedding to the residual stream.
    static void embed(const sint<16>* codes, int exponent, int fraction_bits, value_t* x, dim_t n,
                      value_t& mark) {
        const shifter by = make_shifter(-(exponent + fraction_bits), VALUE_LIMIT);
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            R::store(x + j, shifted<R>(R::load(codes + j, n - j), by, changed), n - j);
        }
        mark |= R::any_bit(changed);
    }

    /// RMSNorm of x[n] and its codes; `scratch` holds n values.
    static scale_t rmsnorm(const value_t* x, const value_t* weight, int weight_exponent,
                           scale_t eps, int fraction_bits, value_t* scratch, code_t* out, dim_t n) {
        const value_t peak_x = peak_of(x, n);
        const int room = peak_x == 0 ? 0 : room_of(peak_x);
        V peak = R::all(0);
        std::int64_t squares = 0;
        for (dim_t j = 0; j < n; j += STEP) {
            const V full = R::left(R::load(x + j, n - j), R::all(room));
            const V v = normed<R>(full, R::load(weight + j, n - j));
            squares += R::wide_total(norm_square<R>(full));
            peak = R::larger(peak, R::magnitude(v));
            R::store(scratch + j, v, n - j);
        }
        const quantiser_t by =
            make_quantiser(R::largest(peak), weight_exponent + 32 - room - fraction_bits);
        codes(scratch, by, out, n);
        if (peak_x == 0) return {0, 0};
        const scale_t mean = mean_of(squares, n, 2 * (16 - room - fraction_bits));
        return times(by.scale, inverse_root(plus(mean, eps)));
    }

    /// v[n] of the sums acc[n]; returns the largest magnitude.
    static value_t dequantise(const value_t* acc, const channels_t& by, value_t* v, dim_t n) {
        V peak = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            const V value = dequantised_at<R>(acc, by, j, n);
            peak = R::larger(peak, R::magnitude(value));
            R::store(v + j, value, n - j);
        }
        return R::largest(peak);
    }

    /// A product in fixed point, with its bias or null.
    ECORL_LANE V with_bias(const value_t* acc, const channels_t& by, const fixed_t& fixed,
                           const value_t* bias, dim_t j, dim_t n, V& changed) {
        const V y = absolute<R>(dequantised_at<R>(acc, by, j, n), fixed, changed);
        if (bias == nullptr) return y;
        return clipped<R>(V(y + R::load(bias + j, n - j)), VALUE_LIMIT, changed);
    }

    /// x[n] += the product, in place; `bias` has the residual stream's format, or is null.
    static void residual(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                         int fraction_bits, const value_t* bias, value_t* x, dim_t n,
                         value_t& mark) {
        const fixed_t fixed = make_fixed(exponent, s, fraction_bits, VALUE_LIMIT);
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            const V y = with_bias(acc, by, fixed, bias, j, n, changed);
            const V sum = V(R::load(x + j, n - j) + y);
            R::store(x + j, clipped<R>(sum, VALUE_LIMIT, changed), n - j);
        }
        mark |= R::any_bit(changed);
    }

    /// Values of the outputs in fixed point: rewards, with SCORE_BITS.
    static void fixed(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                      int fraction_bits, const value_t* bias, value_t* out, dim_t n,
                      value_t& mark) {
        const fixed_t fixed = make_fixed(exponent, s, fraction_bits, VALUE_LIMIT);
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            R::store(out + j, with_bias(acc, by, fixed, bias, j, n, changed), n - j);
        }
        mark |= R::any_bit(changed);
    }

    /// v[n] below 0 to 0, in place; returns the largest value.
    static value_t relu(value_t* v, dim_t n) {
        V peak = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            const V kept = R::larger(R::load(v + j, n - j), R::all(0));
            peak = R::larger(peak, kept);
            R::store(v + j, kept, n - j);
        }
        return R::largest(peak);
    }

    /// v[d] to the residual stream's fixed point, plus the bias; returns the largest magnitude.
    static value_t add_bias(value_t* v, const fixed_t& fixed, const value_t* bias, dim_t d,
                            value_t& mark) {
        V changed = R::all(0);
        V peak = R::all(0);
        for (dim_t j = 0; j < d; j += STEP) {
            const V y = absolute<R>(R::load(v + j, d - j), fixed, changed);
            const V kept = clipped<R>(V(y + R::load(bias + j, d - j)), VALUE_LIMIT, changed);
            peak = R::larger(peak, R::magnitude(kept));
            R::store(v + j, kept, d - j);
        }
        mark |= R::any_bit(changed);
        return R::largest(peak);
    }

    /// RoPE of a head: v[d] to 16 bits, then by the angles of its position. Returns the largest
    /// magnitude.
    static value_t rotate(const value_t* v, int room, const rope_t* cosine, const rope_t* sine,
                          value_t* out, dim_t d) {
        const dim_t half = d / 2;
        V peak = R::all(0);
        for (dim_t j = 0; j < half; j += STEP) {
            const V a = upper_16<R>(R::load(v + j, half - j), room);
            const V b = upper_16<R>(R::load(v + half + j, half - j), room);
            const rotated_t<R> pair =
                rotated<R>(a, b, R::load(cosine + j, half - j), R::load(sine + j, half - j));
            const V larger = R::larger(R::magnitude(pair.low), R::magnitude(pair.high));
            peak = R::larger(peak, larger);
            R::store(out + j, pair.low, half - j);
            R::store(out + half + j, pair.high, half - j);
        }
        return R::largest(peak);
    }

    /// One head of queries, keys (with angles) or values (cosine null), with a bias or null:
    /// codes[d] and their scale. `scratch` holds 2 d values.
    static scale_t head(const value_t* acc, const channels_t& by, int exponent, scale_t s,
                        int fraction_bits, const value_t* bias, const rope_t* cosine,
                        const rope_t* sine, value_t* scratch, code_t* out, dim_t d, value_t& mark) {
        value_t peak = dequantise(acc, by, scratch, d);
        if (bias != nullptr) {
            const fixed_t fixed = make_fixed(exponent, s, fraction_bits, VALUE_LIMIT);
            peak = add_bias(scratch, fixed, bias, d, mark);
            exponent = -fraction_bits;
        }
        const value_t* v = scratch;
        if (cosine != nullptr) {
            const int room = peak == 0 ? 0 : room_of(peak);
            peak = rotate(scratch, room, cosine, sine, scratch + d, d);
            exponent += 2 - room;
            v = scratch + d;
        }
        const quantiser_t q = make_quantiser(peak, exponent);
        codes(v, q, out, d);
        return bias != nullptr ? q.scale : times(q.scale, s);
    }

    /// silu(gate) * up into gate[n]; returns the largest magnitude. Both peaks are above 0.
    static value_t gate(value_t* gate, const value_t* up, const gate_t& by, dim_t n,
                        value_t& mark) {
        V peak = R::all(0);
        V changed = R::all(0);
        for (dim_t j = 0; j < n; j += STEP) {
            const V h = gated<R>(R::load(gate + j, n - j), R::load(up + j, n - j), by, changed);
            peak = R::larger(peak, R::magnitude(h));
            R::store(gate + j, h, n - j);
        }
        if (by.lost) mark |= R::any_bit(changed);
        return R::largest(peak);
    }

    /// v[d] >> right in place; returns the largest magnitude.
    static value_t align(value_t* v, int right, dim_t d) {
        V peak = R::all(0);
        for (dim_t j = 0; j < d; j += STEP) {
            const V moved = R::right(R::load(v + j, d - j), R::all(right));
            peak = R::larger(peak, R::magnitude(moved));
            R::store(v + j, moved, d - j);
        }
        return R::largest(peak);
    }
};

}  // namespace ecorl
