// What the C-simulation adds to kv_cache_router. Vitis never sees this file.
#pragma once

#include "../kv_cache_router/kv_cache_router.hpp"
#include "counters.hpp"

namespace ecorl {
namespace router {

struct tag;
using counts = counters<tag, N_COUNTERS>;

/// Head size on the card: filled up with channels of zeros.
constexpr dim_t card_head(std::int32_t head_dim) {
    return ceil_div(head_dim, HEAD_UNIT) * HEAD_UNIT;
}

constexpr bool takes_head(std::int32_t head_dim) {
    return head_dim >= 1 && head_dim <= MAX_HEAD;
}

}  // namespace router
}  // namespace ecorl
