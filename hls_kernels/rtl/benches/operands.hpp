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

}  // namespace bench
