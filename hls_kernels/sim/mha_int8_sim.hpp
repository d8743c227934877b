// What the C-simulation adds to mha_int8. Vitis never sees this file.
#pragma once

#include <algorithm>

#include "../mha_int8/mha_int8.hpp"
#include "counters.hpp"

namespace ecorl {
namespace mha {

struct tag;
using counts = counters<tag, N_COUNTERS>;

/// Adds the cycles of the longest process of a turn when the turn ends.
class turn_watch {
  public:
    turn_watch() {
        for (int i = 0; i < N_PROCESSES; ++i) before_[i] = counts::local[PROCESSES[i]];
    }
    ~turn_watch() {
        std::int64_t longest = 0;
        for (int i = 0; i < N_PROCESSES; ++i) {
            longest = std::max(longest, counts::local[PROCESSES[i]] - before_[i]);
        }
        counts::add(TURN_CYCLES, longest);
    }
    turn_watch(const turn_watch&) = delete;
    turn_watch& operator=(const turn_watch&) = delete;

  private:
    static constexpr int N_PROCESSES = 4;
    static constexpr mha_counter PROCESSES[N_PROCESSES] = {ARRAY_CYCLES, ARRANGE_CYCLES,
                                                           SOFTMAX_CYCLES, WEIGHT_CYCLES};
    std::int64_t before_[N_PROCESSES];
};

}  // namespace mha
}  // namespace ecorl
