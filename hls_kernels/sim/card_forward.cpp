#include "card_forward.hpp"

#include <algorithm>

#include "../gemm_int8/gemm_int8.hpp"
#include "card_memory.hpp"
#include "gemm_int8_sim.hpp"

namespace ecorl {

namespace {

/// Exponent of the values of a segment.
std::int32_t exponent_of(const decoder_linear& linear, std::int32_t segment) {
    return linear.exponents[segment] + 32 - linear.input_shift;
}

std::int32_t heads_of(const decoder_card& card) {
    return card.n_heads + 2 * card.n_kv_heads;
}

/// Rows of head_row_t in a word, and of exponents and marks.
constexpr std::int32_t SCALE_ROWS = BLOCK_ROWS / vector::SCALE_WORDS;
constexpr std::int32_t RESULT_ROWS = BLOCK_ROWS / vector::RESULT_WORDS;
static_assert(ROW_BLOCK % BLOCK_ROWS == 0, "parts of a group begin at a whole word");

/// Words of codes [m][n] as gemm_int8 takes them, in slices.
std::size_t code_words(std::int32_t m, std::int32_t n) {
    return static_cast<std::size_t>(ceil_div(m, BLOCK_ROWS)) * ceil_div(n, STEP_CODES);
}

/// Maxima of what cards found in their parts of a row.
void exchange(row_t& all, const row_t& own) {
    all.peak_gate = std::max(all.peak_gate, own.peak_gate);
    all.peak_up = std::max(all.peak_up, own.peak_up);
    all.peak_h = std::max(all.peak_h, own.peak_h);
    all.exponent = std::max(all.exponent, own.exponent);
    all.peak = std::max(all.peak, own.peak);
    all.mark |= own.mark;
}

}  // namespace

bool fits_kernels(const decoder_model& model) {
    std::int32_t n_blocks = 0;
    bool fits = model.hidden <= vector::MAX_COLUMNS && model.head_dim <= vector::MAX_HEAD &&
                model.head_dim % LANES == 0;
    for (std::int32_t c = 0; c < model.n_cards; ++c) {
        const decoder_card& card = model.cards[c];
        n_blocks += card.n_head_blocks;
        fits = fits && card.n_heads <= vector::MAX_ALL_HEADS && card.intermediate % LANES == 0 &&
               card.intermediate <= vector::MAX_INNER &&
               heads_of(card) * model.head_dim <= vector::MAX_CHANNELS;
    }
    return fits && n_blocks <= score::MAX_BLOCKS;
}

CardForward::CardForward(const decoder_model& model, std::int32_t max_tokens,
                         std::int32_t max_pages)
    : model_(model), stride_(ceil_div(max_tokens, BLOCK_ROWS) * BLOCK_ROWS), cards_(model.n_cards) {
    const std::int64_t tokens = max_tokens, d = model.head_dim;
    for (std::int32_t c = 0; c < model.n_cards; ++c) {
        const decoder_card& card = model.cards[c];
        card_t& own = cards_[c];
        const std::int64_t rows = std::int64_t{heads_of(card)} * stride_;
        const std::int64_t queries = std::int64_t{card.n_heads} * stride_;
        own.pages.reset(new CardPages(card.n_kv_heads, max_pages, model.head_dim));
        own.heads.resize(rows * token_beats(model.head_dim));
        own.scales.resize(rows / SCALE_ROWS);
        own.context.resize(queries * d / LANES);
        own.results.resize(queries / RESULT_ROWS);
    }
    x_.resize(tokens * words_of(model.hidden));
    rows_.resize(tokens);
    codes_.resize(code_words(ROW_BLOCK, model.hidden));
}

vector::task_t CardForward::task(std::int32_t op, std::int32_t m, std::int32_t n) const {
    vector::task_t made = {};
    made.op = op;
    made.m = m;
    made.n = n;
    made.parts = 1;
    made.head = model_.head_dim;
    made.stride = stride_;
    made.fraction_bits = model_.fraction_bits;
    return made;
}

const value_t* CardForward::run(const group_t& group, const std::int32_t* ids) {
    const auto& positions = group.positions;
    angles_ = rope_table(model_, *std::max_element(positions.begin(), positions.end()) + 1);
    embed(group, ids);
    for (std::int32_t l = 0; l < model_.n_layers; ++l) {
        const bool last = l + 1 == model_.n_layers;
        std::int32_t m = group.n_tokens();
        const auto do_step = [&](const decoder_step& step, std::int32_t t0, std::int32_t n) {
            rows_step(step, l, t0, n);
        };
        for_row_blocks(BEFORE_ATTENTION, m, ROW_BLOCK, do_step);
        if (last) spread_marks(group);  // later ones reach no other token
        for (const decoder_step& step : ATTENTION) attention_step(step, group, last);
        if (last) {
            keep_wanted(group);
            m = static_cast<std::int32_t>(group.wanted.size());
        }
        for_row_blocks(AFTER_ATTENTION, m, ROW_BLOCK, do_step);
    }
    hidden_.resize(group.wanted.size() * model_.hidden);
    from_rows(x_.data(), hidden_.data(), static_cast<std::int32_t>(group.wanted.size()),
              model_.hidden);
    return hidden_.data();
}

void CardForward::rows_step(const decoder_step& step, std::int32_t l, std::int32_t t0,
                            std::int32_t m) {
    switch (step.what) {
        case operation::NORM:
            norm(layer_of(0, l).*step.norm, t0, m);
            break;
        case operation::MULTIPLY:
            for (std::int32_t c = 0; c < model_.n_cards; ++c) {
                multiply(layer_of(c, l).*step.linear, codes_.data(), m, cards_[c].acc, 0);
            }
            break;
        case operation::MULTIPLY_PARTS:
            multiply_parts(step, l, m);
            break;
        case operation::HEAD:
            for (std::int32_t c = 0; c < model_.n_cards; ++c) {
                head(c, layer_of(c, l).*step.linear, t0, m);
            }
            break;
        case operation::CONTEXT:
            context(t0, m);
            break;
        case operation::GATE:
            gate(step, l, t0, m);
            break;
        case operation::RESIDUAL:
            residual(layer_of(0, l).*step.linear, t0, m);
            break;
        case operation::ROUTE:
        case operation::ATTEND:
            break;  // of all rows at once
    }
}

void CardForward::embed(const group_t& group, const std::int32_t* ids) {
    const std::int32_t m = group.n_tokens();
    for (std::int32_t t = 0; t < m; ++t) {
        rows_[t] = {};
        rows_[t].token = t;  // of the part of the table that the group needs
        rows_[t].position = group.positions[t];
    }
    const vector::task_t now = task(vector::EMBED, m, model_.hidden);
    const std::vector<table_word_t> table = embedding_table(model_, ids, m);
    vector_ops_krnl(&now, nullptr, nullptr, nullptr, table.data(), rows_.data(), nullptr, x_.data(),
                    rows_.data(), nullptr);
}

/// All later tokens of a sequence attend to a marked one.
void CardForward::spread_marks(const group_t& group) {
    for (const segment_t& s : group.segments) {
        std::int32_t carried = s.parent >= 0 ? rows_[group.segments[s.parent].end - 1].mark : 0;
        for (std::int32_t t = s.begin; t < s.end; ++t) rows_[t].mark = carried |= rows_[t].mark;
    }
}

/// After the last attention only the wanted tokens go on. This gather is the simulation's alone: a
/// host that places all wanted tokens last passes pointers to where they begin.
void CardForward::keep_wanted(const group_t& group) {
    const std::int64_t words = model_.head_dim / LANES;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(group.wanted.size()); ++i) {
        const std::int32_t from = group.wanted[i];
        std::copy_n(x_at(from), words_of(model_.hidden), x_at(i));
        rows_[i] = rows_[from];
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            word_t* const context = cards_[c].context.data();
            value_t* const results = cards_[c].results.data()->lane;
            for (std::int64_t h = 0; h < model_.cards[c].n_heads; ++h) {
                const std::int64_t old_row = h * stride_ + from, row = h * stride_ + i;
                std::copy_n(context + old_row * words, words, context + row * words);
                std::copy_n(results + 2 * old_row, 2, results + 2 * row);
            }
        }
    }
}

