// What the C-simulation adds to score_aggregator: counters. Vitis never sees this file.
#pragma once

#include "../score_aggregator/score_aggregator.hpp"

namespace ecorl {
namespace score {

/// Counts of the present thread, not yet added to the totals.
extern thread_local std::int64_t local_counts[N_COUNTERS];

inline void count(counter slot, std::int64_t amount) {
    local_counts[slot] += amount;
}

/// At the end of a call: from the present thread to the totals.
void add_to_totals();

}  // namespace score
}  // namespace ecorl
