// One group of families through all layers, by the kernels: every product, vector operation and
// result comes from a top function, on buffers in the order of the card's memory. Between them the
// host sets tasks, jobs and blocks, and takes the maxima that two cards exchange; what the kernels
// compute stays as they left it. Only after the last layer's attention the host brings the wanted
// rows together.
//
// It gives the bits of Forward, which is the host's fast schedule of the same row functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../score_aggregator/score_aggregator.hpp"
#include "../vector_ops/vector_ops.hpp"
#include "card_pages.hpp"
#include "decoder.hpp"
#include "forward.hpp"

namespace ecorl {

/// Whether the kernels take a model of this shape.
bool fits_kernels(const decoder_model& model);

/// The interface of Forward, for `for_groups` of decoder.cpp.
class CardForward {
  public:
    CardForward(const decoder_model& model, std::int32_t max_tokens, std::int32_t max_pages);
    const value_t* run(const group_t& group, const std::int32_t* ids);
    std::int32_t mark(std::int32_t i) const { return rows_[i].mark != 0; }
    /// Both read the residual stream of the last run, as it stands in the card's memory.
    void rewards(const value_t* x, std::int32_t m, std::int32_t* out, std::int32_t* marks);
    void logprobs(const value_t* x, const std::int32_t* rows, const std::int32_t* targets,
                  std::int32_t m, scale_t by, std::int32_t* out, std::int32_t* marks);

  private:
    /// What one card holds beside its weights.
    struct card_t {
        std::unique_ptr<CardPages> pages;
        std::vector<code_word_t> heads;  ///< [heads][stride][token_beats(head_dim)]
        std::vector<word_t> scales;      ///< [heads][stride] head_row_t
        std::vector<word_t> context;     ///< [n_heads][stride][head_dim / 16]
        std::vector<word_t> results;     ///< [n_heads][stride] exponents and marks of contexts
        std::vector<row_t> rows;         ///< records of the rows of a block
        std::vector<word_t> acc;         ///< its products
        std::vector<code_word_t> codes;
    };
    /// What a card's GATE or CONTEXT reads.
    struct input_t {
        const word_t* acc;
        const word_t* side;
        std::int32_t n;
    };
    /// Outputs of a block of rows of x.
    struct results_t {
        std::int32_t first, m;  ///< rows
        std::int32_t n_outputs;
        std::vector<row_t> rows;
        std::vector<score::output_word_t> outputs;
        score::output_t& output(std::int32_t i) {
            return outputs[i / score::WORD_OUTPUTS].output[i % score::WORD_OUTPUTS];
        }
    };

    vector::task_t task(std::int32_t op, std::int32_t m, std::int32_t n) const;
    void embed(const group_t& group, const std::int32_t* ids);
    /// Rows [t0, t0 + m) of a layer.
    void rows_step(const decoder_step& step, std::int32_t layer, std::int32_t t0, std::int32_t m);
    void attention_step(const decoder_step& step, const group_t& group, bool last);
    void norm(const decoder_norm& weights, std::int32_t t0, std::int32_t m);
    void head(std::int32_t card, const decoder_linear& qkv, std::int32_t t0, std::int32_t m);
    void keep_wanted(const group_t& group);
    void context(std::int32_t t0, std::int32_t m);
    void gate(const decoder_step& step, std::int32_t layer, std::int32_t t0, std::int32_t m);
    void run_stages(const vector::task_t& task, const std::vector<input_t>& inputs,
                    std::int32_t t0);
    void multiply_parts(const decoder_step& step, std::int32_t layer, std::int32_t m);
    void residual(const decoder_linear& linear, std::int32_t t0, std::int32_t m);
    std::int32_t multiply(const decoder_linear& linear, const code_word_t* codes, std::int32_t m,
                          std::vector<word_t>& acc, std::int32_t part) const;
    void logits(const decoder_linear& linear, std::int32_t block, std::int32_t first_token,
                scale_t by, results_t& results);
    void finish(std::int32_t n_blocks, results_t& results);
    void spread_marks(const group_t& group);
    const decoder_layer& layer_of(std::int32_t card, std::int32_t layer) const {
        return model_.cards[card].layers[layer];
    }
    word_t* x_at(std::int32_t row) {
        return x_.data() + std::int64_t{row} * words_of(model_.hidden);
    }

    const decoder_model& model_;
    std::int32_t stride_;  ///< rows from one head to the next
    std::vector<card_t> cards_;
    std::vector<word_t> x_;           ///< [tokens][hidden / 16] residual stream
    std::vector<row_t> rows_;         ///< [tokens]
    std::vector<code_word_t> codes_;  ///< of the last norm
    std::vector<word_t> acc_;         ///< parts of one sum
    std::int32_t n_parts_ = 0;        ///< of them
    std::vector<table_word_t> angles_;
    std::vector<value_t> hidden_;  ///< [wanted, hidden] for the host
    std::vector<score::partial_word_t> partials_;
};

}  // namespace ecorl
