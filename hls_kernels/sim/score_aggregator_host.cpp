// The counters of score_aggregator.
#include "score_aggregator_sim.hpp"

extern "C" {

void score_aggregator_counters(std::int64_t* out12) {
    ecorl::score::counts::read(out12);
}

void score_aggregator_counters_reset() {
    ecorl::score::counts::reset();
}
}