void CardForward::norm(const decoder_norm& weights, std::int32_t t0, std::int32_t m) {
    vector::task_t now = task(vector::NORM, m, model_.hidden);
    now.exponent = weights.exponent;
    now.eps_m = model_.eps_m;
    now.eps_e = model_.eps_e;
    const std::vector<word_t> side = norm_side(weights, model_.hidden);
    vector_ops_krnl(&now, nullptr, x_at(t0), side.data(), nullptr, rows_.data() + t0, codes_.data(),
                    nullptr, rows_.data() + t0, nullptr);
}

/// The products of all slices of k as parts `part`, `part` + 1, ...; returns the next part.
std::int32_t CardForward::multiply(const decoder_linear& linear, const code_word_t* codes,
                                   std::int32_t m, std::vector<word_t>& acc,
                                   std::int32_t part) const {
    const std::size_t words = static_cast<std::size_t>(words_of(linear.n)) * m;
    for (std::int32_t s = 0; s < linear.n_slices; ++s, ++part) {
        if (acc.size() < (part + 1) * words) acc.resize((part + 1) * words);
        const std::int32_t k = linear.slice[s + 1] - linear.slice[s];
        static thread_local gemm::halves weights;
        weights.take(static_cast<const code_word_t*>(linear.packed[s]),
                     gemm_int8_packed_bytes(linear.n, k) / gemm::WORD_BYTES);
        gemm_int8_krnl(codes + code_words(m, linear.slice[s]), weights.low.data(),
                       weights.high.data(), acc.data() + part * words, m, linear.n, k);
    }
    gemm::add_to_totals();
    return part;
}

