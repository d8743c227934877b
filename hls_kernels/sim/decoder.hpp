// The INT8 forward of a Llama-family decoder, as the C-simulation's library offers it.
//
// A batch is a forest: each segment is a run of tokens that goes on from the end of its parent (a
// prompt that several completions share is computed once). All arithmetic is that of the kernels
// (NUMERICS.md): a token's result depends on the tokens before it in its sequence, and on nothing
// else. The model may be split over several cards; results do not depend on it.
#pragma once

#include <cstdint>

#include "../include/ecorl_rows.hpp"

extern "C" {

/// A card's part of a linear map [n, k]; k may be cut into slices that the gemm kernel can hold.
struct decoder_linear {
    const void* const* packed;      ///< [n_slices] of gemm_int8_pack
    const std::int32_t* slice;      ///< [n_slices + 1] first input of each slice
    const std::int32_t* mantissa;   ///< [n]
    const std::int32_t* shift;      ///< [n]
    const std::int32_t* exponents;  ///< [n / segment]
    const std::int32_t* bias;       ///< [n] or null
    std::int32_t n_slices, n, k, segment;
    std::int32_t input_shift;  ///< of the whole map, whatever part of k this card has
};

struct decoder_norm {
    const std::int32_t* weight;  ///< [hidden]
    std::int32_t exponent;
};

struct decoder_layer {
    decoder_norm attention_norm, mlp_norm;
    decoder_linear qkv;      ///< [(n_heads + 2 n_kv_heads) head_dim, hidden], a segment a head
    decoder_linear output;   ///< [hidden, n_heads head_dim]
    decoder_linear gate_up;  ///< [2 intermediate, hidden], gate first, two segments
    decoder_linear down;     ///< [hidden, intermediate]
};

/// What one card holds.
struct decoder_card {
    std::int32_t n_heads, n_kv_heads, intermediate;
    std::int32_t n_head_blocks;   ///< blocks of the head, ecorl::HEAD_BLOCK outputs each
    const decoder_layer* layers;  ///< [n_layers]
    const decoder_linear* head;   ///< [n_head_blocks], each one segment with its exponent
};

struct decoder_model {
    std::int32_t n_cards, n_layers, hidden, head_dim;
    std::int32_t fraction_bits;     ///< of the residual stream
    std::int32_t eps_m, eps_e;      ///< of the norms
    std::int32_t score_m, score_e;  ///< log2(e) / sqrt(head_dim)
    const decoder_card* cards;
    const std::int16_t* embedding;           ///< [vocabulary, hidden]
    const std::int32_t* embedding_exponent;  ///< [vocabulary]
    const std::int16_t* cosine;              ///< [positions, head_dim / 2]
    const std::int16_t* sine;
    decoder_norm final_norm;
    const decoder_linear* gate;   ///< [n_gate_layers] of a reward with several objectives
    std::int32_t n_gate_layers;   ///< 0: the model has no gate
    std::int32_t gate_m, gate_e;  ///< log2(e) / temperature of the gate
};

/// Segments stand in the order of their tokens; a parent before its children, and a family (a
/// segment without a parent and all that go on from it) side by side. The caller has checked ids
/// and lengths.
struct decoder_batch {
    const std::int32_t* ids;     ///< [begin[n_segments]]
    const std::int64_t* begin;   ///< [n_segments + 1] first token of each segment
    const std::int32_t* parent;  ///< [n_segments] a segment without a parent of its own, or -1
    std::int32_t n_segments;
    const std::int64_t* outputs;  ///< [n_outputs] tokens whose result is asked for, ascending
    const std::int32_t* targets;  ///< [n_outputs] the token to be predicted; log-probs only
    std::int64_t n_outputs;
    const std::int64_t* gates;  ///< [n_outputs] tokens where the gate is read; gated rewards only
};

// All return 0, 1 when memory ran out, 2 when the kernels are chosen (rows_set_width) and do not
// take a model of this shape, or dataflow::FAULT when one of them could not go on. `threads` host
// threads, at least 1. marks [n_outputs]: not 0 where a number on the way did not fit its format.

/// The head's outputs (rewards), ecorl::SCORE_BITS fraction bits: out [n_outputs, head outputs].
std::int32_t decoder_rewards(const decoder_model* model, const decoder_batch* batch,
                             std::int32_t* out, std::int32_t* marks, std::int32_t threads);

/// Gated rewards, ecorl::SCORE_BITS fraction bits: out [n_outputs]. An output's token and the token
/// of its gate belong to one family. At most ecorl::MAX_OBJECTIVES outputs of the head and the
/// gate.
std::int32_t decoder_gated_rewards(const decoder_model* model, const decoder_batch* batch,
                                   std::int32_t* out, std::int32_t* marks, std::int32_t threads);

/// Log-probs of the targets under softmax(logits / temperature), in nats with
/// ecorl::LOGPROB_BITS fraction bits: out [n_outputs]. (m, e) = log2(e) / temperature.
std::int32_t decoder_logprobs(const decoder_model* model, const decoder_batch* batch,
                              std::int32_t m, std::int32_t e, std::int32_t* out,
                              std::int32_t* marks, std::int32_t threads);

/// The residual stream before the final norm: out [n_outputs, hidden].
std::int32_t decoder_hidden(const decoder_model* model, const decoder_batch* batch,
                            std::int32_t* out, std::int32_t* marks, std::int32_t threads);
}
