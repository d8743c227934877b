// The steps of a decoder's layer, in order: the one list of them. The host's forward (forward.cpp),
// that through the kernels (card_forward.cpp), the card's plan of kernel starts and the cycle model
// (ecorl/engines/fpga/kernels/sequence.py, which reads this file) all go through it.
//
// A forward is the embedding, then for each layer BEFORE_ATTENTION, ATTENTION and AFTER_ATTENTION,
// then the head. Rows pass BEFORE_ATTENTION and AFTER_ATTENTION in blocks, and ATTENTION all at
// once. The last layer takes only the wanted rows through AFTER_ATTENTION.
#pragma once

#include <cstddef>

#include "decoder.hpp"

namespace ecorl {

enum class operation {
    NORM,            ///< residual stream -> codes of a row, the same for all cards
    MULTIPLY,        ///< these codes by each card's outputs of a map -> products of the card's own
    MULTIPLY_PARTS,  ///< each card's codes by its inputs of a map -> parts of one sum
    HEAD,            ///< products -> queries, keys and values, rotated by their positions
    ROUTE,           ///< keys and values -> pages
    ATTEND,          ///< queries and pages -> contexts
    CONTEXT,         ///< contexts -> each card's codes
    GATE,            ///< products of gate and up -> each card's codes
    RESIDUAL,        ///< sums -> added to the residual stream
};

/// An operation, and the map or the norm of the layer whose constants it takes.
struct decoder_step {
    operation what;
    decoder_norm decoder_layer::* norm;
    decoder_linear decoder_layer::* linear;
};

constexpr decoder_step step(operation what) {
    return {what, nullptr, nullptr};
}

constexpr decoder_step step(operation what, decoder_norm decoder_layer::* norm) {
    return {what, norm, nullptr};
}

constexpr decoder_step step(operation what, decoder_linear decoder_layer::* linear) {
    return {what, nullptr, linear};
}

constexpr decoder_step BEFORE_ATTENTION[] = {
    step(operation::NORM, &decoder_layer::attention_norm),
    step(operation::MULTIPLY, &decoder_layer::qkv),
    step(operation::HEAD, &decoder_layer::qkv),
};

constexpr decoder_step ATTENTION[] = {
    step(operation::ROUTE),
    step(operation::ATTEND),
};

constexpr decoder_step AFTER_ATTENTION[] = {
    step(operation::CONTEXT),
    step(operation::MULTIPLY_PARTS, &decoder_layer::output),
    step(operation::RESIDUAL, &decoder_layer::output),
    step(operation::NORM, &decoder_layer::mlp_norm),
    step(operation::MULTIPLY, &decoder_layer::gate_up),
    step(operation::GATE, &decoder_layer::gate_up),
    step(operation::MULTIPLY_PARTS, &decoder_layer::down),
    step(operation::RESIDUAL, &decoder_layer::down),
};

/// Take `n_rows` rows through a list of steps, `block` of them at a time: do_step(step, first row,
/// rows).
template <std::size_t N, class Do>
void for_row_blocks(const decoder_step (&steps)[N], std::int32_t n_rows, std::int32_t block,
                    const Do& do_step) {
    for (std::int32_t t0 = 0; t0 < n_rows; t0 += block) {
        const std::int32_t m = n_rows - t0 < block ? n_rows - t0 : block;
        for (const decoder_step& step : steps) do_step(step, t0, m);
    }
}

}  // namespace ecorl