/// Codes and scales of all heads, where the router and attention read them.
void CardForward::head(std::int32_t c, const decoder_linear& qkv, std::int32_t t0, std::int32_t m) {
    const std::int32_t d = model_.head_dim;
    vector::task_t now = task(vector::HEAD, m, qkv.n);
    now.rotated = model_.cards[c].n_heads + model_.cards[c].n_kv_heads;
    now.has_bias = qkv.bias != nullptr;
    now.input_shift = qkv.input_shift;
    const std::vector<word_t> side = head_side(qkv, d);
    vector_ops_krnl(&now, cards_[c].acc.data(), nullptr, side.data(), angles_.data(),
                    rows_.data() + t0, cards_[c].heads.data() + std::int64_t{t0} * token_beats(d),
                    nullptr, rows_.data() + t0, cards_[c].scales.data() + t0 / SCALE_ROWS);
}

void CardForward::attention_step(const decoder_step& step, const group_t& group, bool last) {
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        card_t& own = cards_[c];
        const card_heads heads = {model_.cards[c].n_heads, model_.cards[c].n_kv_heads, stride_,
                                  own.heads.data(), own.scales.data()};
        if (step.what == operation::ROUTE) own.pages->fill(group.segments, heads);
        if (step.what == operation::ATTEND) {
            own.pages->attend(group.segments, group.asked(last), heads,
                              {model_.score_m, model_.score_e}, own.context.data(),
                              own.results.data());
        }
    }
}

/// GATE or CONTEXT: all stages on one card, or one stage at a time on several, which exchange the
/// maxima of their rows in between. Codes stay on each card, scales come back to all rows.
void CardForward::run_stages(const vector::task_t& whole, const std::vector<input_t>& inputs,
                             std::int32_t t0) {
    const bool is_alone = model_.n_cards == 1;
    std::vector<row_t> rows(rows_.begin() + t0, rows_.begin() + t0 + whole.m);
    for (std::int32_t stage = 0; stage < (is_alone ? 1 : 3); ++stage) {
        std::vector<row_t> all = rows;
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            card_t& own = cards_[c];
            own.rows = rows;
            own.codes.resize(code_words(whole.m, inputs[c].n));
            vector::task_t now = whole;
            now.n = inputs[c].n;
            now.first_stage = stage;
            now.last_stage = is_alone ? 2 : stage;
            vector_ops_krnl(&now, inputs[c].acc, nullptr, inputs[c].side, nullptr, own.rows.data(),
                            own.codes.data(), nullptr, own.rows.data(), nullptr);
            for (std::int32_t i = 0; i < whole.m; ++i) {
                if (c == 0) all[i] = own.rows[i];
                exchange(all[i], own.rows[i]);
            }
        }
        rows = all;
    }
    std::copy(rows.begin(), rows.end(), rows_.begin() + t0);
}

/// The cards' codes times a map split by inputs: parts of one sum.
void CardForward::multiply_parts(const decoder_step& step, std::int32_t l, std::int32_t m) {
    n_parts_ = 0;
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        n_parts_ = multiply(layer_of(c, l).*step.linear, cards_[c].codes.data(), m, acc_, n_parts_);
    }
}

/// All parts of a sum, added to the residual stream.
void CardForward::residual(const decoder_linear& linear, std::int32_t t0, std::int32_t m) {
    vector::task_t now = task(vector::RESIDUAL, m, linear.n);
    now.parts = n_parts_;
    now.input_shift = linear.input_shift;
    now.exponent = exponent_of(linear, 0);
    std::vector<word_t> side;
    add_channels(side, linear, 0, linear.n);
    vector_ops_krnl(&now, acc_.data(), x_at(t0), side.data(), nullptr, rows_.data() + t0, nullptr,
                    x_at(t0), rows_.data() + t0, nullptr);
}

void CardForward::context(std::int32_t t0, std::int32_t m) {
    std::vector<input_t> inputs;
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const std::int64_t context = std::int64_t{t0} * model_.head_dim / LANES;
        inputs.push_back({cards_[c].context.data() + context,
                          cards_[c].results.data() + t0 / RESULT_ROWS,
                          model_.cards[c].n_heads * model_.head_dim});
    }
    run_stages(task(vector::CONTEXT, m, 0), inputs, t0);
}

void CardForward::gate(const decoder_step& step, std::int32_t l, std::int32_t t0, std::int32_t m) {
    std::vector<std::vector<word_t>> sides(model_.n_cards);
    std::vector<input_t> inputs;
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const decoder_linear& map = layer_of(c, l).*step.linear;
        add_channels(sides[c], map, 0, map.n);
        inputs.push_back({cards_[c].acc.data(), sides[c].data(), model_.cards[c].intermediate});
    }
    const decoder_linear& map = layer_of(0, l).*step.linear;
    vector::task_t now = task(vector::GATE, m, 0);
    now.input_shift = map.input_shift;
    now.exponent = exponent_of(map, 0);
    now.exponent_up = exponent_of(map, 1);
    run_stages(now, inputs, t0);
}

}  // namespace ecorl
