// The softmax of mha_int8, in a turn: from the scores of a page to its weights.
//
// Three processes, each a pipelined loop over words of four rows by four keys: scores from the
// order in which they leave the array to that of the rows; a first look at them, which finds what
// the weights of a row rest on; and a second one, which makes the weights. Four rows take 16 words.
// What a loop carries from word to word are 16 running values, which trees bring together at the
// end of four rows.
#pragma once

#include "types.hpp"

namespace ecorl {
namespace mha {

// ---- the order of scores --------------------------------------------------------------------

/// Quads of a page come in, tile by tile, while words of the page before leave, row by row.
inline void arrange_scores(hls::stream<turn_t>& turns, hls::stream<sum_quad_t>& quads,
                           hls::stream<sum_word_t>& words) {
    ECORL_BUFFER watched<sum_quad_t> pages[2 * PAGE_TILES * QUADS];
#pragma HLS AGGREGATE variable = pages
#pragma HLS BIND_STORAGE variable = pages type = ram_2p impl = bram
    const turn_t turn = turns.read();
    const dim_t quads_in = quads_of(turn.score_rows);
    const dim_t n_in = quads_in * PAGE_TILES;
    const dim_t n_out = quads_of(turn.softmax_rows) * PAGE_STEPS;
    const dim_t to = turn.page_side * (PAGE_TILES * QUADS);
    const dim_t from = (1 - turn.page_side) * (PAGE_TILES * QUADS);
    dim_t tile = 0;
    dim_t quad = 0;
ARRANGE:
    for (dim_t i = 0; i < most(n_in, n_out); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = pages type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 256
        ECORL_WATCH(pages, ARRANGE, ALL, NEVER, i, n_in, n_out);
        if (i < n_in) {
            pages[to + quad * PAGE_TILES + tile] = quads.read();
            if (++quad == quads_in) {
                quad = 0;
                ++tile;
            }
        }
        if (i < n_out) {
            const sum_quad_t both = pages[from + i / 2];
#pragma HLS ARRAY_PARTITION variable = both.row complete dim = 0
            sum_word_t word;
        HALF:
            for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
                word.lane[lane] = both.row[lane / STEP_KEYS][i % 2 * STEP_KEYS + lane % STEP_KEYS];
            }
            words.write(word);
        }
        MHA_COUNT(ARRANGE_CYCLES, 1);
    }
}

// ---- what both looks share ------------------------------------------------------------------

/// Values of the four keys of a step.
struct step_values_t {
    value_t key[STEP_KEYS];
};

/// A row of a page's scales: the keys of step s stand in bank s % 4.
using scale_banks_t = step_values_t[LANES / STEP_KEYS][PAGE / LANES];

/// Take 16 values of a row of scales.
inline void put_scales(scale_banks_t banks, const beat_t& beat, dim_t word) {
#pragma HLS INLINE
PUT_SCALES:
    for (int i = 0; i < LANES; ++i) {
#pragma HLS UNROLL
        banks[i / STEP_KEYS][word].key[i % STEP_KEYS] = int_of(beat, i);
    }
}

/// The values of a step.
inline step_values_t scales_at(const scale_banks_t banks, dim_t step) {
#pragma HLS INLINE
    return banks[step % (LANES / STEP_KEYS)][step / (LANES / STEP_KEYS)];
}

/// The largest of a row's four lanes.
inline value_t largest_of_row(const word_t& word, int row) {
#pragma HLS INLINE
    const int at = row * STEP_KEYS;
    return larger(larger(word.lane[at], word.lane[at + 1]),
                  larger(word.lane[at + 2], word.lane[at + 3]));
}

/// Their sum.
inline value_t total_of_row(const word_t& word, int row) {
#pragma HLS INLINE
    const int at = row * STEP_KEYS;
    return value_t(value_t(word.lane[at] + word.lane[at + 1]) +
                   value_t(word.lane[at + 2] + word.lane[at + 3]));
}

/// Whether any bit of them is set.
inline bool any_of_row(const word_t& word, int row) {
#pragma HLS INLINE
    const int at = row * STEP_KEYS;
    return ((word.lane[at] | word.lane[at + 1]) | (word.lane[at + 2] | word.lane[at + 3])) != 0;
}

// ---- the first look -------------------------------------------------------------------------

/// What a row keeps from page to page.
struct row_state_t {
    query_row_t row;
    sint<20> top, weighted;  ///< exponents of the largest weight, alone and with its value's scale
    sint<2> mark;
};

using row_states_t = watched<row_state_t>[QUAD_ROWS][QUADS];

/// Rows of a block, before its first page.
inline void take_rows(hls::stream<query_row_t>& rows, row_states_t states, dim_t n_rows) {
#pragma HLS INLINE
TAKE_ROWS:
    for (dim_t r = 0; r < n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 16
        states[r % QUAD_ROWS][r / QUAD_ROWS] = {rows.read(), sint<20>(NOTHING_SEEN.top),
                                                sint<20>(NOTHING_SEEN.weighted), sint<2>(0)};
        MHA_COUNT(SOFTMAX_CYCLES, 1);
    }
}

/// Scales of a page; those of its values go on to the second look.
inline void take_page_scales(hls::stream<beat_t>& scales, hls::stream<beat_t>& value_scales,
                             scale_banks_t banks[PAGE_ROWS]) {
#pragma HLS INLINE
TAKE_SCALES:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        const beat_t beat = scales.read();
        put_scales(banks[i / ROW_BEATS], beat, i % ROW_BEATS);
        if (i >= SCALE_BEATS / 2) value_scales.write(beat);
        MHA_COUNT(SOFTMAX_CYCLES, 1);
    }
}

