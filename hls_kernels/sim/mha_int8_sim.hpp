// What the C-simulation adds to mha_int8. Vitis never sees this file.
#pragma once

#include "../mha_int8/mha_int8.hpp"
#include "counters.hpp"

namespace ecorl {
namespace mha {

struct tag;
using counts = counters<tag, N_COUNTERS>;

/// Adds the cycles of the longest process of a turn when the turn ends.
class turn_watch {
  public:
    turn_watch() : array_(array()), softmax_(softmax()), drain_(drain()) {}
    ~turn_watch() {
        std::int64_t longest = array() - array_;
        longest = softmax() - softmax_ > longest ? softmax() - softmax_ : longest;
        longest = drain() - drain_ > longest ? drain() - drain_ : longest;
        counts::add(TURN_CYCLES, longest);
    }
    turn_watch(const turn_watch&) = delete;
    turn_watch& operator=(const turn_watch&) = delete;

  private:
    static std::int64_t array() {
        return counts::local[SCORE_CYCLES] + counts::local[CONTEXT_CYCLES];
    }
    static std::int64_t softmax() { return counts::local[SOFTMAX_CYCLES]; }
    static std::int64_t drain() { return counts::local[DRAIN_CYCLES]; }
    std::int64_t array_, softmax_, drain_;
};

}  // namespace mha
}  // namespace ecorl
