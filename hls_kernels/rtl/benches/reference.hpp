// What the RTL must give: the functions of the C-simulation, of the fast build, by the names of the
// pipelines. This is the one file of the benches that knows those headers.
#pragma once

#define ECORL_CSIM 1
#define ECORL_NATIVE 1

#include "attention_lanes.hpp"
#include "chain.hpp"

namespace reference {

using lane = ecorl::exact;

// ---- lanes ----------------------------------------------------------------------------------

/// A value, and whether it was clipped on the way.
struct clipped_t {
    std::int32_t value;
    bool changed;
};

inline std::int32_t dequantise(std::int32_t acc, std::int32_t mantissa, int down, int input_shift) {
    return ecorl::dequantised<lane>(acc, mantissa, down, input_shift);
}

inline clipped_t shifted(std::int32_t value, const ecorl::shifter& by) {
    std::int32_t changed = 0;
    const std::int32_t moved = ecorl::shifted<lane>(value, by, changed);
    return {moved, changed != 0};
}

inline clipped_t fixed(std::int32_t value, const ecorl::fixed_t& by) {
    std::int32_t changed = 0;
    const std::int32_t moved = ecorl::absolute<lane>(value, by, changed);
    return {moved, changed != 0};
}

inline std::int32_t quantise(std::int32_t value, const ecorl::quantiser_t& by) {
    return ecorl::coded<lane>(value, by);
}

inline std::int32_t exponential(std::int32_t f) {
    return ecorl::exp2_minus<lane>(f);
}

inline std::int32_t reciprocal(std::int32_t e) {
    return ecorl::one_over_one_plus<lane>(e);
}

inline clipped_t gate(std::int32_t gate, std::int32_t up, const ecorl::gate_t& by) {
    std::int32_t changed = 0;
    const std::int32_t value = ecorl::gated<lane>(gate, up, by, changed);
    return {value, changed != 0};
}

struct norm_t {
    std::int32_t value, square;
};

inline norm_t norm(std::int32_t x, int room, std::int32_t weight) {
    const std::int32_t full = lane::left(x, room);
    return {ecorl::normed<lane>(full, weight), ecorl::norm_square<lane>(full)};
}

inline std::int32_t rotate(std::int32_t own, std::int32_t partner, int room, std::int32_t cosine,
                           std::int32_t sine) {
    return ecorl::rotated_one<lane>(ecorl::upper_16<lane>(own, room),
                                    ecorl::upper_16<lane>(partner, room), cosine, sine);
}

/// A sum in the residual stream's format.
inline clipped_t sum(std::int32_t a, std::int32_t b) {
    std::int32_t changed = 0;
    const std::int32_t kept = ecorl::clipped<lane>(a + b, ecorl::VALUE_LIMIT, changed);
    return {kept, changed != 0};
}

inline std::int32_t log_term(std::int32_t ceiling, std::int32_t logit) {
    return ecorl::log_sum_term<lane>(ceiling, logit);
}

// ---- lanes of attention ---------------------------------------------------------------------

/// A key: its scale and that of its value; `live` where it is not beyond the query.
struct key_t {
    ecorl::key_scales_t<lane> scales;
    bool live;
};

struct score_t {
    std::int32_t score, weighted;
    bool changed;
};

inline score_t score(std::int32_t acc, const key_t& key, ecorl::scale_t query) {
    std::int32_t changed = 0;
    const auto found = ecorl::scored<lane>(acc, key.scales, query, 0, key.live, changed);
    return {found.score, found.weighted, changed != 0};
}

inline ecorl::weighed_t<lane> weight(std::int32_t score, const key_t& key, std::int32_t ceiling,
                                     std::int32_t offset) {
    return ecorl::weighed<lane>(score, key.scales, ceiling, offset, 0, key.live);
}

inline std::int32_t accumulate(std::int32_t context, std::int32_t upper, std::int32_t lower,
                               int down) {
    return ecorl::accumulated<lane>(context, (upper << 7) + lower, down);
}

// ---- the chain of vector_ops ----------------------------------------------------------------

using task_t = ecorl::vector::task_t;
using opening_t = ecorl::vector::opening_t;
using transform_t = ecorl::vector::transform_t;

inline clipped_t first_look(const task_t& task, const opening_t& by,
                            const ecorl::vector::first_lane_t& in) {
    std::int32_t changed = 0;
    const std::int32_t value = ecorl::vector::first_value(task, by, in, changed);
    return {value, changed != 0};
}

struct looked_t {
    std::int32_t value, square;
    bool changed;
};

/// `factor` holds a weight, or a sine above a cosine.
inline looked_t second_look(const task_t& task, const transform_t& by, std::int32_t own,
                            std::int32_t second, std::int32_t factor) {
    const std::int32_t cosine = static_cast<std::int16_t>(factor), sine = factor >> 16;
    std::int32_t square = 0, changed = 0;
    const std::int32_t value =
        ecorl::vector::second_value(task, by, own, second, {factor, cosine, sine}, square, changed);
    return {value, square, changed != 0};
}

// ---- trees ----------------------------------------------------------------------------------

inline std::int32_t maximum(const ecorl::word_t& word) {
    return ecorl::largest(word);
}

inline std::int32_t any_bit(const ecorl::word_t& word) {
    return ecorl::any_bit(word);
}

inline std::int64_t total(const ecorl::word_t& word) {
    return ecorl::total(word);
}

inline std::int32_t magnitude(std::int32_t value) {
    return ecorl::magnitude(value);
}

// ---- row scalars ----------------------------------------------------------------------------

template <int N, int D>
inline std::int64_t quotient(std::int64_t numerator, std::int64_t divisor) {
    return ecorl::quotient<N, D>(numerator, static_cast<ecorl::sint<D + 1>>(divisor));
}

inline int room_of(std::int32_t value) {
    return ecorl::room_of(value);
}

inline ecorl::scale_t normalise(std::int64_t value, int exponent) {
    return ecorl::normalised<64>(value, exponent);
}

inline ecorl::quantiser_t quantiser(std::int32_t peak, int exponent) {
    return ecorl::make_quantiser(peak, exponent);
}

inline ecorl::scale_t mean(std::int64_t squares, std::int32_t count, int exponent) {
    return ecorl::mean_of(squares, count, exponent);
}

inline ecorl::scale_t times(ecorl::scale_t a, ecorl::scale_t b) {
    return ecorl::times(a, b);
}

inline ecorl::scale_t plus(ecorl::scale_t a, ecorl::scale_t b) {
    return ecorl::plus(a, b);
}

inline ecorl::scale_t inverse_root(ecorl::scale_t scale) {
    return ecorl::inverse_root(scale);
}

inline ecorl::fixed_t make_fixed(int exponent, ecorl::scale_t scale, int fraction_bits, int limit) {
    return ecorl::make_fixed(exponent, scale, fraction_bits, limit);
}

inline ecorl::gate_t make_gate(std::int32_t peak_gate, std::int32_t peak_up, int exponent_gate,
                               ecorl::scale_t scale) {
    return ecorl::make_gate(peak_gate, peak_up, exponent_gate, scale);
}

inline std::int32_t log2(std::int64_t value) {
    return ecorl::log2_of(value);
}

}  // namespace reference