/// Keys of the softmax's page that a row sees.
inline dim_t live_keys(const turn_t& turn, dim_t row, std::int32_t position) {
#pragma HLS INLINE
    const dim_t seen = position - turn.page * PAGE + 1;
    return row < turn.softmax_rows ? most(least(seen, PAGE), 0) : 0;
}

/// The running values of 16 lanes.
struct running_t {
    word_t top, weighted, changed;
};

/// Four rows have been seen: their new states, and what becomes of their weights and contexts.
inline void raise_rows(row_state_t state[QUAD_ROWS], const running_t& running,
                       const dim_t live[QUAD_ROWS], dim_t page, quad_look_t& look, moves_t& moves) {
#pragma HLS INLINE
RAISE:
    for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
        const auto top = static_cast<std::int32_t>(state[r].top);
        const auto weighted = static_cast<std::int32_t>(state[r].weighted);
        raised_t by = {top, weighted, 0, 0};
        if (live[r] > 0) {
            by = raised(top, weighted, exponent_of_score(largest_of_row(running.top, r)),
                        exponent_of_score(largest_of_row(running.weighted, r)));
        }
        const bool is_marked = state[r].mark != 0 || any_of_row(running.changed, r);
        state[r].top = sint<20>(by.top);
        state[r].weighted = sint<20>(by.weighted);
        state[r].mark = sint<2>(is_marked ? 1 : 0);
        look.row[r] = {state[r].top, sint<21>(by.weighted - by.top), sint<7>(by.sum_right),
                       sint<8>(live[r]), state[r].mark};
        moves.row[r] = sint<6>(page == 0 ? MOVE_ALL : by.context_right);
    }
}

