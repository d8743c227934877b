// One group of rows through all layers: what a host thread of the C-simulation does at a time.
#ifndef ECORL_VECTOR_OPS_FORWARD_HPP
#define ECORL_VECTOR_OPS_FORWARD_HPP

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.hpp"
#include "decoder.hpp"

namespace ecorl {

// Token rows per linear product, so that INT32 results stay in a core's cache.
constexpr int32_t kRowBlock = 64;

// Consecutive rows of a batch: [first, last), their tokens, and which tokens are asked for.
struct Group {
    int32_t first, last;
    int32_t n_tokens;
    std::vector<int32_t> begins;  // [n_tokens] first token of each token's row, in the group
    std::vector<int32_t> wanted;  // tokens whose last hidden state is needed, ascending
};

// A run of tokens that share attention products: tokens [begin, end), wanted[first_wanted ...).
struct Run {
    int32_t begin, end;
    int32_t first_wanted, n_wanted;
};

// Buffers and steps of the forward, for groups of at most max_tokens tokens.
class Forward {
  public:
    Forward(const Decoder& model, int32_t max_tokens, int32_t max_run);
    // Residual stream of the group's wanted tokens: [wanted, hidden], valid until the next call.
    const float* run(const Group& group, const int32_t* ids);
    // The head's normalised and quantised input for rows of the residual stream, kRowBlock at most.
    void head_input(const float* x, int32_t m);
    void score(const float* x, int32_t m, float* rewards);
    void logprobs(const float* x, const int32_t* targets, int32_t m, float inverse_temperature,
                  float* out);

  private:
    void project_qkv(const DecoderLayer& layer, const Group& group);
    void attend(const Group& group, const std::vector<Run>& runs, bool last_layer);
    void project_output(const DecoderLayer& layer, int32_t m);
    void mlp(const DecoderLayer& layer, int32_t m);

    const Decoder& model_;
    int32_t max_tokens_;
    AttentionBuffers attention_;
    std::unique_ptr<float[]> x_;        // [tokens, hidden] residual stream
    std::unique_ptr<int8_t[]> heads_;   // [heads, tokens, head_dim] queries, keys, values
    std::unique_ptr<float[]> scales_;   // [heads, tokens]
    std::unique_ptr<float[]> context_;  // [tokens, n_heads head_dim]
    std::unique_ptr<int8_t[]> q_;       // [kRowBlock, widest input]
    std::unique_ptr<int32_t[]> acc_;    // [kRowBlock, widest output]
    std::unique_ptr<float[]> scratch_;  // [widest row]
    float row_scale_[kRowBlock];
};

}  // namespace ecorl

#endif
