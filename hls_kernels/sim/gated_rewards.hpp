// Rewards of several objectives as one, weighed by a gating head.
#pragma once

#include <cstdint>

extern "C" {

/// m rows of n objectives, 1 <= n <= ecorl::MAX_OBJECTIVES.
///
/// acc [m, n] are the gating head's sums, mantissa, shift [n] and exponent its constants (exponent
/// of the values), scales [m, 2] the rows' (m, e), (factor_m, factor_e) = log2(e) / temperature.
/// bias [n] (in units of log2 over the temperature, or null) and rewards [m, n] have
/// ecorl::SCORE_BITS fraction bits, as has out [m]; both within 2^ecorl::VALUE_LIMIT. marks [m]:
/// not 0 where a gate did not fit its format. Returns 0, -1 for other m and n, with nothing
/// written, or dataflow::FAULT where the kernel could not go on.
std::int32_t score_gated_rewards(const std::int32_t* acc, const std::int32_t* mantissa,
                                 const std::int32_t* shift, const std::int32_t* bias,
                                 std::int32_t input_shift, std::int32_t exponent,
                                 const std::int32_t* scales, std::int32_t factor_m,
                                 std::int32_t factor_e, const std::int32_t* rewards, std::int32_t m,
                                 std::int32_t n, std::int32_t* out, std::int32_t* marks);
}
