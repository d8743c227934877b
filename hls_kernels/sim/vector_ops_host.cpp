// The counters of vector_ops.
#include "vector_ops_sim.hpp"

extern "C" {

void vector_ops_counters(std::int64_t* out15) {
    ecorl::vector::counts::read(out15);
}

void vector_ops_counters_reset() {
    ecorl::vector::counts::reset();
}
}
