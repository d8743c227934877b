// All row functions of one policy. Included where they are compiled for a width of register.
#pragma once

#include "attention_rows.hpp"
#include "row_functions.hpp"
#include "score_rows.hpp"

namespace ecorl {

/// The row functions of a policy.
template <class R>
constexpr row_table table_of_rows() {
    using row = row_functions<R>;
    using attention = attention_rows<R>;
    using score = score_rows<R>;
    return {row::embed,
            row::rmsnorm,
            row::codes,
            row::dequantise,
            row::residual,
            row::fixed,
            row::head,
            row::gate,
            row::align,
            attention::softmax,
            attention::accumulate,
            attention::finish,
            score::logits,
            score::gates,
            score::gated_reward,
            row::relu};
}

}  // namespace ecorl
