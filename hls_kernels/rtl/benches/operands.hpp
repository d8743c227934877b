// Operands that belong together: a row's constants as the kernels make them, words, keys.
#pragma once

#include "harness.hpp"
#include "reference.hpp"

namespace bench {

/// A scale that is not zero.
inline ecorl::scale_t any_scale(dice& draw, int most_exponent) {
    return {draw.mantissa(), draw.count(-most_exponent, most_exponent)};
}

/// Shifts of all lengths in both directions, with either clip.
inline ecorl::fixed_t any_fixed(dice& draw) {
    const int limit = draw.one_in(2) ? ecorl::VALUE_LIMIT : ecorl::SCORE_LIMIT;
    const int fraction_bits = draw.count(0, 24), exponent = draw.count(-40, 40);
    const int by = draw.count(-24, 36);
    const ecorl::scale_t scale = {draw.mantissa(), -by - exponent - 32 - fraction_bits};
    return reference::make_fixed(exponent, scale, fraction_bits, limit);
}

template <class Model>
void drive_shifter(Model& top, const ecorl::shifter& by) {
    top.limit = by.limit;
    top.half = by.half;
    top.right = by.right;
    top.left = by.left;
    top.keep = by.keep & 1;
}

inline ecorl::word_t any_word(dice& draw) {
    ecorl::word_t word = {};
    for (auto& lane : word.lane) lane = draw.value();
    return word;
}

/// A row's largest magnitude, above 0.
inline std::int32_t any_peak(dice& draw) {
    return static_cast<std::int32_t>(1 + draw.natural(INT32_MAX - 1));
}

/// What the first look does with the words of a row.
struct first_row_t {
    reference::task_t task;
    reference::opening_t opening;
};

inline first_row_t any_first_row(dice& draw) {
    first_row_t row = {};
    row.task.op = draw.count(ecorl::vector::EMBED, ecorl::vector::FIXED);
    row.task.has_bias = draw.count(0, 1);
    row.task.input_shift = draw.count(0, 16);
    row.opening = {any_fixed(draw), draw.count(0, 31)};
    return row;
}

/// Operands of one lane of such a row.
inline ecorl::vector::first_lane_t any_first_lane(dice& draw, const first_row_t& row) {
    constexpr std::int32_t MOST = (1 << ecorl::VALUE_LIMIT) - 1;
    const bool is_embed = row.task.op == ecorl::vector::EMBED;
    return {draw.within((1 << 29) >> row.task.input_shift),
            is_embed ? draw.within(INT16_MAX) : draw.within(MOST),
            draw.one_in(9) ? 0 : draw.mantissa(), draw.one_in(2) ? 0 : draw.within(MOST),
            draw.count(0, 31)};
}

/// What the second look does with the words of a row, and the largest values that it may get.
struct second_row_t {
    reference::task_t task;
    reference::transform_t transform;
    std::int32_t own_peak, second_peak;
};

inline second_row_t any_second_row(dice& draw, int op) {
    second_row_t row = {};
    row.task.op = op;
    row.own_peak = any_peak(draw);
    row.second_peak = op == ecorl::vector::HEAD ? row.own_peak : any_peak(draw);
    ecorl::gate_t gate = reference::make_gate(row.own_peak, row.second_peak, 0, any_scale(draw, 0));
    gate.fixed = any_fixed(draw);
    gate.lost = draw.one_in(2);
    row.transform = {gate, reference::room_of(row.own_peak),
                     op == ecorl::vector::HEAD && !draw.one_in(3), draw.one_in(9)};
    return row;
}

/// A weight of RMSNorm, or a sine above a cosine.
inline std::int32_t any_factor(dice& draw, const second_row_t& row) {
    if (row.task.op == ecorl::vector::NORM) return draw.within(INT32_MAX);
    const std::int32_t cosine = draw.within(1 << ecorl::ROPE_BITS);
    const std::int32_t sine = draw.within(1 << ecorl::ROPE_BITS);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(sine) << 16 |
                                     static_cast<std::uint16_t>(cosine));
}

}  // namespace bench