/// One word of the first look: 16 sums to scores, and the running values.
inline word_t score_word(const sum_word_t& sums, const scale_banks_t banks[PAGE_ROWS],
                         const row_state_t state[QUAD_ROWS], const dim_t live[QUAD_ROWS],
                         dim_t step, running_t& running) {
#pragma HLS INLINE
    const step_values_t key_m = scales_at(banks[0], step), key_e = scales_at(banks[1], step);
    const step_values_t value_m = scales_at(banks[2], step), value_e = scales_at(banks[3], step);
    word_t scores;
SCORE_LANES:
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        const int r = lane / STEP_KEYS, k = lane % STEP_KEYS;
        const key_scales_t<exact> by = {key_m.key[k], key_e.key[k], value_m.key[k], value_e.key[k]};
        value_t changed = 0;
        const scored_t<exact> key = scored<exact>(value_t(sums.lane[lane]), by, state[r].row.query,
                                                  value_t(step * STEP_KEYS + k), live[r], changed);
        const bool is_first = step == 0;
        const value_t top = is_first ? value_t(NO_SCORE) : running.top.lane[lane];
        const value_t weighted = is_first ? value_t(NO_WEIGHT) : running.weighted.lane[lane];
        running.top.lane[lane] = larger(top, key.score);
        running.weighted.lane[lane] = larger(weighted, key.weighted);
        running.changed.lane[lane] = (is_first ? value_t(0) : running.changed.lane[lane]) | changed;
        scores.lane[lane] = key.score;
    }
    return scores;
}

/// Sums of the array to scores in units of log2, and what the weights of each row rest on.
inline void look_at_scores(hls::stream<turn_t>& turns, hls::stream<query_row_t>& rows,
                           hls::stream<beat_t>& scales, hls::stream<sum_word_t>& sums,
                           hls::stream<word_t>& scores, hls::stream<quad_look_t>& looks,
                           hls::stream<moves_t>& moves, hls::stream<beat_t>& value_scales,
                           dim_t d) {
    ECORL_BUFFER row_states_t states;
    scale_banks_t banks[PAGE_ROWS];
    row_state_t state[QUAD_ROWS];
    dim_t live[QUAD_ROWS];
    running_t running;
#pragma HLS ARRAY_PARTITION variable = states complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 2
#pragma HLS ARRAY_PARTITION variable = state complete
#pragma HLS ARRAY_PARTITION variable = live complete
#pragma HLS AGGREGATE variable = states
#pragma HLS AGGREGATE variable = banks
#pragma HLS BIND_STORAGE variable = states type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = banks type = ram_2p impl = lutram
    const turn_t turn = turns.read();
    if (turn.softmax_rows == 0) return;
    take_rows(rows, states, turn.page == 0 ? turn.softmax_rows : 0);
    take_page_scales(scales, value_scales, banks);
FIRST_LOOK:
    for (dim_t i = 0; i < quads_of(turn.softmax_rows) * PAGE_STEPS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = states type = inter direction = RAW false
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 256 avg = 256
        ECORL_WATCH(states, FIRST_LOOK, RAW, NEVER, i, turn.softmax_rows);
        const dim_t quad = i / PAGE_STEPS, step = i % PAGE_STEPS;
    ROWS_OF_QUAD:
        for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
            state[r] = states[r][quad];
            live[r] = live_keys(turn, quad * QUAD_ROWS + r, state[r].row.position);
            if (step == 0) MHA_COUNT(MACS, std::int64_t{3} * live[r] * d);
        }
        scores.write(score_word(sums.read(), banks, state, live, step, running));
        if (step == PAGE_STEPS - 1) {
            quad_look_t look;
            moves_t move;
            raise_rows(state, running, live, turn.page, look, move);
        KEEP_ROWS:
            for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
                states[r][quad] = state[r];
            }
            looks.write(look);
            moves.write(move);
        }
        MHA_COUNT(SOFTMAX_CYCLES, 1);
    }
}

// ---- the second look ------------------------------------------------------------------------

/// Scales of a page's values.
inline void take_value_scales(hls::stream<beat_t>& value_scales, scale_banks_t banks[2]) {
#pragma HLS INLINE
TAKE_VALUE_SCALES:
    for (int i = 0; i < SCALE_BEATS / 2; ++i) {
#pragma HLS PIPELINE II = 1
        put_scales(banks[i / ROW_BEATS], value_scales.read(), i % ROW_BEATS);
        MHA_COUNT(WEIGHT_CYCLES, 1);
    }
}

