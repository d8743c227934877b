// What the parts of the host's forward share: views of memory, and the constants of a map.
#pragma once

#include "decoder.hpp"
#include "row_table.hpp"

namespace ecorl {

inline const value_t* values(const std::int32_t* p) {
    return reinterpret_cast<const value_t*>(p);
}

inline const std::int8_t* bytes(const code_t* codes) {
    return reinterpret_cast<const std::int8_t*>(codes);
}

inline std::int32_t* integers(value_t* v) {
    return reinterpret_cast<std::int32_t*>(v);
}

/// Constants of the channels from `first` on.
inline channels_t channels(const decoder_linear& linear, std::int32_t first) {
    return {values(linear.mantissa + first), linear.shift + first, linear.input_shift};
}

/// Exponent of the values of a segment.
inline int exponent_of(const decoder_linear& linear, std::int32_t segment) {
    return linear.exponents[segment] + 32 - linear.input_shift;
}

inline std::int32_t heads_of(const decoder_card& card) {
    return card.n_heads + 2 * card.n_kv_heads;
}

}  // namespace ecorl
