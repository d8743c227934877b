// From the residual stream to results, by the kernels.
#include <algorithm>

#include "card_forward.hpp"
#include "card_memory.hpp"

namespace ecorl {

void CardForward::rewards(const value_t*, std::int32_t m_all, std::int32_t* out,
                          std::int32_t* marks) {
    const decoder_linear& head = model_.cards[0].head[0];
    std::vector<word_t> side, values;
    add_channels(side, head, 0, head.n);
    for (std::int32_t t0 = 0; t0 < m_all; t0 += ROW_BLOCK) {
        const std::int32_t m = std::min(ROW_BLOCK, m_all - t0);
        norm(model_.final_norm, t0, m);
        multiply(head, codes_.data(), m, acc_, 0);
        vector::task_t now = task(vector::FIXED, m, head.n);
        now.parts = head.n_slices;
        now.input_shift = head.input_shift;
        now.fraction_bits = SCORE_BITS;
        now.exponent = head.exponents[0] + 32 - head.input_shift;
        values.resize(static_cast<std::size_t>(m) * words_of(head.n));
        std::vector<row_t> rows(rows_.begin() + t0, rows_.begin() + t0 + m);
        vector_ops_krnl(&now, acc_.data(), nullptr, side.data(), nullptr, rows.data(), nullptr,
                        values.data(), rows.data(), nullptr);
        from_rows(values.data(), reinterpret_cast<value_t*>(out) + std::int64_t{t0} * head.n, m,
                  head.n);
        for (std::int32_t i = 0; i < m; ++i) marks[t0 + i] = rows[i].mark;
    }
}

/// One block of the vocabulary: its part of each row, and the targets that lie in it.
void CardForward::logits(const decoder_linear& linear, std::int32_t block, std::int32_t first_token,
                         scale_t by, results_t& results) {
    score::task_t now = {};
    now.op = score::LOGITS;
    now.m = results.m;
    now.n = linear.n;
    now.parts = multiply(linear, codes_.data(), results.m, acc_, 0);
    now.input_shift = linear.input_shift;
    now.exponent = linear.exponents[0] + 32 - linear.input_shift;
    now.factor_m = by.m;
    now.factor_e = by.e;
    now.n_outputs = results.n_outputs;
    now.first_token = first_token;
    now.block = block;
    std::vector<word_t> side;
    add_channels(side, linear, 0, linear.n);
    score_aggregator_krnl(&now, acc_.data(), side.data(), nullptr, results.rows.data(),
                          results.outputs.data(), nullptr, results.rows.data(),
                          results.outputs.data(), partials_.data());
}

void CardForward::logprobs(const value_t*, const std::int32_t* at, const std::int32_t* targets,
                           std::int32_t m_all, scale_t by, std::int32_t* out, std::int32_t* marks) {
    std::int32_t n_blocks = 0;
    for (std::int32_t c = 0; c < model_.n_cards; ++c) n_blocks += model_.cards[c].n_head_blocks;
    for (std::int32_t t0 = 0, t1 = 0; t0 < m_all; t0 = t1) {
        // Outputs after ROW_BLOCK rows of x at most; several targets may follow one row.
        while (t1 < m_all && at[t1] - at[t0] < ROW_BLOCK) ++t1;
        results_t now = {at[t0], at[t1 - 1] - at[t0] + 1, t1 - t0, {}, {}};
        norm(model_.final_norm, now.first, now.m);
        now.rows.assign(rows_.begin() + now.first, rows_.begin() + now.first + now.m);
        now.outputs.resize(ceil_div(now.n_outputs, score::WORD_OUTPUTS));
        for (row_t& row : now.rows) row.n_outputs = 0;
        for (std::int32_t j = t0; j < t1; ++j) {
            ++now.rows[at[j] - now.first].n_outputs;
            now.output(j - t0) = {targets[j], 0, 0, 0};
        }
        partials_.resize(static_cast<std::size_t>(n_blocks) * ceil_div(now.m, BLOCK_ROWS) *
                         score::BLOCK_PARTIALS);
        std::int32_t block = 0, first_token = 0;
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            for (std::int32_t b = 0; b < model_.cards[c].n_head_blocks; ++b) {
                const decoder_linear& head = model_.cards[c].head[b];
                logits(head, block++, first_token, by, now);
                first_token += head.n;
            }
        }
        finish(n_blocks, now);
        for (std::int32_t j = t0; j < t1; ++j) {
            out[j] = now.output(j - t0).value;
            marks[j] = now.output(j - t0).mark;
        }
    }
}

void CardForward::finish(std::int32_t n_blocks, results_t& results) {
    score::task_t now = {};
    now.op = score::FINISH;
    now.m = results.m;
    now.n_outputs = results.n_outputs;
    now.n_blocks = n_blocks;
    score_aggregator_krnl(&now, nullptr, nullptr, nullptr, results.rows.data(),
                          results.outputs.data(), partials_.data(), results.rows.data(),
                          results.outputs.data(), nullptr);
}

}  // namespace ecorl
