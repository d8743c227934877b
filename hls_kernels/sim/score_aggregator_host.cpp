// The counters of score_aggregator.
#include <atomic>

#include "score_aggregator_sim.hpp"

namespace ecorl {
namespace score {

thread_local std::int64_t local_counts[N_COUNTERS] = {};

namespace {

std::atomic<std::int64_t> totals[N_COUNTERS];

}  // namespace

void add_to_totals() {
    std::int64_t* const counts = local_counts;
    for (int i = 0; i < N_COUNTERS; ++i) {
        totals[i].fetch_add(counts[i], std::memory_order_relaxed);
        counts[i] = 0;
    }
}

}  // namespace score
}  // namespace ecorl

extern "C" {

void score_aggregator_counters(std::int64_t* out11) {
    using namespace ecorl::score;
    for (int i = 0; i < N_COUNTERS; ++i) out11[i] = totals[i].load(std::memory_order_relaxed);
}

void score_aggregator_counters_reset() {
    for (auto& total : ecorl::score::totals) total.store(0, std::memory_order_relaxed);
}
}
