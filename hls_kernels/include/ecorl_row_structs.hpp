// Structs of the row functions by macro; they go with them.
#pragma once

#include "ecorl_rows.hpp"

namespace ecorl {

/// Constants of a run of output channels.
struct channels_t {
    const value_t* mantissa;    ///< 0 for a channel of zeros
    const std::int32_t* shift;  ///< 0..31
    std::int32_t input_shift;   ///< left shift of the sums
};

/// Scales of the keys and values of one page.
struct page_scales_t {
    const value_t* key_m;
    const value_t* key_e;
    const value_t* value_m;  ///< upper 16 bits of the mantissa
    const value_t* value_e;
};

}  // namespace ecorl