/// One word of the second look: 16 scores to weights as two codes, and their running sum.
inline void weigh_word(const word_t& scores, const scale_banks_t banks[2], const quad_look_t& look,
                       dim_t step, weight_word_t& weights, word_t& part) {
#pragma HLS INLINE
    const step_values_t value_m = scales_at(banks[0], step), value_e = scales_at(banks[1], step);
WEIGHT_LANES:
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        const int r = lane / STEP_KEYS, k = lane % STEP_KEYS;
        const key_scales_t<exact> by = {value_t(0), value_t(0), value_m.key[k], value_e.key[k]};
        const auto ceiling = static_cast<std::int32_t>(value_t(look.row[r].top) << ATTENTION_BITS);
        const auto offset = static_cast<std::int32_t>(look.row[r].lead) + 16;
        const weighed_t<exact> key =
            weighed<exact>(scores.lane[lane], by, ceiling, offset, value_t(step * STEP_KEYS + k),
                           static_cast<dim_t>(look.row[r].live));
        // a word takes two steps: each moves down what the one before has left
        operand_t& row = weights.row[r];
        row.code[k] = row.code[2 * STEP_KEYS + k];
        row.code[STEP_KEYS + k] = row.code[3 * STEP_KEYS + k];
        row.code[2 * STEP_KEYS + k] = code_t(key.high);
        row.code[3 * STEP_KEYS + k] = code_t(key.low);
        part.lane[lane] = (step == 0 ? value_t(0) : part.lane[lane]) + key.part;
    }
}

/// Scores to weights for the array, and the sum of each row's weights over its pages.
inline void look_again(hls::stream<turn_t>& turns, hls::stream<beat_t>& value_scales,
                       hls::stream<word_t>& scores, hls::stream<quad_look_t>& looks,
                       weight_word_t weights[PAGE_WEIGHTS], hls::stream<quad_total_t>& totals) {
    ECORL_BUFFER watched<sint<40> > row_sums[QUAD_ROWS][QUADS];
    scale_banks_t banks[2];
    quad_look_t look;
    weight_word_t word = {};
    word_t part;
#pragma HLS ARRAY_PARTITION variable = row_sums complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 2
#pragma HLS AGGREGATE variable = banks
#pragma HLS BIND_STORAGE variable = row_sums type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = banks type = ram_2p impl = lutram
    const turn_t turn = turns.read();
    if (turn.softmax_rows == 0) return;
    take_value_scales(value_scales, banks);
SECOND_LOOK:
    for (dim_t i = 0; i < quads_of(turn.softmax_rows) * PAGE_STEPS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = row_sums type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 256 avg = 256
        ECORL_WATCH(row_sums, SECOND_LOOK, ALL, NEVER, i, turn.softmax_rows);
        const dim_t quad = i / PAGE_STEPS, step = i % PAGE_STEPS;
        if (step == 0) look = looks.read();
        weigh_word(scores.read(), banks, look, step, word, part);
        if (step % 2 == 1) weights[i / 2] = word;
        if (step == PAGE_STEPS - 1) {
            quad_total_t total;
        SUM_ROWS:
            for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
                const sint<40> before = turn.page == 0 ? sint<40>(0) : row_sums[r][quad];
                const int right = static_cast<int>(look.row[r].right);
                const sint<40> sum = sint<40>((before >> right) + total_of_row(part, r));
                row_sums[r][quad] = sum;
                total.row[r] = {sum, look.row[r].lead, look.row[r].mark};
            }
            if (turn.is_last) totals.write(total);
        }
        MHA_COUNT(WEIGHT_CYCLES, 1);
    }
}

}  // namespace mha
}  // namespace ecorl
