// What the C-simulation adds to vector_ops: counters. Vitis never sees this file.
#pragma once

#include "../vector_ops/vector_ops.hpp"
#include "counters.hpp"

namespace ecorl {
namespace vector {

struct tag;
using counts = counters<tag, N_COUNTERS>;

inline void count(vector_counter slot, std::int64_t amount) {
    counts::add(slot, amount);
}

/// At the end of a call: from the present thread to the totals.
inline void add_to_totals() {
    counts::add_to_totals();
}

}  // namespace vector
}  // namespace ecorl
