// The INT8 forward of a Llama-family decoder over rows of different lengths, without padding.
//
// Each linear product and both attention products are gemm_int8, exact in INT32; what lies between
// is vector_ops in float32. Rows (sequences) are concatenated; they share weights and products but
// never an operation that mixes their values, so a row's result is bit-identical whatever the
// batch, its order, the grouping or the number of host threads.
//
// Per token row: residual stream float32; inputs of products INT8 with one scale a row; queries,
// keys and values INT8 with one scale a token and head; attention weights, with the values' scales
// folded in, INT8 with one scale a row.
#ifndef ECORL_VECTOR_OPS_DECODER_HPP
#define ECORL_VECTOR_OPS_DECODER_HPP

#include <cstdint>

#include "vector_ops.hpp"

extern "C" {

// A linear map: packed INT8 weights [out, in] of gemm_int8_pack, one scale per output row.
typedef struct {
    const void* packed;
    const float* scale;  // [out]
    const float* bias;   // [out] or null
} DecoderLinear;

typedef struct {
    const float* attention_norm;  // [hidden]
    const float* mlp_norm;        // [hidden]
    DecoderLinear qkv;            // [(n_heads + 2 n_kv_heads) head_dim, hidden]
    DecoderLinear output;         // [hidden, n_heads head_dim]
    DecoderLinear gate_up;        // [2 intermediate, hidden], gate first
    DecoderLinear down;           // [hidden, intermediate]
} DecoderLayer;

typedef struct {
    int32_t n_layers, hidden, intermediate, n_heads, n_kv_heads, head_dim;
    int32_t head_rows;   // outputs of the head: 1 for a reward model, else the vocabulary
    int32_t head_block;  // outputs in one packed block of the head
    float rms_eps;
    const DecoderLayer* layers;
    const float* embedding;   // [vocabulary, hidden]
    const float* final_norm;  // [hidden]
    const float* cosine;      // [positions, head_dim / 2]
    const float* sine;        // [positions, head_dim / 2]
    const void* const* head;  // [ceil(head_rows / head_block)] packed blocks
    const float* head_scale;  // [head_rows]
} Decoder;

// The rows of a batch. The caller has checked all ids and lengths.
typedef struct {
    const int32_t* ids;           // [offsets[n_rows]]
    const int64_t* offsets;       // [n_rows + 1]
    const int32_t* n_completion;  // [n_rows], logprobs only
    int32_t n_rows;
} DecoderBatch;

// All return 0, or 1 when memory ran out. `threads` host threads, at least 1.

// rewards [n_rows]: the head's single output at each row's last token.
ECORL_API int32_t decoder_score(const Decoder* model, const DecoderBatch* batch, float* rewards,
                                int32_t threads);

// Log-probabilities of the completion tokens under softmax(logits * inverse_temperature), rows
// concatenated: out [sum of n_completion].
ECORL_API int32_t decoder_logprobs(const Decoder* model, const DecoderBatch* batch,
                                   float inverse_temperature, float* out, int32_t threads);

// The residual stream before the final norm: out [offsets[n_rows], hidden].
ECORL_API int32_t decoder_hidden(const Decoder* model, const DecoderBatch* batch, float* out,
                                 int32_t threads);
}

#endif
