// One group of families through all layers: what a host thread of the C-simulation does at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "decoder.hpp"
#include "decoder_steps.hpp"
#include "pages.hpp"

namespace ecorl {

constexpr std::int32_t ROW_BLOCK = 64;  ///< token rows of one product: results stay in cache

/// Segments [first, last) of a batch, their tokens numbered from 0, and what is asked of them.
struct group_t {
    std::int32_t first, last;
    std::int64_t first_token;
    std::int64_t first_output, last_output;
    std::vector<segment_t> segments;
    std::vector<std::int32_t> positions;  ///< [n_tokens]
    std::vector<std::int32_t> wanted;     ///< distinct tokens with an output, ascending
    std::int32_t n_tokens() const { return static_cast<std::int32_t>(positions.size()); }
    /// Tokens whose attention a layer needs, ascending.
    std::vector<std::int32_t> asked(bool in_last_layer) const;
};

/// A row's largest exponent and magnitude, which cards exchange.
struct row_peak {
    value_t peak;
    std::int32_t exponent;
};

/// Buffers of one thread, for groups of at most max_tokens tokens and max_pages pages.
class Forward {
  public:
    Forward(const decoder_model& model, std::int32_t max_tokens, std::int32_t max_pages);
    /// Residual stream of the group's wanted tokens: [wanted, hidden], valid until the next call.
    const value_t* run(const group_t& group, const std::int32_t* ids);
    /// Whether the i-th wanted token rests on a number that did not fit.
    std::int32_t mark(std::int32_t i) const { return wanted_marks_[i] != 0; }
    void rewards(const value_t* x, std::int32_t m, std::int32_t* out, std::int32_t* marks);
    /// Gates of rows at[i] of x, in units of log2: z [at, objectives], marks [at].
    void gate_logits(const value_t* x, const std::vector<std::int32_t>& at, value_t* z,
                     value_t* marks);
    /// Log-probs of targets[i] after row rows[i] of x; rows ascend.
    void logprobs(const value_t* x, const std::int32_t* rows, const std::int32_t* targets,
                  std::int32_t m, scale_t by, std::int32_t* out, std::int32_t* marks);

  private:
    struct card_buffers {
        std::unique_ptr<Pages> pages;
        std::unique_ptr<code_t[]> heads;            ///< [heads, tokens, head_dim]
        std::unique_ptr<scale_t[]> scales;          ///< [heads, tokens]
        std::unique_ptr<value_t[]> context;         ///< [tokens, n_heads head_dim]
        std::unique_ptr<std::int32_t[]> exponents;  ///< [tokens, n_heads]
        std::unique_ptr<value_t[]> acc;             ///< [ROW_BLOCK, widest output of its own]
        std::unique_ptr<value_t[]> values;          ///< [ROW_BLOCK, 2 intermediate]
        std::unique_ptr<code_t[]> codes;            ///< [ROW_BLOCK, widest input]
    };

    void embed(const group_t& group, const std::int32_t* ids);
    void norm(const decoder_norm& weights, const value_t* x, std::int32_t m);
    void norm_row(const decoder_norm& weights, const value_t* x, std::int64_t i);
    void hidden_gate(const decoder_linear& map, std::int32_t m, code_t* codes, value_t* marks);
    void last_gate(const decoder_linear& map, std::int32_t m, value_t* z, value_t* marks);
    void keep_wanted(const group_t& group);
    /// One head of keys and values, then the queries that share it: pages hold one at a time.
    void route(const group_t& group, std::int32_t card, std::int32_t kv_head);
    void attend(const group_t& group, const std::vector<std::int32_t>& asked, std::int32_t card,
                std::int32_t kv_head);
    /// Rows [t0, t0 + m) of a layer.
    void rows_step(const decoder_step& step, std::int32_t layer, const group_t& group,
                   std::int32_t t0, std::int32_t m);
    void heads(const decoder_step& step, std::int32_t layer, const group_t& group, std::int32_t t0,
               std::int32_t m);
    void context(std::int32_t t0, std::int32_t m);
    void gate(const decoder_step& step, std::int32_t layer, std::int32_t t0, std::int32_t m);
    void multiply(const decoder_linear& linear, const code_t* codes, std::int32_t m, value_t* acc,
                  bool add);
    void add_residual(const decoder_linear& linear, std::int32_t t0, std::int32_t m);
    void spread_marks(const group_t& group);
    const decoder_layer& layer_of(std::int32_t card, std::int32_t layer) const {
        return model_.cards[card].layers[layer];
    }

    const decoder_model& model_;
    std::int32_t max_tokens_;
    std::vector<card_buffers> cards_;
    std::unique_ptr<value_t[]> x_;        ///< [tokens, hidden] residual stream
    std::unique_ptr<value_t[]> marks_;    ///< [tokens] not 0 once a number did not fit
    std::unique_ptr<code_t[]> codes_;     ///< [ROW_BLOCK, hidden] of the last norm
    std::unique_ptr<value_t[]> acc_;      ///< [ROW_BLOCK, widest output]
    std::unique_ptr<value_t[]> partial_;  ///< the same, of a later slice or card
    std::unique_ptr<value_t[]> scratch_;
    std::vector<value_t> wanted_marks_;
    scale_t row_scale_[ROW_BLOCK];
};

}  // namespace ecorl
