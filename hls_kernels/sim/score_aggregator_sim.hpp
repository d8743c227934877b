// What the C-simulation adds to score_aggregator: counters. Vitis never sees this file.
#pragma once

#include "../score_aggregator/score_aggregator.hpp"
#include "counters.hpp"

namespace ecorl {
namespace score {

struct tag;
using counts = counters<tag, N_COUNTERS>;

inline void count(counter slot, std::int64_t amount) {
    counts::add(slot, amount);
}

/// At the end of a call: from the present thread to the totals.
inline void add_to_totals() {
    counts::add_to_totals();
}

}  // namespace score
}  // namespace ecorl
