// Causal INT8 attention of one head over a run of tokens; both products are gemm_int8.
#ifndef ECORL_VECTOR_OPS_ATTENTION_HPP
#define ECORL_VECTOR_OPS_ATTENTION_HPP

#include <cstdint>
#include <memory>

namespace ecorl {

// Query rows per score product, and keys per packed block. Products are exact INT32, so neither
// choice can reach a result.
constexpr int32_t kQueryBlock = 64;
constexpr int32_t kKeyBlock = 256;

// Elements that vector operations may touch beyond the end of a row of scores.
constexpr int32_t kPadding = 16;

// One head's keys and values for a run of consecutive tokens: one long sequence, or several short
// ones side by side (they share the products; a row reads only the columns of its own sequence).
struct KeysValues {
    const int8_t* k;       // [n, d]
    const float* k_scale;  // [n], readable up to kPadding further
    const int8_t* v;       // [n, d]
    const float* v_scale;  // [n], readable up to kPadding further
    int32_t n;
    int32_t d;
};

// The query rows of one head over the same run.
struct Queries {
    const int8_t* q;      // [n, d], row t belongs to token t of the run
    const float* scale;   // [n]
    const int32_t* rows;  // [n_rows] tokens to answer, ascending; null: all n
    int32_t n_rows;
    const int32_t* begins;  // [n] first token of each token's sequence, relative to the run
    float inv_sqrt_d;
};

// Buffers of one thread, for runs of at most max_run tokens. Reused by every head.
class AttentionBuffers {
  public:
    AttentionBuffers(int32_t max_run, int32_t d);
    // Packs keys and transposed values; the following attend() calls read them.
    void pack(const KeysValues& kv);
    // out + i * stride gets the context [d] of the i-th query row, float32.
    void attend(const KeysValues& kv, const Queries& queries, float* out, int64_t stride);

  private:
    static int32_t seen(const KeysValues& kv, int32_t b, int32_t last);
    void row_weights(const KeysValues& kv, int32_t row, int32_t begin, int32_t token, int32_t last,
                     float beta);

    int64_t packed_bytes_ = 0;               // of one key block, or of one value block
    std::unique_ptr<uint8_t[]> keys_;        // [blocks] packed [kKeyBlock, d]
    std::unique_ptr<uint8_t[]> values_;      // [blocks] packed [d, kKeyBlock]
    std::unique_ptr<int8_t[]> turned_;       // [d, kKeyBlock]
    std::unique_ptr<int8_t[]> gathered_;     // [kQueryBlock, d]
    std::unique_ptr<int32_t[]> scores_;      // [blocks] [kQueryBlock, block width]
    std::unique_ptr<int8_t[]> weights_;      // [blocks] [kQueryBlock, block width]
    std::unique_ptr<int32_t[]> context_;     // [kQueryBlock, d]
    std::unique_ptr<int32_t[]> partial_;     // [kQueryBlock, d]
    std::unique_ptr<float[]> row_;           // [max_run] one row of scores
    std::unique_ptr<int8_t[]> row_weights_;  // [max_run]
    float worth_[kQueryBlock];
};

}  // namespace ecorl

#endif
